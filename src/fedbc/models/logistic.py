"""Multinomial logistic regression, the paper's model for the synthetic federation."""

from __future__ import annotations

from fedbc import checks
from fedbc.models.base import Array, Model, Params
from fedbc.models.layers import dense_init, flat, short_product


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
        examples = flat("logistic", x, features)
        return (short_product(examples, params["w"]) if tiny else examples @ params["w"]) + params["b"]

    tiny = features <= 128 and classes <= 32  # measured: beyond, calls are as fast
    return Model(init, apply, tiny=tiny, name=f"logistic({features}, {classes})")
