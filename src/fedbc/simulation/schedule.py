"""Who trains in a round, on which rows, in which lane: drawn and laid out on the host.

Every draw is a function of (seed, purpose, round, device), never of what was drawn before, so that a resumed run draws
what an uninterrupted one would, and a real device can draw its own batches.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Array = np.ndarray

SAMPLE, SHUFFLE, INIT, NOISE, TUNE = 1, 2, 3, 4, 5
"""Purposes of random numbers: each has a stream of its own."""


def generator(seed: int, purpose: int, *rest: int) -> np.random.Generator:
    """The generator for one purpose (and round, and device) of a run."""
    return np.random.default_rng([seed, purpose, *rest])


def sample_devices(seed: int, round: int, population: int, sample: int | None) -> Array:
    """The devices that take part in a round, uniformly without replacement, in ascending order; None means all."""
    if sample is None or sample == population:
        return np.arange(population)
    # shuffle=False draws in time and memory that depend on the sample only, not on the population.
    return np.sort(generator(seed, SAMPLE, round).choice(population, sample, replace=False, shuffle=False))


def shuffled_epochs(seed: int, round: int, devices: Array, examples: Array, epochs: int) -> Array:
    """Permutations of each device's examples, one an epoch, device after device in one array.

    A permutation is the order of hashed numbers. They come from SplitMix64, started from a hash of (seed, purpose,
    round, device): a bit generator of NumPy's takes longer to set up than a small device's examples to shuffle. All
    devices are worked on at once, for many small arrays cost more time than their numbers.
    """
    parts = np.repeat(examples, epochs)  # the sizes of the permutations
    ends = np.cumsum(parts)
    total = int(ends[-1]) if len(ends) else 0
    begins = (ends - parts).astype(np.uint64)
    place = np.arange(total, dtype=np.uint64)
    start = _starts(seed, SHUFFLE, round, devices) - _GOLDEN * (begins[::epochs] - np.uint64(1))
    numbers = _GOLDEN * place
    numbers += np.repeat(start, epochs * examples)
    _mix(numbers)
    # The upper half of a number decides. Its place takes the bits below, so that sorting carries it along; the number
    # of the permutation takes those above if all are sorted at once.
    below = np.uint64(int(parts.max(initial=1) - 1).bit_length())
    numbers >>= np.uint64(32)
    numbers <<= below
    together = total <= SORTED_AT_ONCE
    above = np.arange(len(parts), dtype=np.uint64) << (below + np.uint64(32)) if together else np.uint64(0)
    place += np.repeat(above - begins, parts)
    numbers |= place
    if together:
        numbers.sort()
    else:
        for begin, end in zip((ends - parts).tolist(), ends.tolist(), strict=True):
            numbers[begin:end].sort()
    numbers &= (np.uint64(1) << below) - np.uint64(1)
    return numbers.astype(np.int32)


SORTED_AT_ONCE = 2**15  # numbers; more of them are sorted faster in parts

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Array) -> None:
    """SplitMix64's output function (Steele, Lea, Flood 2014), in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)


def _starts(seed: int, purpose: int, round: int, devices: Array) -> Array:
    """Where each device's stream starts: its number in the stream of (seed, purpose, round)."""
    digest = hashlib.blake2b(f"{seed} {purpose} {round}".encode(), digest_size=8).digest()
    starts = _GOLDEN * (devices.astype(np.uint64) + np.uint64(1))
    starts += np.frombuffer(digest, "<u8")
    _mix(starts)
    return starts


