"""The paper's convolutional network for CIFAR-10.

XLA's own convolution is slow on a CPU, its derivatives more so. Here a 5×5 convolution and the 2×2 max-pooling after
it are one matrix product. With the image at half resolution (space to depth: 4c channels), the 3×3 window at a place
holds the 6×6 pixels that the 2×2 block of outputs pooled there needs, so

    block (4·out, places) = wide (4·out, 36c) · windows (36c, places),

where `wide` holds the kernel shifted four ways. Pooling is the maximum over the block's four parts; since adding a bias
and ReLU are monotone, they may come after it. Inside, the batch is the last axis: every copy that forms the windows
and every element-wise operation then runs over long stretches of memory.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import checks
from fedbc.errors import InputError
from fedbc.models.base import Array, Model, Params
from fedbc.models.layers import dense, dense_init, transposed, uniform

KERNEL = 5


def cnn(classes: int = 10) -> Model:
    """Convolution 3-6, convolution 6-16 (5×5, each with ReLU and 2×2 pooling), dense 400-120-84-classes with ReLU.

    It takes images of shape (n, 32, 32, 3); initialised as PyTorch's `nn.Conv2d` and `nn.Linear`. The parameters have
    PyTorch's layout but for the dense weights, which are transposed.

    classes: how many logits.
    """
    checks.integer("classes", classes, at_least=2)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 5)
        return {
            "conv1": convolution_init(keys[0], 3, 6),
            "conv2": convolution_init(keys[1], 6, 16),
            "dense1": dense_init(keys[2], 400, 120),
            "dense2": dense_init(keys[3], 120, 84),
            "out": dense_init(keys[4], 84, classes),
        }

    def apply(params: Params, x: Array) -> Array:
        if x.shape[1:] != (32, 32, 3):
            raise InputError(f"cnn takes images of shape (32, 32, 3), not {x.shape[1:]}")
        h = convolve_and_pool(params["conv1"], x.transpose(3, 1, 2, 0))
        h = convolve_and_pool(params["conv2"], h)
        h = h.reshape(400, -1).T
        h = jax.nn.relu(dense(params["dense1"], h))
        h = jax.nn.relu(dense(params["dense2"], h))
        return dense(params["out"], h)

    return Model(init, apply, name=f"cnn({classes})")


def convolution_init(key: Array, inputs: int, outputs: int) -> Params:
    """Parameters of a 5×5 convolution: `w` (outputs, inputs, 5, 5) and `b` (outputs)."""
    kw, kb = jax.random.split(key)
    fan_in = inputs * KERNEL * KERNEL
    return {"w": uniform(kw, (outputs, inputs, KERNEL, KERNEL), fan_in), "b": uniform(kb, (outputs,), fan_in)}


def convolve_and_pool(params: Params, x: Array) -> Array:
    """A 5×5 convolution (no padding), 2×2 max-pooling and ReLU: (c, 2h, 2w, n) to (out, h-2, w-2, n)."""
    channels, height, width, n = x.shape
    blocks = x.reshape(channels, height // 2, 2, width // 2, 2, n).transpose(0, 2, 4, 1, 3, 5)
    blocks = blocks.reshape(4 * channels, height // 2, width // 2, n)
    pooled = _window_maximum(_wide(params["w"]), blocks)
    return jax.nn.relu(pooled + params["b"][:, None, None, None])


def _shifts() -> np.ndarray:
    """Which pixel of the kernel (25) meets which pixel of a window, for each output of a block: (25, 4, 9, 4)."""
    kernel, shift, block, pixel = (np.arange(size) for size in (KERNEL, 2, 3, 2))
    # Along one side, pixel (block, pixel) of the window is number 2·block + pixel of 6.
    meets = kernel[:, None, None, None] + shift[:, None, None] == 2 * block[:, None] + pixel
    both = np.einsum("ksbp,KSBP->kKsSbBpP", meets, meets)
    return both.reshape(KERNEL * KERNEL, 4, 9, 4)


def _wide(w: Array) -> Array:
    """The kernel (out, c, 5, 5) shifted to the four places of a 2×2 block, as a matrix (4·out, 36c)."""
    outputs, channels = w.shape[:2]
    flat = w.reshape(outputs, channels, KERNEL * KERNEL)
    # It only copies: accelerators must not round.
    wide = jnp.einsum("ocp,psbq->sobcq", flat, _shifts().astype(w.dtype), precision="highest")
    return wide.reshape(4 * outputs, 36 * channels)


def _windows(blocks: Array) -> Array:
    """The 3×3 windows of (f, h, w, n) as a matrix (9f, (h-2)·(w-2)·n)."""
    f, h, w, n = blocks.shape
    flat = blocks.reshape(f, h, w * n)

    def shifted(k: Array) -> Array:
        return jax.lax.dynamic_slice(flat, (0, k // 3, k % 3 * n), (f, h - 2, (w - 2) * n))

    # A loop, as XLA would merge a concatenation with what comes before it into one kernel that is ten times slower.
    return jax.lax.map(shifted, jnp.arange(9)).reshape(9 * f, -1)


def _overlap(d: Array, shape: tuple[int, ...]) -> Array:
    """The transpose of `_windows`: the sum of what each window says of a block."""
    f, h, w, n = shape
    parts = d.reshape(3, 3, f, h - 2, w - 2, n)
    rows = [sum(jnp.pad(parts[i, j], ((0, 0), (0, 0), (j, 2 - j), (0, 0))) for j in range(3)) for i in range(3)]
    total = sum(jnp.pad(row, ((0, 0), (i, 2 - i), (0, 0), (0, 0))) for i, row in enumerate(rows))
    return jnp.asarray(total)


@jax.custom_vjp
def _window_maximum(wide: Array, blocks: Array) -> Array:
    """The maximum over the four parts of wide · windows(blocks), (out, h-2, w-2, n)."""
    return _window_maximum_forward(wide, blocks)[0]


Saved = tuple[Array, Array, Array, tuple[Array, Array, Array]]


def _window_maximum_forward(wide: Array, blocks: Array) -> tuple[Array, Saved]:
    _, h, w, n = blocks.shape
    windows = _windows(blocks)
    a, b, c, d = jnp.split(wide @ windows, 4)
    # Of equal values the first counts, as in PyTorch.
    first, second = jnp.maximum(a, b), jnp.maximum(c, d)
    choices = (first >= second, a >= b, c >= d)
    out = jnp.maximum(first, second).reshape(-1, h - 2, w - 2, n)
    return out, (wide, blocks, windows, choices)


def _window_maximum_backward(saved: Saved, dy: Array) -> tuple[Array, Array]:
    wide, blocks, windows, (upper, left, right) = saved
    d = dy.reshape(upper.shape)
    first, second = jnp.where(upper, d, 0), jnp.where(upper, 0, d)
    parts = [jnp.where(left, first, 0), jnp.where(left, 0, first)]
    parts += [jnp.where(right, second, 0), jnp.where(right, 0, second)]
    d = jnp.concatenate(parts)
    # With the long matrix first it takes two thirds of the time; the barrier keeps XLA from turning the product round.
    gradient = jax.lax.optimization_barrier(windows @ d.T).T
    return gradient, _overlap(transposed(wide) @ d, blocks.shape)


_window_maximum.defvjp(_window_maximum_forward, _window_maximum_backward)
