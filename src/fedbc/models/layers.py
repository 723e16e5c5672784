"""Layers shared by the models, initialised as PyTorch initialises the same layers.

PyTorch draws the weights and the bias of a dense or convolutional layer uniformly from ±1/sqrt(fan_in).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from fedbc.models.base import Array, Params


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
