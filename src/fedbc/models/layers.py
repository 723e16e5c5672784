"""Layers shared by the models, initialised as PyTorch initialises the same layers.

PyTorch draws the weights and the bias of a dense or convolutional layer uniformly from ±1/sqrt(fan_in).
"""

from __future__ import annotations

import functools
import itertools
import math

import jax
import jax.numpy as jnp

from fedbc.errors import InputError
from fedbc.models.base import Array, Params

LONGEST_UNROLLED = 32
"""Inputs of a product that LLVM unrolls; measured: 30 are faster than 20 and 15, and 60 take three times as long."""


def flat(model: str, x: Array, features: int) -> Array:
    """Examples as rows of `features` numbers."""
    if math.prod(x.shape[1:]) != features:
        raise InputError(f"{model} takes examples of shape ({features},), not {x.shape[1:]}: set features")
    return x.reshape(x.shape[0], features)


def uniform(key: Array, shape: tuple[int, ...], fan_in: int) -> Array:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in))"""
    bound = 1.0 / math.sqrt(fan_in)
    return jax.random.uniform(key, shape, jnp.result_type(float), -bound, bound)


def dense_init(key: Array, inputs: int, outputs: int) -> Params:
    """Parameters of a dense layer: `w` (inputs, outputs) and `b` (outputs)."""
    kw, kb = jax.random.split(key)
    return {"w": uniform(kw, (inputs, outputs), inputs), "b": uniform(kb, (outputs,), inputs)}


def dense(params: Params, x: Array) -> Array:
    """x w + b"""
    return x @ params["w"] + params["b"]


def dropped(x: Array, dropout: float, key: Array | None) -> Array:
    """Numbers of which a share is set to 0 in training; without a key, while evaluating, all of them as they are."""
    if not dropout or key is None:
        return x
    kept = jax.random.bernoulli(key, 1 - dropout, x.shape)
    # Scaled up as in PyTorch, so that the next layer sees the same mean with and without dropout.
    return jnp.where(kept, x / (1 - dropout), 0)


def short_product(x: Array, w: Array) -> Array:
    """X w for a small w, summed over a few inputs at a time.

    A loop as small as a step of logistic regression is compiled into one function (see `fedbc.runtime`), where LLVM
    unrolls and vectorises a short product and leaves a long one to a slow scalar loop.
    """
    inputs = w.shape[0]
    parts = -(-inputs // LONGEST_UNROLLED)
    ends = [inputs * part // parts for part in range(parts + 1)]
    products = [x[:, begin:end] @ w[begin:end] for begin, end in itertools.pairwise(ends)]
    return functools.reduce(jnp.add, products)


def transposed(x: Array) -> Array:
    """xᵀ, laid out in memory before it is used.

    XLA would fold the transposition into the product that follows, and for a CPU it has a much slower kernel for a
    product with a transposed factor: half the rate for a weight gradient of the LSTM.
    """
    return jax.lax.optimization_barrier(x.T)


@jax.custom_vjp
def product(x: Array, w: Array) -> Array:
    """X w of two matrices, with a derivative made of products that XLA's CPU kernels do at full rate."""
    return x @ w


def _product_forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ w, (x, w)


def _product_backward(saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, w = saved
    return dy @ transposed(w), transposed(x) @ dy


product.defvjp(_product_forward, _product_backward)
