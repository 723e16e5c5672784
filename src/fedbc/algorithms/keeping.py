"""What the optimizer remembers (velocity, moments) stays on the device from round to round, for any method.

A method's carry holds one `Descent` for each model that it trains on the device; what those remember is kept beside
the method's own state, and put back when the device's next round begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax

from fedbc.algorithms.base import Context, Finished, Params
from fedbc.algorithms.solver import Descent
from fedbc.algorithms.wrapping import Wrapping, start_anew


class Device(NamedTuple):
    """The method's own state, and what the optimizers remember."""

    inner: Any
    memories: list[Any]


class Carry(NamedTuple):
    """The method's own."""

    inner: Any


@dataclass(frozen=True)
class Keeping(Wrapping):
    """A method whose devices keep their optimizers' memory."""

    name: ClassVar[str] = "keeping"

    def init_device(self, params: Params, context: Context) -> Device:
        """At rest."""
        memories = [d.memory for d in descents(start_anew(self.algorithm, params, context))]
        return Device(self.algorithm.init_device(params, context), memories)

    def begin(self, message: Any, device: Device, context: Context) -> Carry:
        """As the method does, with the memories of the last round."""
        carry = self.algorithm.begin(message, device.inner, context)
        back = iter(device.memories)
        return Carry(
            jax.tree.map(
                lambda leaf: leaf._replace(memory=next(back)) if isinstance(leaf, Descent) else leaf,
                carry,
                is_leaf=lambda leaf: isinstance(leaf, Descent),
            )
        )

    def finish(self, carry: Carry) -> Finished:
        """As the method does."""
        done = self.algorithm.finish(carry.inner)
        return done._replace(device=Device(done.device, [d.memory for d in descents(carry.inner)]))


def descents(carry: Any) -> list[Descent]:
    """The descents that a method carries, in the order of its fields."""
    leaves = jax.tree.leaves(carry, is_leaf=lambda leaf: isinstance(leaf, Descent))
    return [leaf for leaf in leaves if isinstance(leaf, Descent)]
