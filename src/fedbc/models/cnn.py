"""The paper's convolutional network for CIFAR-10."""

from __future__ import annotations

import jax

from fedbc import checks
from fedbc.errors import InputError
from fedbc.models.base import Array, Model, Params
from fedbc.models.convolution import convolution_init, convolve_and_pool
from fedbc.models.layers import dense, dense_init, dropped


def cnn(classes: int = 10, dropout: float = 0.0) -> Model:
    """Convolution 3-6, convolution 6-16 (5×5, each with ReLU and 2×2 pooling), dense 400-120-84-classes with ReLU.

    It takes images of shape (n, 32, 32, 3); initialised as PyTorch's `nn.Conv2d` and `nn.Linear`. The parameters have
    PyTorch's layout but for the dense weights, which are transposed.

    classes: how many logits.
    dropout: the probability with which a unit of the two hidden dense layers is dropped in training.
    """
    checks.integer("classes", classes, at_least=2)
    checks.number("dropout", dropout, at_least=0, below=1)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 5)
        return {
            "conv1": convolution_init(keys[0], 3, 6),
            "conv2": convolution_init(keys[1], 6, 16),
            "dense1": dense_init(keys[2], 400, 120),
            "dense2": dense_init(keys[3], 120, 84),
            "out": dense_init(keys[4], 84, classes),
        }

    def apply(params: Params, x: Array, key: Array | None = None) -> Array:
        if x.shape[1:] != (32, 32, 3):
            raise InputError(f"cnn takes images of shape (32, 32, 3), not {x.shape[1:]}")
        h = convolve_and_pool(params["conv1"], x.transpose(3, 1, 2, 0))
        h = convolve_and_pool(params["conv2"], h)
        h = h.reshape(400, -1).T
        keys = (None, None) if key is None else jax.random.split(key)
        for layer, own in zip(("dense1", "dense2"), keys, strict=True):
            h = dropped(jax.nn.relu(dense(params[layer], h)), dropout, own)
        return dense(params["out"], h)

    name = f"cnn({classes}, {dropout:g})" if dropout else f"cnn({classes})"
    return Model(init, apply, stochastic=dropout > 0, name=name)
