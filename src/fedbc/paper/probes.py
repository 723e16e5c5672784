"""Methods changed in one respect, to see whether that respect is the cause of what the tables show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms.base import Params, parameter
from fedbc.algorithms.scaffold import SCAFFOLD, Carry
from fedbc.runs.catalog import register


@register
@dataclass(frozen=True)
class DampedSCAFFOLD(SCAFFOLD):
    """SCAFFOLD whose corrections go no further than `horizon` steps: c_i - c is scaled by min(1, horizon / K_i).

    A device of many examples takes hundreds of steps along a correction that was measured over few, on other devices.
    """

    name: ClassVar[str] = "probe-damped-scaffold"

    horizon: float = parameter(10.0, "steps that a correction is followed for at full length")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("horizon", self.horizon, above=0)

    def correction(self, carry: Carry) -> Params:
        """(c - c_i) min(1, horizon / K_i)"""
        return trees.scale(jnp.minimum(1, self.horizon / carry.context.steps), super().correction(carry))
