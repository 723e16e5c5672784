"""Multinomial logistic regression, the paper's model for the synthetic federation."""

from __future__ import annotations

from fedbc import checks
from fedbc.models.base import Array, Model, Params
from fedbc.models.layers import dense, dense_init, flat


def logistic(features: int = 60, classes: int = 10) -> Model:
    """One dense layer, `features` to `classes` logits; initialised as PyTorch's `nn.Linear`.

    features: how many numbers an example has; images are flattened.
    classes: how many logits.
    """
    checks.integer("features", features, at_least=1)
    checks.integer("classes", classes, at_least=2)

    def init(key: Array) -> Params:
        return dense_init(key, features, classes)

    def apply(params: Params, x: Array) -> Array:
        return dense(params, flat("logistic", x, features))

    return Model(init, apply, name=f"logistic({features}, {classes})")