@dataclass(frozen=True)
class Batching:
    """How devices cut their examples into batches.

    batch_size: examples a batch; the last batch of an epoch may be smaller. None is full-batch gradient descent.
    epochs: passes over the data; for full-batch descent, the number of steps K.
    per_step: mini-batches that one step of the method takes.
    """

    batch_size: int | None
    epochs: int
    per_step: int = 1

    def steps(self, examples: Array) -> Array:
        """The number of local steps of devices with these numbers of examples."""
        if self.batch_size is None:
            return np.full_like(examples, self.epochs)
        batches = self.epochs * -(-examples // self.batch_size)
        return -(-batches // self.per_step)

    def table_rows(self, examples: Array) -> Array:
        """The number of rows that such devices take in the table of row numbers."""
        if self.batch_size is None:
            return np.zeros_like(examples)
        return self.steps(examples) * self.per_step

    def table(self, seed: int, round: int, device: int, examples: int) -> Array:
        """A device's batches in a round: (rows, batch_size) example numbers, -1 where a batch is not full."""
        assert self.batch_size is not None
        devices, sizes = np.asarray([device]), np.asarray([examples])
        table = np.full((int(self.table_rows(sizes)[0]), self.batch_size), -1, np.int32)
        self.fill(table, shuffled_epochs(seed, round, devices, sizes, self.epochs), sizes, np.zeros(1, int))
        return table

    def fill(self, table: Array, orders: Array, examples: Array, first: Array) -> None:
        """Cut devices' permutations, device after device in one array, into batches.

        table: (rows, batch_size), -1 all over; a device's batches begin in row `first`. If they do not fill the last
        step, it takes the device's first batches again.
        """
        assert self.batch_size is not None
        batches = -(-examples // self.batch_size)
        parts = np.repeat(examples, self.epochs)
        begins = (first[:, None] + batches[:, None] * np.arange(self.epochs)) * self.batch_size
        shift = begins.ravel() - (np.cumsum(parts) - parts)
        table.reshape(-1)[np.arange(len(orders)) + np.repeat(shift, parts)] = orders
        filled, rows = self.epochs * batches, self.table_rows(examples)
        for device in np.flatnonzero(filled < rows):
            own = table[first[device] :][: rows[device]]
            own[filled[device] :] = np.resize(own[: filled[device]], own[filled[device] :].shape)


@dataclass(frozen=True)
class Plan:
    """One round: the sampled devices dealt to lanes. Arrays of shape (lanes, places) are -1 where a place is empty."""

    round: int
    devices: Array
    examples: Array
    steps: Array
    first: Array
    """a device's first row in the lane's table; for full-batch descent, its first row in the data"""
    rows: Array
    """(lanes, length, batch_size): row numbers of the training data, -1 where a batch is not full"""
    places: tuple[Array, Array]
    """lane and place of each sampled device, in ascending order of devices"""


class Plans(NamedTuple):
    """The plans of rounds in succession."""

    rounds: list[Plan]
    rows: Array
    """(lanes, room, length, batch_size): the plans' `rows`; -1 where there is room for more of them"""


class Planner:
    """Plans rounds. All plans of a run have the same array shapes, whichever devices are drawn."""

    def __init__(self, offsets: Array, batching: Batching, *, sample: int | None, lanes: int, seed: int) -> None:
        self.offsets, self.batching, self.seed, self.lanes = offsets, batching, seed, lanes
        self.sizes = np.diff(offsets)
        self.population = len(self.sizes)
        self.sample = self.population if sample is None else sample
        # A lane takes at most 1.5 times its even share of the devices: the balance of work hardly suffers,
        # and the stack of device states that a lane carries stays small.
        self.depth = min(self.sample, -(-3 * self.sample // (2 * lanes)))
        self.length = self._longest_table()

    def _longest_table(self) -> int:
        """A bound on the rows of any lane's table, for any draw of devices."""
        rows = self.batching.table_rows(self.sizes)
        heaviest = np.sort(rows)[::-1][: self.sample]
        # Longest first: a lane that gets a device is no fuller than the others before; the places' limit can add at
        # most the devices that a full lane turned away, which are the lightest.
        dealt = deal(heaviest, self.lanes, self.depth)
        bound = max(int(heaviest[dealt == lane].sum()) for lane in range(self.lanes))
        return max(1, bound, int(heaviest.sum()) // self.lanes + int(heaviest.max(initial=0)))

    @property
    def table_shape(self) -> tuple[int, int, int]:
        """Of a plan's `rows`."""
        size = self.batching.batch_size
        return self.lanes, self.length if size else 1, size or 1

    def plan(self, round: int) -> Plan:
        """The plan of one round."""
        return self.plans(round, 1, room=1).rounds[0]

    def plans(self, first: int, count: int, *, room: int) -> Plans:
        """The plans of `count` rounds, from round `first` on, in arrays with room for so many."""
        lanes, length, size = self.table_shape
        table = np.full((lanes, room, length, size), -1, np.int32)
        return Plans([self._plan(first + i, table, i) for i in range(count)], table)

    def _plan(self, round: int, tables: Array, at: int) -> Plan:
        devices = sample_devices(self.seed, round, self.population, self.sample)
        examples = self.sizes[devices]
        steps = self.batching.steps(examples)
        lane = deal(steps, self.lanes, self.depth)
        rows_before, place = _running(self.batching.table_rows(examples), lane, self.lanes)
        size = self.batching.batch_size
        first = self.offsets[devices] if size is None else rows_before
        if size is not None:
            orders = shuffled_epochs(self.seed, round, devices, examples, self.batching.epochs)
            orders += np.repeat(self.offsets[devices].astype(np.int32), self.batching.epochs * examples)
            begins = (lane * tables.shape[1] + at) * self.length + rows_before
            self.batching.fill(tables.reshape(-1, size), orders, examples, begins)
        facts = np.zeros((4, self.lanes, self.depth), np.int32)
        facts[0] = -1
        facts[:, lane, place] = devices, examples, steps, first
        return Plan(round, facts[0], facts[1], facts[2], facts[3], tables[:, at], (lane, place))


def _running(amounts: Array, lane_of: Array, lanes: int) -> tuple[Array, Array]:
    """For each piece, the sum and the number of those before it in its lane."""
    sums, numbers = [0] * lanes, [0] * lanes
    before = []
    for amount, lane in zip(amounts.tolist(), lane_of.tolist(), strict=True):
        before.append((sums[lane], numbers[lane]))
        sums[lane] += amount
        numbers[lane] += 1
    sum_before, number_before = np.asarray(before, int).reshape(-1, 2).T
    return sum_before, number_before


def deal(work: Array, lanes: int, depth: int) -> Array:
    """Deal pieces of work to lanes, longest first, each to the lane with the least so far; at most `depth` a lane.

    Returns the lane of each piece. Ties are broken by order, so that the result is a function of its arguments.
    """
    lane_of = np.zeros(len(work), int)
    # Plain numbers: for the few pieces of a round they are faster than arrays.
    pieces, loads, room = work.tolist(), [0] * lanes, [depth] * lanes
    for piece in np.argsort(-work, kind="stable").tolist():
        lane = min((i for i in range(lanes) if room[i]), key=loads.__getitem__)
        lane_of[piece] = lane
        loads[lane] += pieces[piece]
        room[lane] -= 1
    return lane_of
