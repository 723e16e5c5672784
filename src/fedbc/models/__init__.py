"""Models: pairs of pure functions `init(key)` and `apply(params, x)`."""

from fedbc.models.base import Model, cross_entropy, half_squared_error, is_largest
from fedbc.models.logistic import logistic

__all__ = ["Model", "cross_entropy", "half_squared_error", "is_largest", "logistic"]
