"""A 5×5 convolution, 2×2 max-pooling and ReLU as one operation, in two forms.

XLA's own convolution is slow on a CPU, its derivatives more so. Here the batch is the last axis, so that everything
runs over long stretches of memory, and bias and ReLU come after the pooling, which they may, being monotone.

**Anywhere**, convolution and pooling are one matrix product. With the image at half resolution (space to depth: 4c
channels), the 3×3 window at a place holds the 6×6 pixels that the 2×2 block of outputs pooled there needs, so

    block (4·out, places) = wide (4·out, 36c) · windows (36c, places),

where `wide` holds the kernel shifted four ways. Pooling is the maximum over the block's four parts.

**On a CPU with a C++ compiler** (`native`), the convolution is done directly, without windows and without the zeros of
`wide`: a training round of the paper's CNN takes 54 % of the time. What pooling chose is kept, and given the
choice c everything is linear: with the trilinear form T(x, w, dy) = Σ dy · conv(x, w)[c], the derivatives are ∂T/∂w and
∂T/∂x, and theirs are again derivatives of T.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import native
from fedbc.models.base import Array, Params
from fedbc.models.layers import transposed, uniform

KERNEL = 5
SMALLEST_BATCH = 8
"""Of the direct form, which works on so many examples at a time."""


def convolution_init(key: Array, inputs: int, outputs: int) -> Params:
    """Parameters of a 5×5 convolution: `w` (outputs, inputs, 5, 5) and `b` (outputs)."""
    kw, kb = jax.random.split(key)
    fan_in = inputs * KERNEL * KERNEL
    return {"w": uniform(kw, (outputs, inputs, KERNEL, KERNEL), fan_in), "b": uniform(kb, (outputs,), fan_in)}


def convolve_and_pool(params: Params, x: Array) -> Array:
    """A 5×5 convolution (no padding), 2×2 max-pooling and ReLU: (c, 2h, 2w, n) to (out, h-2, w-2, n)."""
    w = params["w"]
    direct = x.dtype == w.dtype == jnp.float32 and x.shape[-1] >= SMALLEST_BATCH and native.available()
    pooled = _pooled(x, w)[0] if direct else _window_maximum(_wide(w), _half_resolution(x))
    return jax.nn.relu(pooled + params["b"][:, None, None, None])


def _half_resolution(x: Array) -> Array:
    """(c, 2h, 2w, n) to (4c, h, w, n)"""
    channels, height, width, n = x.shape
    blocks = x.reshape(channels, height // 2, 2, width // 2, 2, n).transpose(0, 2, 4, 1, 3, 5)
    return blocks.reshape(4 * channels, height // 2, width // 2, n)


def _like(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


# Rules call functions that have rules, so that derivatives have derivatives.
@jax.custom_vjp
def _pooled(x: Array, w: Array) -> tuple[Array, Array]:
    """The convolution's maxima, and which of its four places each is from."""
    _, height, width, n = x.shape
    shape = (w.shape[0], height // 2 - 2, width // 2 - 2, n)
    return native.call(
        "pooled", (jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)), x, w
    )


def _pooled_forward(x: Array, w: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    y, choice = _pooled(x, w)
    return (y, choice), (x, w, choice)


def _pooled_backward(saved: tuple[Array, Array, Array], slopes: tuple[Array, Array]) -> tuple[Array, Array]:
    x, w, choice = saved
    dy, _ = slopes
    return _input_gradient(x, w, dy, choice), _weight_gradient(x, w, dy, choice)


_pooled.defvjp(_pooled_forward, _pooled_backward)


def _chosen(x: Array, w: Array, choice: Array) -> Array:
    """∂T/∂dy: the convolution where `choice` says; only for second derivatives, so it need not be fast."""
    parts = jnp.stack(jnp.split(_wide(w) @ _windows(_half_resolution(x)), 4))
    return jnp.take_along_axis(parts, choice.reshape(1, *parts.shape[1:]), axis=0).reshape(choice.shape)


@jax.custom_vjp
def _weight_gradient(x: Array, like: Array, dy: Array, choice: Array) -> Array:
    """∂T/∂w, in the shape of `like`"""
    return native.call("convolution_weight_gradient", _like(like), x, dy, choice)


@jax.custom_vjp
def _input_gradient(like: Array, w: Array, dy: Array, choice: Array) -> Array:
    """∂T/∂x, in the shape of `like`"""
    return native.call("convolution_input_gradient", _like(like), w, dy, choice)


def _weight_gradient_backward(saved: tuple[Array, ...], g: Array) -> tuple[Array | None, ...]:
    x, _, dy, choice = saved
    return _input_gradient(x, g, dy, choice), None, _chosen(x, g, choice), None


def _input_gradient_backward(saved: tuple[Array, ...], g: Array) -> tuple[Array | None, ...]:
    _, w, dy, choice = saved
    return None, _weight_gradient(g, w, dy, choice), _chosen(g, w, choice), None


_weight_gradient.defvjp(lambda *a: (_weight_gradient(*a), a), _weight_gradient_backward)
_input_gradient.defvjp(lambda *a: (_input_gradient(*a), a), _input_gradient_backward)


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
