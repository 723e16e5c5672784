"""Partitions of labelled examples over devices: each function returns one array of row numbers per device.

Every row is dealt to exactly one device. The functions work on any array of labels; `fedbc.data.from_partition`
makes a federation of the result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbc import checks
from fedbc.data.federation import Federation, Split, as_labels, from_splits, numbers
from fedbc.errors import InputError

__all__ = ["by_id", "dirichlet", "from_partition", "iid", "power_law", "power_law_sizes", "shards", "split"]

Rows = np.ndarray

NAMES = ("power_law", "dirichlet", "shards", "iid")
ORDERS = ("shuffled", "ordered")
_DRAWS = 1000  # how often a Dirichlet partition is drawn again before its minimum is declared out of reach


def power_law(labels: Any, devices: int = 20, classes: int = 1, exponent: float = 1.1, seed: int = 1) -> list[Rows]:
    """The FedBC paper's partition: sizes grow by a constant factor, and a device holds about `classes` classes.

    Device k of K = `devices` gets floor(b·e^k) of the n examples, with e = `exponent` and
    b = floor(n / (e + … + e^K)); what rounding leaves over goes to the largest devices. From the smallest device
    to the largest, the list of classes is shuffled (on from its last order), and the device takes at most
    1/`classes` of its size from each class in turn until it is full. The last devices take more classes than
    that, because they must take what is left. A device's rows come class by class, in the order of taking.
    """
    y = _labels(labels, devices)
    checks.integer("classes", classes, at_least=1)
    checks.number("exponent", exponent, at_least=1)
    checks.integer("seed", seed, at_least=0)
    known = np.unique(y)
    if classes > len(known):
        raise InputError(f"classes={classes} cannot be met: the labels have {len(known)} classes")
    sizes = power_law_sizes(len(y), devices, exponent)

    unclaimed = {int(c): np.flatnonzero(y == c) for c in known}  # by class, in the order of the data
    parts: list[list[Rows]] = [[] for _ in range(devices)]

    def give(device: int, c: int, count: int) -> None:
        parts[device].append(unclaimed[c][:count])
        unclaimed[c] = unclaimed[c][count:]

    order = list(unclaimed)
    shuffler = random.Random(seed)  # Python's own generator: with it seed 1 gives the paper's partitions
    for device, size in enumerate(sizes):
        shuffler.shuffle(order)
        room = size
        for c in order:
            count = min(room, math.ceil(size / classes), len(unclaimed[c]))
            give(device, c, count)
            room -= count
    # A device stays below its size where too few classes are left; never in the paper's own cases.
    for c in order:
        for device, count in _from_the_largest(len(unclaimed[c]), devices, exponent):
            give(device, c, count)
    return [np.concatenate(rows) for rows in parts]


def power_law_sizes(examples: int, devices: int, exponent: float) -> list[int]:
    """The sizes of the devices in `power_law`, ascending; their sum is `examples`."""
    growth = [exponent**k for k in range(1, devices + 1)]
    base = math.floor(examples / sum(growth))
    sizes = [math.floor(base * g) for g in growth]
    for device, count in _from_the_largest(examples - sum(sizes), devices, exponent):
        sizes[device] += count
    if min(sizes) == 0:
        raise InputError(
            f"exponent={exponent:g} leaves the smallest of devices={devices} without any of the {examples} examples: "
            "lower exponent or devices"
        )
    return sizes


def _from_the_largest(rest: int, devices: int, exponent: float) -> list[tuple[int, int]]:
    """Hand out a rest, 1/exponent of what is still there to each device, from the largest device down."""
    shares = []
    device = devices - 1
    while rest:
        count = math.ceil(rest / exponent)
        shares.append((device, count))
        rest -= count
        device = (device or devices) - 1  # after the smallest comes the largest again
    return shares


def dirichlet(
    labels: Any, devices: int = 20, concentration: float = 0.5, seed: int = 1, *, min_examples: int = 2
) -> list[Rows]:
    """Each class is dealt over the devices in proportions drawn from a Dirichlet distribution.

    A small `concentration` gives each class to few devices, a large one makes all devices alike. The whole draw is
    repeated until every device has at least `min_examples` examples.
    """
    y = _labels(labels, devices)
    checks.number("concentration", concentration, above=0)
    checks.integer("seed", seed, at_least=0)
    checks.integer("min_examples", min_examples, at_least=1)
    if devices * min_examples > len(y):
        raise InputError(
            f"min_examples={min_examples} on devices={devices} needs more than the {len(y)} examples given"
        )
    rng = np.random.default_rng(seed)
    counts = np.unique(y, return_counts=True)[1]
    for _ in range(_DRAWS):
        shares = rng.dirichlet(np.full(devices, concentration), len(counts))
        cuts = np.floor(np.cumsum(shares, axis=1)[:, :-1] * counts[:, None]).astype(np.int64)
        cuts = np.minimum(cuts, counts[:, None])  # the cumulated shares may exceed 1 by rounding
        sizes = np.diff(cuts, axis=1, prepend=0, append=counts[:, None]).sum(axis=0)
        if sizes.min() >= min_examples:
            break
    else:
        raise InputError(
            f"concentration={concentration:g} left a device with fewer than min_examples={min_examples} in each of "
            f"{_DRAWS} draws: raise concentration, or lower min_examples or devices={devices}"
        )
    parts: list[list[Rows]] = [[] for _ in range(devices)]
    for c, cut in zip(np.unique(y), cuts, strict=True):
        for device, rows in enumerate(np.split(rng.permutation(np.flatnonzero(y == c)), cut)):
            parts[device].append(rows)
    return [np.concatenate(rows) for rows in parts]


def shards(labels: Any, devices: int = 20, shards_per_device: int = 2, seed: int = 1) -> list[Rows]:
    """The examples sorted by label and cut into equal shards, which are dealt at random (McMahan et al., 2017)."""
    y = _labels(labels, devices)
    checks.integer("shards_per_device", shards_per_device, at_least=1)
    checks.integer("seed", seed, at_least=0)
    total = devices * shards_per_device
    if total > len(y):
        raise InputError(
            f"shards_per_device={shards_per_device} on devices={devices} needs {total} examples or more: "
            f"{len(y)} are given"
        )
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(len(y))
    pieces = np.array_split(mixed[np.argsort(y[mixed], kind="stable")], total)
    dealt = rng.permutation(total).reshape(devices, shards_per_device)
    return [np.concatenate([pieces[i] for i in mine]) for mine in dealt]


def iid(labels: Any, devices: int = 20, seed: int = 1) -> list[Rows]:
    """Equal parts at random: all devices alike."""
    y = _labels(labels, devices)
    checks.integer("seed", seed, at_least=0)
    return np.array_split(np.random.default_rng(seed).permutation(len(y)), devices)


def by_id(ids: Any) -> list[Rows]:
    """One device for each distinct id (a writer, a hospital, a speaking role), in the order of the sorted ids."""
    owners = np.asarray(ids)
    if isinstance(ids, list | tuple) and owners.dtype.kind == "U":  # NumPy has made text of what is missing, too
        owners = np.asarray(ids, dtype=object)
    if owners.ndim != 1 or len(owners) == 0:
        raise InputError(f"ids of shape {owners.shape} are not accepted: give one id an example, in one dimension")
    import pandas as pd  # knows every way in which a value can be missing

    missing = np.flatnonzero(pd.isna(owners))
    if len(missing):
        raise InputError(
            f"ids[{missing[0]}] is missing ({owners[missing[0]]}), as are {len(missing)} of {len(owners)} in all: "
            "give every example an id, or leave the example out"
        )
    kinds = sorted({type(v).__name__ for v in owners}) if owners.dtype == object else []
    if len(kinds) > 1:
        raise InputError(f"ids of several types ({', '.join(kinds)}) are not accepted: give all as text, or as numbers")
    which, counts = np.unique(owners, return_inverse=True, return_counts=True)[1:]
    return np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])


@dataclass(frozen=True)
class NamedPartition:
    """A partition and a split by name, with all that any of them takes; checked before any data are read."""

    partition: str
    devices: int
    classes: int
    exponent: float
    concentration: float
    shards: int
    split: str
    test_share: float
    seed: int

    def __post_init__(self) -> None:
        checks.choice("partition", self.partition, NAMES)
        checks.integer("devices", self.devices, at_least=1)
        checks.integer("classes", self.classes, at_least=1)
        checks.number("exponent", self.exponent, at_least=1)
        checks.number("concentration", self.concentration, above=0)
        checks.integer("shards", self.shards, at_least=1)
        checks.choice("split", self.split, ORDERS)
        checks.number("test_share", self.test_share, above=0, below=1)
        checks.integer("seed", self.seed, at_least=0)

    def parts(self, labels: np.ndarray) -> list[Rows]:
        """The rows of each device."""
        if self.partition == "power_law":
            return power_law(labels, self.devices, self.classes, self.exponent, self.seed)
        if self.partition == "dirichlet":
            return dirichlet(labels, self.devices, self.concentration, self.seed)
        if self.partition == "shards":
            return shards(labels, self.devices, self.shards, self.seed)
        return iid(labels, self.devices, self.seed)

    def federate(self, x: np.ndarray, y: np.ndarray, **rest: Any) -> Federation:
        """The federation that the plan makes of the pooled examples."""
        parts = self.parts(y)
        return from_partition(x, y, parts, test_share=self.test_share, split=self.split, seed=self.seed, **rest)


def split(indices: Any, test_share: float = 0.2, order: str = "shuffled", seed: int = 1) -> tuple[Rows, Rows]:
    """One device's rows for training and for testing.

    "shuffled" draws the test rows at random; "ordered" takes the last ones, which in class order means mostly the
    device's last class. Two rows or more give at least one to each side; a single row is for training.
    """
    rows = np.asarray(indices)
    checks.choice("order", order, ORDERS)
    checks.integer("seed", seed, at_least=0)
    if rows.ndim != 1 or len(rows) == 0:
        raise InputError(f"indices of shape {rows.shape} are not accepted: give one or more, in one dimension")
    return divide(rows, test_share, order, seed)


def divide(rows: Rows, test_share: float, order: str, seed: int | list[int]) -> tuple[Rows, Rows]:
    """As `split`, of rows that have been checked; a list of numbers, such as seed and device, is a seed, too."""
    checks.number("test_share", test_share, above=0, below=1)
    if order == "shuffled":
        rows = np.random.default_rng(seed).permutation(rows)
    kept = int((1 - test_share) * len(rows) + 1e-9)  # so that 70 % of 10 is 7, in spite of binary fractions
    kept = max(1, min(kept, len(rows) - 1))
    return rows[:kept], rows[kept:]


def from_partition(
    x: Any,
    y: Any,
    parts: Sequence[Any],
    *,
    test_share: float = 0.2,
    split: str = "shuffled",
    seed: int = 1,
    classes: int | None = None,
    name: str = "custom",
    **rest: Any,
) -> Federation:
    """A federation from flat arrays and one array of row numbers per device, as this module's functions give them.

    Each device's rows are split for training and testing as in `split`. `classes` and further arguments (`shared`,
    `decode`, `augment`, `device_names`, `class_names`) are those of `Federation`.
    """
    examples, labels = numbers("the examples x", x), as_labels("the labels y", y)
    checks.integer("seed", seed, at_least=0)
    checks.choice("split", split, ORDERS)
    if examples.ndim == 0 or labels.ndim == 0 or len(examples) != len(labels):
        shapes = f"x of shape {examples.shape} does not match y of shape {labels.shape}"
        raise InputError(f"{shapes}: give one label per row")
    if len(parts) == 0:
        raise InputError("parts=[] is not accepted: give one array of row numbers per device")
    train, test = [], []
    owner = np.full(len(labels), -1)
    for device, part in enumerate(parts):
        rows = np.asarray(part)
        if rows.ndim != 1 or len(rows) == 0 or not np.issubdtype(rows.dtype, np.integer):
            raise InputError(f"parts[{device}] is not accepted: give one or more row numbers, in one dimension")
        if rows.min() < 0 or rows.max() >= len(labels):
            raise InputError(f"parts[{device}] has row numbers that are not among the {len(labels)} rows of x")
        _claim(owner, device, rows)
        kept, held_out = divide(rows, test_share, split, [seed, device])
        train.append(kept)
        test.append(held_out)
    return from_splits(
        _gather(examples, labels, train),
        _gather(examples, labels, test),
        classes=classes,
        name=name,
        ordered=split == "ordered",
        **rest,
    )


def _claim(owner: np.ndarray, device: int, rows: Rows) -> None:
    """A row belongs to one device, once: or else one device would be tested on what another is trained on."""
    taken = rows[owner[rows] >= 0]
    if len(taken):
        raise InputError(
            f"parts[{device}] and parts[{owner[taken[0]]}] both have row {taken[0]}: "
            "a row may belong to one device only"
        )
    owner[rows] = device
    values, counts = np.unique(rows, return_counts=True)
    if counts.max() > 1:
        raise InputError(f"parts[{device}] has row {values[counts.argmax()]} more than once: give each row once")


def _gather(x: np.ndarray, y: np.ndarray, parts: list[Rows]) -> Split:
    rows = np.concatenate(parts)
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Split(x[rows], y[rows], offsets)


def _labels(labels: Any, devices: object) -> np.ndarray:
    y = np.asarray(labels)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise InputError(
            f"labels of type {y.dtype} and shape {y.shape} are not accepted: give whole numbers in one dimension"
        )
    count = checks.integer("devices", devices, at_least=1)
    if count > len(y):
        raise InputError(f"devices={count} is more than the {len(y)} examples: every device needs at least one")
    return y
