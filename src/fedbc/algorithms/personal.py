"""What methods share that train a personal model v_i beside the one that the server sees, on the same batches.

v_i = about argmin f_i(v) + mu/2 ‖v - z‖²
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedbc import trees
from fedbc.algorithms.base import Params, Scalar
from fedbc.algorithms.descending import Descending
from fedbc.algorithms.solver import Objective


class BesidePersonal(Descending):
    """To stand before the method that has the other model; the carry is a pair of that method's and a descent on v."""

    penalty: float

    def near(self, z: Params) -> Objective:
        """mu/2 ‖v - z‖², what the personal model's objective has beside f_i"""
        return Objective(self.penalty, z)

    def stationarity(self, carry: Any, gradient: Callable[[Params], Params]) -> Scalar:
        """The larger one of both models: a device goes on until each is good enough for its own objective."""
        shared, v = carry
        personal = self.solver.full_gradient(gradient(v.w), v.w, self.near(shared.z))
        return jnp.maximum(super().stationarity(shared, gradient), trees.sqnorm(personal))

    def count_steps(self, carry: Any, steps: Scalar) -> Any:
        """Both models took as many."""
        return carry._replace(shared=super().count_steps(carry.shared, steps))
