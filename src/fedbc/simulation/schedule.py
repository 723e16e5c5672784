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


def shuffled_epochs(seed: int, round: int, device: int, examples: int, epochs: int) -> Array:
    """One permutation of a device's examples an epoch, as (epochs, examples)."""
    order = np.tile(np.arange(examples, dtype=np.int32), (epochs, 1))
    return generator(seed, SHUFFLE, round, device).permuted(order, axis=1)


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
        """A device's batches in a round: (rows, batch_size) example numbers, -1 where a batch is not full.

        If the batches do not fill the last step, it takes the device's first batches again.
        """
        assert self.batch_size is not None
        batches = -(-examples // self.batch_size)
        table = np.full((self.epochs, batches * self.batch_size), -1, np.int32)
        table[:, :examples] = shuffled_epochs(seed, round, device, examples, self.epochs)
        table = table.reshape(self.epochs * batches, self.batch_size)
        missing = -len(table) % self.per_step
        return table if missing == 0 else np.concatenate([table, np.resize(table, (missing, self.batch_size))])


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
        shape = (self.lanes, self.depth)
        index, n, k, first = (np.full(shape, fill, np.int32) for fill in (-1, 0, 0, 0))
        size = self.batching.batch_size
        rows = (
            np.full((self.lanes, self.length, size or 1), -1, np.int32) if size else np.zeros((self.lanes, 1, 1), "i4")
        )
        counts = np.zeros(self.lanes, np.int32)
        for lane in range(self.lanes):
            end = 0
            members = np.flatnonzero(dealt == lane)
            counts[lane] = len(members)
            for place, member in enumerate(members):
                device = int(devices[member])
                index[lane, place], n[lane, place], k[lane, place] = device, examples[member], steps[member]
                if size is None:
                    first[lane, place] = self.offsets[device]
                    continue
                table = self.batching.table(self.seed, round, device, int(examples[member]))
                np.add(table, self.offsets[device], out=table, where=table >= 0)
                first[lane, place] = end
                rows[lane, end : end + len(table)] = table
                end += len(table)
        return Plan(round, index, counts, n, k, first, rows)


def deal(work: Array, lanes: int, depth: int) -> Array:
    """Deal pieces of work to lanes, longest first, each to the lane with the least so far; at most `depth` a lane.

    Returns the lane of each piece. Ties are broken by order, so that the result is a function of its arguments.
    """
    lane_of = np.zeros(len(work), int)
    load, taken = np.zeros(lanes), np.zeros(lanes, int)
    for piece in np.argsort(-work, kind="stable"):
        lane = int(np.argmin(np.where(taken < depth, load, np.inf)))
        lane_of[piece] = lane
        load[lane] += work[piece]
        taken[lane] += 1
    return lane_of
