"""Who trains in a round, on which rows, in which lane: drawn and laid out on the host.

Every draw is a function of (seed, purpose, round, device), never of what was drawn before, so that a resumed run draws
what an uninterrupted one would, and a real device can draw its own batches.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def shuffled_epochs(seed: int, round: int, devices: Array, examples: Array, epochs: int) -> list[Array]:
    """For each device one permutation of its examples an epoch, as (epochs, examples).

    A permutation is the order of hashed numbers. They come from SplitMix64, started from a hash of (seed, purpose,
    round, device): a bit generator of NumPy's takes longer to set up than a small device's examples to shuffle.
    """
    ends = np.cumsum(epochs * examples).tolist()
    numbers = np.empty(ends[-1] if ends else 0, np.uint64)
    ramp = _GOLDEN * np.arange(1, epochs * int(examples.max(initial=0)) + 1, dtype=np.uint64)
    parts = []
    for start, begin, end in zip(_hashed(seed, SHUFFLE, round, devices), [0, *ends], ends, strict=False):
        part = numbers[begin:end]
        np.add(ramp[: end - begin], start, out=part)
        parts.append(part)
    _mix(numbers)
    return [_order(part.reshape(epochs, -1)) for part in parts]


def _order(numbers: Array) -> Array:
    """In which order the numbers of each row are, up to their lowest bits; changes `numbers`."""
    count = numbers.shape[1]
    # The place of a number takes its lowest bits, so that sorting carries it along; this is faster than argsort.
    low = np.uint64((1 << int(count - 1).bit_length()) - 1)
    numbers &= ~low
    numbers |= np.arange(count, dtype=np.uint64)
    numbers.sort(axis=1)
    numbers &= low
    return numbers.astype(np.int32)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Array) -> None:
    """SplitMix64's output function (Steele, Lea, Flood 2014), in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)


def _hashed(seed: int, purpose: int, round: int, devices: Array) -> Array:
    """A number for each device that depends on everything."""
    state = np.zeros(len(devices), np.uint64)
    for part in (seed % 2**64, purpose, round, devices):
        state ^= np.asarray(part, np.uint64)
        state += _GOLDEN
        _mix(state)
    return state


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
        (order,) = shuffled_epochs(seed, round, np.asarray([device]), np.asarray([examples]), self.epochs)
        table = np.full((int(self.table_rows(np.asarray(examples))), self.batch_size or 1), -1, np.int32)
        self.lay(order, table)
        return table

    def lay(self, order: Array, table: Array) -> None:
        """Cut (epochs, examples) numbers into the rows of a table that is -1 all over.

        If the batches do not fill the last step, it takes the device's first batches again.
        """
        assert self.batch_size is not None
        epochs, examples = order.shape
        batches = -(-examples // self.batch_size)
        filled = epochs * batches
        table[:filled].reshape(epochs, batches * self.batch_size)[:, :examples] = order
        if filled < len(table):
            table[filled:] = np.resize(table[:filled], (len(table) - filled, self.batch_size))


@dataclass(frozen=True)
class Plan:
    """One round: the sampled devices dealt to lanes. Arrays of shape (lanes, places) are -1 where a place is empty."""

    round: int
    devices: Array
    counts: Array
    """how many places of each lane are taken"""
    examples: Array
    steps: Array
    first: Array
    """a device's first row in the lane's table; for full-batch descent, its first row in the data"""
    rows: Array
    """(lanes, length, batch_size): row numbers of the training data, -1 where a batch is not full"""

    @property
    def places(self) -> tuple[Array, Array]:
        """Lane and place of each sampled device, in ascending order of devices."""
        lane, place = np.nonzero(self.devices >= 0)
        order = np.argsort(self.devices[lane, place])
        return lane[order], place[order]


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

    def plan(self, round: int) -> Plan:
        """The plan of one round."""
        devices = sample_devices(self.seed, round, self.population, self.sample)
        examples = self.sizes[devices]
        steps = self.batching.steps(examples)
        dealt = deal(steps, self.lanes, self.depth)
        index, n, k, first = (np.full((self.lanes, self.depth), fill, np.int32) for fill in (-1, 0, 0, 0))
        size = self.batching.batch_size
        rows = np.full((self.lanes, self.length if size else 1, size or 1), -1, np.int32)
        orders = shuffled_epochs(self.seed, round, devices, examples, self.batching.epochs) if size else []
        taken = self.batching.table_rows(examples)
        for lane in range(self.lanes):
            members = np.flatnonzero(dealt == lane)
            here = slice(len(members))
            index[lane, here], n[lane, here], k[lane, here] = devices[members], examples[members], steps[members]
            if size is None:
                first[lane, here] = self.offsets[devices[members]]
                continue
            ends = np.cumsum(taken[members])
            first[lane, here] = ends - taken[members]
            for member, begin, end in zip(members.tolist(), first[lane].tolist(), ends.tolist(), strict=False):
                order = orders[member]
                order += self.offsets[devices[member]]
                self.batching.lay(order, rows[lane, begin:end])
        return Plan(round, index, np.bincount(dealt, minlength=self.lanes), n, k, first, rows)


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
