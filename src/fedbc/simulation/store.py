"""The devices' states on the host: memory grows with the devices that took part, not with those that exist."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedbc.simulation.schedule import Plan

Array = np.ndarray


class DeviceStore:
    """One slot for each device that ever took part; the arrays of all slots are kept stacked, leaf by leaf."""

    def __init__(self, template: Any, population: int) -> None:
        """`template` is one device's state, or its shapes."""
        self.template = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), template)
        self.slot_of = np.full(population, -1, np.int32)
        self.count = 0
        self._stacks = [np.empty((0, *s.shape), s.dtype) for s in jax.tree.leaves(self.template)]

    @property
    def devices(self) -> Array:
        """The devices that took part, in the order of their slots."""
        known = np.flatnonzero(self.slot_of >= 0)
        return known[np.argsort(self.slot_of[known])]

    @property
    def stacks(self) -> Any:
        """The states of `devices`, as one pytree with a leading axis."""
        return self._tree([stack[: self.count] for stack in self._stacks])

    @property
    def bytes_per_device(self) -> int:
        """The memory that one device's state takes."""
        return sum(int(np.prod(s.shape)) * s.dtype.itemsize for s in jax.tree.leaves(self.template))

    def restore(self, devices: Array, stacks: Any) -> None:
        """Take over states that were stored."""
        self.slot_of[:] = -1
        self.slot_of[devices] = np.arange(len(devices), dtype=np.int32)
        self.count = len(devices)
        self._stacks = [np.array(leaf) for leaf in jax.tree.leaves(stacks)]

    def take(self, devices: Array) -> tuple[Any, Array]:
        """States of `devices`, an array of any shape with -1 for none; and which of them are fresh (no state yet)."""
        slots = np.where(devices >= 0, self.slot_of[devices], -1)
        known = slots >= 0
        taken = []
        for stack in self._stacks:
            out = np.zeros((*devices.shape, *stack.shape[1:]), stack.dtype)
            out[known] = stack[slots[known]]
            taken.append(out)
        return self._tree(taken), ~known

    def put(self, plan: Plan, states: Any) -> None:
        """Keep the new states of a round's devices."""
        lane, place = plan.places
        devices = plan.devices[lane, place]
        fresh = devices[self.slot_of[devices] < 0]
        self._make_room(self.count + len(fresh))
        self.slot_of[fresh] = np.arange(self.count, self.count + len(fresh), dtype=np.int32)
        self.count += len(fresh)
        slots = self.slot_of[devices]
        for stack, new in zip(self._stacks, jax.tree.leaves(states), strict=True):
            stack[slots] = np.asarray(new)[lane, place]

    def _make_room(self, slots: int) -> None:
        have = len(self._stacks[0]) if self._stacks else slots
        if slots <= have:
            return
        # Doubling keeps the cost of growth constant a device; no more slots than devices are ever needed.
        room = min(max(slots, 2 * have), len(self.slot_of))
        for i, stack in enumerate(self._stacks):
            grown = np.empty((room, *stack.shape[1:]), stack.dtype)
            grown[: self.count] = stack[: self.count]
            self._stacks[i] = grown

    def _tree(self, leaves: list[Array]) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self.template), leaves)
