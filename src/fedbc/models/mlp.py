"""A network with one hidden layer, the paper's model for MNIST."""

from __future__ import annotations

import jax

from fedbc import checks
from fedbc.models.background import image_product
from fedbc.models.base import Array, Model, Params
from fedbc.models.layers import dense, dense_init, dropped, flat


def mlp(features: int = 784, hidden: int = 128, classes: int = 10, dropout: float = 0.0) -> Model:
    """Two dense layers with a ReLU between them; initialised as PyTorch's `nn.Linear`.

    features: how many numbers an example has; images are flattened.
    hidden: how many hidden units.
    classes: how many logits.
    dropout: the probability with which a hidden unit is dropped in training; evaluation uses all of them.
    """
    checks.integer("features", features, at_least=1)
    checks.integer("hidden", hidden, at_least=1)
    checks.integer("classes", classes, at_least=2)
    checks.number("dropout", dropout, at_least=0, below=1)

    def init(key: Array) -> Params:
        first, second = jax.random.split(key)
        return {"hidden": dense_init(first, features, hidden), "out": dense_init(second, hidden, classes)}

    def apply(params: Params, x: Array, key: Array | None = None) -> Array:
        first = params["hidden"]
        h = jax.nn.relu(image_product(flat("mlp", x, features), first["w"]) + first["b"])
        return dense(params["out"], dropped(h, dropout, key))

    return Model(init, apply, stochastic=dropout > 0, name=f"mlp({features}, {hidden}, {classes}, {dropout:g})")
