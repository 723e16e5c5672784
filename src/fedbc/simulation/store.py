"""The devices' states on the host: memory grows with the devices that took part, not with those that exist."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbc.simulation.packing import Packed, Packing
from fedbc.simulation.schedule import Plan

Array = np.ndarray
LONG = 2**14
"""Numbers in a row that take longer to copy than Python to ask for it."""


class DeviceStore:
    """One slot for each device that ever took part; a slot is one row of numbers."""

    def __init__(self, template: Any, population: int) -> None:
        """`template` is one device's state, or its shapes."""
        self.template, self.packing = template, Packing(template)
        self.slot_of = np.full(population, -1, np.int32)
        self.count = 0
        self._room = 0
        self._rows = self.packing.empty(0)
        self._taken: dict[tuple[int, ...], Packed] = {}

    @property
    def devices(self) -> Array:
        """The devices that took part, in the order of their slots."""
        known = np.flatnonzero(self.slot_of >= 0)
        return known[np.argsort(self.slot_of[known])]

    @property
    def stacks(self) -> Any:
        """The states of `devices`, as one pytree with a leading axis."""
        return self.packing.unpack({kind: rows[: self.count] for kind, rows in self._rows.items()})

    @property
    def bytes_per_device(self) -> int:
        """The memory that one device's state takes."""
        return sum(width * np.dtype(kind).itemsize for kind, width in self.packing.widths.items())

    def restore(self, devices: Array, stacks: Any) -> None:
        """Take over states that were stored."""
        self.slot_of[:] = -1
        self.slot_of[devices] = np.arange(len(devices), dtype=np.int32)
        self.count = self._room = len(devices)
        self._rows = self.packing.repack(stacks)

    def take(self, devices: Array) -> tuple[Packed, Array]:
        """Rows of `devices`, an array of any shape with -1 for none; and which of them are fresh (no state yet).

        The rows are good until the next call: memory that the system has to provide anew costs more than the copy.
        Where there is no state, they hold whatever was there before.
        """
        slots = np.where(devices >= 0, self.slot_of[devices], -1)
        known = slots >= 0
        if devices.shape not in self._taken:
            self._taken[devices.shape] = self.packing.empty(*devices.shape)
        taken = self._taken[devices.shape]
        for kind, rows in self._rows.items():
            _copy(rows, (slots[known],), taken[kind], np.nonzero(known))
        return taken, ~known

    def put(self, plan: Plan, states: list[Packed]) -> None:
        """Keep the new states of a round's devices; they come in parts, each with some of the plan's lanes."""
        lane, place = plan.places
        devices = plan.devices[lane, place]
        fresh = devices[self.slot_of[devices] < 0]
        self._make_room(self.count + len(fresh))
        self.slot_of[fresh] = np.arange(self.count, self.count + len(fresh), dtype=np.int32)
        self.count += len(fresh)
        lanes = len(plan.devices) // len(states)
        for kind, rows in self._rows.items():
            for i, part in enumerate(states):
                own = lane // lanes == i
                _copy(np.asarray(part[kind]), (lane[own] % lanes, place[own]), rows, (self.slot_of[devices[own]],))

    def _make_room(self, slots: int) -> None:
        if slots <= self._room:
            return
        # Doubling keeps the cost of growth constant a device; no more slots than devices are ever needed.
        self._room = min(max(slots, 2 * self._room), len(self.slot_of))
        grown = self.packing.empty(self._room)
        for kind, rows in self._rows.items():
            grown[kind][: self.count] = rows[: self.count]
        self._rows = grown


def _copy(source: Array, which: tuple[Array, ...], target: Array, where: tuple[Array, ...]) -> None:
    """Copy rows from places of one array to places of another; long ones one by one, without a copy between."""
    if target.shape[-1] < LONG:
        target[where] = source[which]
        return
    for here, there in zip(zip(*which, strict=True), zip(*where, strict=True), strict=True):
        target[there] = source[here]
