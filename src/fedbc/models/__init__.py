"""Models: pairs of pure functions `init(key)` and `apply(params, x)`."""

from fedbc.models.adapters import from_equinox, from_flax, from_nnx
from fedbc.models.base import Model, cross_entropy, half_squared_error, is_largest
from fedbc.models.cnn import cnn
from fedbc.models.freezing import freeze
from fedbc.models.linear import linear
from fedbc.models.logistic import logistic
from fedbc.models.lstm import lstm
from fedbc.models.mlp import mlp

__all__ = [
    "Model",
    "cnn",
    "cross_entropy",
    "freeze",
    "from_equinox",
    "from_flax",
    "from_nnx",
    "half_squared_error",
    "is_largest",
    "linear",
    "logistic",
    "lstm",
    "mlp",
]
