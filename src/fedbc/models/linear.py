"""Linear regression."""

from __future__ import annotations

import jax.numpy as jnp

from fedbc import checks
from fedbc.models.base import Array, Model, Params, half_squared_error
from fedbc.models.layers import dense, flat


def linear(features: int = 1, outputs: int = 1) -> Model:
    """One dense layer that predicts quantities, with half the squared error as its loss; it starts at zero.

    features: how many numbers an example has.
    outputs: how many quantities are predicted; labels are of shape (n, outputs).
    """
    checks.integer("features", features, at_least=1)
    checks.integer("outputs", outputs, at_least=1)

    def init(key: Array) -> Params:
        del key
        return {"w": jnp.zeros((features, outputs)), "b": jnp.zeros(outputs)}

    def apply(params: Params, x: Array) -> Array:
        return dense(params, flat("linear", x, features))

    return Model(init, apply, half_squared_error, correct=None, name=f"linear({features}, {outputs})")
