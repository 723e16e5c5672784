"""Which machine owns which devices, and data that are loaded by their owner only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbc import checks
from fedbc.data.federation import Federation, Pair, Split, federation
from fedbc.errors import InputError
from fedbc.machines.world import Machines

Array = np.ndarray


class Share(NamedTuple):
    """What a loader is told of the devices whose data it is to load."""

    devices: Array
    """their numbers, in ascending order"""
    population: int
    """how many devices there are on all machines"""


Loader = Callable[[Share], tuple[Sequence[Pair], Sequence[Pair]]]
"""Gives the share's training and test examples: two lists with one pair (x, y) per device."""


def owners(population: int, machines: int, work: Array | None = None) -> Array:
    """The machine that owns each device.

    work: how much work each device is, if that is known on all machines: the devices are dealt by it, the heaviest
        first, each machine as many as the others (but for one), so that a round with all devices is even. Otherwise
        they are dealt by number. Neither depends on lanes.
    """
    if work is None:
        return np.arange(population) % machines
    owner = np.zeros(population, np.int64)
    load, room = np.zeros(machines), np.full(machines, -(-population // machines))
    for device in np.argsort(-work, kind="stable").tolist():
        machine = int(np.argmin(np.where(room > 0, load, np.inf)))
        owner[device] = machine
        load[machine] += work[device]
        room[machine] -= 1
    return owner


def load(loader: Loader, devices: int, machines: Machines, *, classes: int | None = None, name: str) -> Federation:
    """A federation of which each machine holds the devices that it owns: no machine reads the whole.

    loader: given a `Share`, returns the training and the test examples of its devices, in their order.
    devices: how many there are on all machines.
    classes: how many labels there are; the largest on any machine + 1 if not given.
    name: what tells these data from others, on every machine.
    """
    checks.integer("devices", devices, at_least=machines.count)
    own = np.flatnonzero(owners(devices, machines.count) == machines.index)

    def read() -> Federation:
        train, test = loader(Share(own, devices))
        if len(train) != len(own):
            raise InputError(f"the loader gave training examples of {len(train)} devices: it was asked for {len(own)}")
        return federation(train, test, classes=classes, name=name)

    part = machines.together("load its data", read)
    if part.classes is not None and classes is None:
        most = int(machines.gather(np.asarray(part.classes)).max())
        part = dataclasses.replace(part, classes=most)
    machines.agree("kind of labels", "numbers" if part.classes is None else f"{part.classes} classes")
    machines.agree("shape of examples", (part.train.x.shape[1:], str(part.train.x.dtype)))
    return dataclasses.replace(
        part, train=_among(part.train, own, devices), test=_among(part.test, own, devices), owned=own
    )


def keep_own(whole: Federation, machines: Machines) -> Federation:
    """The part that this machine owns of a federation that every machine has loaded."""
    if machines.alone or whole.owned is not None:
        return whole
    own = np.flatnonzero(owners(whole.devices, machines.count, whole.train.sizes) == machines.index)
    return dataclasses.replace(whole, train=_only(whole.train, own), test=_only(whole.test, own), owned=own)


def _among(part: Split, own: Array, population: int) -> Split:
    """The same rows, for devices with these numbers; all others have none."""
    sizes = np.zeros(population, part.offsets.dtype)
    sizes[own] = part.sizes
    return Split(part.x, part.y, np.concatenate([[0], np.cumsum(sizes)]).astype(part.offsets.dtype))


def _only(split: Split, own: Array) -> Split:
    """The rows of these devices; all others have none."""
    kept = np.zeros(len(split.sizes), bool)
    kept[own] = True
    rows = np.repeat(kept, split.sizes)
    sizes: Any = np.where(kept, split.sizes, 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(split.offsets.dtype)
    return Split(split.x[rows], split.y[rows], offsets)
