"""Who trains in a round, on which rows, in which lane: drawn and laid out on the host.

Every draw is a function of (seed, purpose, round, device), never of what was drawn before, so that a resumed run draws
what an uninterrupted one would, and a real device can draw its own batches.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedbc.simulation.amounts import OnePerDevice, amounts_of, most

Array = np.ndarray

SAMPLE, SHUFFLE, INIT, NOISE, TUNE, AMOUNT = 1, 2, 3, 4, 5, 6
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


def shuffled_epochs(seed: int, round: int, devices: Array, examples: Array, epochs: int | Array) -> Array:
    """Permutations of each device's examples, one per epoch, device after device in one array.

    A permutation is the order of hashed numbers. They come from SplitMix64, started from a hash of (seed, purpose,
    round, device): a bit generator of NumPy's takes longer to set up than a small device's examples to shuffle. All
    devices are worked on at once, for many small arrays cost more time than their numbers.
    """
    epochs = np.broadcast_to(epochs, examples.shape)
    parts = np.repeat(examples, epochs)  # the sizes of the permutations
    ends = np.cumsum(parts)
    total = int(ends[-1]) if len(ends) else 0
    begins = (ends - parts).astype(np.uint64)
    place = np.arange(total, dtype=np.uint64)
    start = _starts(seed, SHUFFLE, round, devices) - _GOLDEN * (begins[np.cumsum(epochs) - epochs] - np.uint64(1))
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

    batch_size: examples per batch; the last batch of an epoch may be smaller. None is full-batch gradient descent.
    epochs: passes over the data; for full-batch descent, the number of steps K.
    per_step: mini-batches that one step of the method takes.
    fixed_steps: the number of local steps K in the place of `epochs`; the last epoch may then be cut off.

    Both may differ between devices and rounds (`fedbc.simulation.amounts`); the methods below take what `amounts` drew.
    """

    batch_size: int | None
    epochs: int | str | OnePerDevice = 1
    per_step: int = 1
    fixed_steps: int | str | OnePerDevice | None = None

    @property
    def amount(self) -> int | str | OnePerDevice:
        """Epochs, or steps where those are fixed."""
        return self.epochs if self.fixed_steps is None else self.fixed_steps

    def amounts(self, seed: int, round: int, devices: Array) -> Array:
        """The epochs, or the steps, of these devices in a round."""
        if isinstance(self.amount, int):
            return np.full(len(devices), self.amount)
        return amounts_of(self.amount, devices, _starts(seed, AMOUNT, round, devices))

    def steps(self, examples: Array, amounts: Array | int) -> Array:
        """The number of local steps of devices with these numbers of examples."""
        if self.batch_size is None or self.fixed_steps is not None:
            return np.broadcast_to(amounts, np.shape(examples))
        batches = amounts * -(-examples // self.batch_size)
        return -(-batches // self.per_step)

    def passes(self, examples: Array, amounts: Array | int) -> Array:
        """How many epochs they begin."""
        if self.fixed_steps is None or self.batch_size is None:
            return np.broadcast_to(amounts, np.shape(examples))
        return -(-(amounts * self.per_step) // -(-examples // self.batch_size))

    def table_rows(self, examples: Array, amounts: Array | int) -> Array:
        """The number of rows that such devices take in the table of row numbers."""
        if self.batch_size is None:
            return np.zeros_like(examples)
        return self.steps(examples, amounts) * self.per_step

    def table(self, seed: int, round: int, device: int, examples: int) -> Array:
        """A device's batches in a round: (rows, batch_size) example numbers, -1 where a batch is not full."""
        if self.batch_size is None:  # full-batch descent takes the data as they are
            return np.zeros((1, 1), np.int32)
        devices, sizes = np.asarray([device]), np.asarray([examples])
        amounts = self.amounts(seed, round, devices)
        table = np.full((int(self.table_rows(sizes, amounts)[0]), self.batch_size), -1, np.int32)
        orders = shuffled_epochs(seed, round, devices, sizes, self.passes(sizes, amounts))
        self.fill(table, orders, sizes, amounts, np.zeros(1, int))
        return table

    def fill(self, table: Array, orders: Array, examples: Array, amounts: Array, first: Array) -> None:
        """Cut devices' permutations, device after device in one array, into batches.

        table: (rows, batch_size), -1 all over; a device's batches begin in row `first`. If they do not fill the last
        step, it takes the device's first batches again.
        """
        assert self.batch_size is not None
        batches, passes = -(-examples // self.batch_size), self.passes(examples, amounts)
        parts = np.repeat(examples, passes)
        number = np.arange(len(parts)) - np.repeat(np.cumsum(passes) - passes, passes)  # of an epoch on its device
        begins = (np.repeat(first, passes) + np.repeat(batches, passes) * number) * self.batch_size
        shift = begins - (np.cumsum(parts) - parts)
        filled, rows = passes * batches, self.table_rows(examples, amounts)
        place = np.arange(len(orders)) + np.repeat(shift, parts)
        if (filled > rows).any():  # the last epoch is cut off
            kept = place < np.repeat((first + rows) * self.batch_size, passes * examples)
            place, orders = place[kept], orders[kept]
        table.reshape(-1)[place] = orders
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

    def __init__(
        self,
        offsets: Array,
        batching: Batching,
        *,
        sample: int | None,
        lanes: int,
        seed: int,
        owned: Array | None = None,
    ) -> None:
        """`owned` are the devices that train here, where other machines train the others; None is all of them."""
        self.offsets, self.batching, self.seed, self.lanes = offsets, batching, seed, lanes
        self.sizes = np.diff(offsets)
        self.population = len(self.sizes)
        self.sample = self.population if sample is None else sample
        self._is_own = None if owned is None else np.isin(np.arange(self.population), owned)
        # A lane takes at most 1.5 times its even share of the devices: the balance of work hardly suffers,
        # and the stack of device states that a lane carries stays small.
        self.depth = min(self.sample, -(-3 * self.sample // (2 * lanes)))
        self.length = self._longest_table()

    def only(self, devices: Array) -> None:
        """From now on plan for these devices alone, where they are drawn; what is drawn stays as it is."""
        chosen = np.isin(np.arange(self.population), devices)
        self._is_own = chosen if self._is_own is None else self._is_own & chosen

    def _longest_table(self) -> int:
        """A bound on the rows of any lane's table, for any draw of devices."""
        rows = self.batching.table_rows(self.sizes, most(self.batching.amount, self.population))
        heaviest = np.sort(rows)[::-1][: self.sample]
        # Longest first: a lane that gets a device is no fuller than the others before; the places' limit can add at
        # most the devices that a full lane turned away, which are the lightest.
        dealt = deal(heaviest, self.lanes, self.depth)
        bound = max(int(heaviest[dealt == lane].sum()) for lane in range(self.lanes))
        return max(1, bound, int(heaviest.sum()) // self.lanes + int(heaviest.max(initial=0)))

    def sampled(self, round: int) -> Array:
        """The devices that take part in a round, here or elsewhere, in ascending order."""
        return sample_devices(self.seed, round, self.population, self.sample)

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
        devices = self.sampled(round)
        if self._is_own is not None:
            devices = devices[self._is_own[devices]]
        examples = self.sizes[devices]
        amounts = self.batching.amounts(self.seed, round, devices)
        steps, rows = self.batching.steps(examples, amounts), self.batching.table_rows(examples, amounts)
        lane = deal(steps, self.lanes, self.depth)
        rows_before, place = _running(rows, lane, self.lanes)
        size = self.batching.batch_size
        first = self.offsets[devices] if size is None else rows_before
        if size is not None:
            assert (rows_before + rows <= self.length).all(), "a lane's table is too short"
            passes = self.batching.passes(examples, amounts)
            orders = shuffled_epochs(self.seed, round, devices, examples, passes)
            orders += np.repeat(self.offsets[devices].astype(np.int32), passes * examples)
            begins = (lane * tables.shape[1] + at) * self.length + rows_before
            self.batching.fill(tables.reshape(-1, size), orders, examples, amounts, begins)
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
