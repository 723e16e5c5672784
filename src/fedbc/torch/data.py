"""A device's batches as PyTorch takes them: the engine's rows, decoded, in the module's order of axes.

Decoding is the federation's own, in JAX. Where the decoded training set is not too large it is formed once; else, and
where batches are augmented, a device's batches are formed for each round and travel to its worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch

from fedbc.data.federation import as_stored
from fedbc.simulation import batches
from fedbc.simulation.amounts import most
from fedbc.simulation.device import LocalWork
from fedbc.simulation.schedule import Plan, Planner
from fedbc.torch import workers
from fedbc.torch.network import Network, joined_seed
from fedbc.torch.operations import Unknown
from fedbc.torch.oracle import Part

Array = np.ndarray
MOST_DECODED = 2**31
"""Bytes of a decoded training set that is kept whole."""
ROWS = 32
"""Rows of a device's table that are formed, or gathered, at once."""
DECODED_AT_ONCE = 4096


class DeviceData:
    """The training data, for workers."""

    def __init__(self, network: Network, work: LocalWork, planner: Planner, data: batches.Data, key: Any) -> None:
        self.network, self.planner = network, planner
        self.federation, self.batching = work.federation, work.batching
        self._data, self._key = data, key
        split = self.federation.train
        stored = jax.ShapeDtypeStruct((1, *split.x.shape[1:]), split.x.dtype)
        self.example = jax.eval_shape(self.federation.decode, self.federation.shared, stored)
        bytes = int(np.prod(self.example.shape)) * self.example.dtype.itemsize * len(split.y)
        self.formed_each_round = self.federation.augment is not None or bytes > MOST_DECODED
        if self.formed_each_round and self.batching.batch_size is None:
            raise Unknown("full batches that are augmented")
        y = torch.from_numpy(np.array(split.y))
        self.y = y if y.is_floating_point() else y.long()
        self.x = None if self.formed_each_round else torch.from_numpy(self._decoded())
        self.random = network.draws_numbers(self.example.shape[1:], self.example.dtype)
        self._form, self._whole_keys = jax.jit(self._formed), jax.jit(_whole_keys, static_argnums=(3, 4))

    def lay_out(self, layout: workers.Layout) -> None:
        """Room in a slot for a device's table, and its batches where they travel."""
        size = self.batching.batch_size
        if size is None:
            return
        rows = int(
            self.batching.table_rows(self.planner.sizes, most(self.batching.amount, self.planner.population)).max()
        )
        self._rows = -(-rows // ROWS) * ROWS
        self._table = layout.add((self._rows, size), np.int32)
        if self.formed_each_round:
            self._x = layout.add((self._rows, size, *self.example.shape[1:]), self.example.dtype)

    def _decoded(self) -> Array:
        """The whole training set."""
        split, decode = self.federation.train, jax.jit(self.federation.decode)
        if self.federation.decode is as_stored:
            return split.x if split.x.flags.writeable else np.array(split.x)  # PyTorch wants to be able to write
        first = np.asarray(decode(self._data.shared, split.x[:1]))
        decoded = np.empty((len(split.y), *first.shape[1:]), first.dtype)
        for begin in range(0, len(split.y), DECODED_AT_ONCE):
            part = split.x[begin : begin + DECODED_AT_ONCE]
            decoded[begin : begin + len(part)] = decode(self._data.shared, part)
        return decoded

    def _formed(
        self, data: batches.Data, table: Array, index: Any, first: Any, round: Any, key: Any
    ) -> tuple[Any, Any]:
        """The batches of some rows of a device's table from `first` on, and the keys of their random numbers."""
        device_key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), round), index)
        number, gather = self.batching.per_step, batches.gatherer(self.federation)

        def one(row: Any, at: Any) -> tuple[Any, Any]:
            step_key = jax.random.fold_in(device_key, at // number)
            batch = gather(data, row, jax.random.fold_in(step_key, at % number))
            return (batch.x if self.formed_each_round else 0), jax.random.key_data(batch.key)

        return jax.vmap(one)(table, first + np.arange(ROWS))

    def fill(self, slots: workers.Slots, slot: int, plan: Plan, lane: int, place: int) -> tuple[int, Array | None]:
        """Put a device's batches into a slot; how many rows they have, and their seeds."""
        if self.batching.batch_size is None:
            seeds = self._whole_seeds(plan, lane, place) if self.random else None
            return int(plan.examples[lane, place]), seeds
        rows = int(plan.steps[lane, place]) * self.batching.per_step
        table = slots.array(slot, self._table)
        table[:rows] = plan.rows[lane, plan.first[lane, place] :][:rows]
        table[rows : -(-rows // ROWS) * ROWS] = -1
        if not (self.random or self.formed_each_round):
            return rows, None
        keys = []
        for begin in range(0, rows, ROWS):
            part = table[begin : begin + ROWS]
            x, found = self._form(
                self._data, part, plan.devices[lane, place], np.int32(begin), np.int32(plan.round), self._key
            )
            if self.formed_each_round:
                slots.array(slot, self._x)[begin : begin + ROWS] = x
            keys.append(np.asarray(found))
        return rows, _seeds(np.concatenate(keys)[:rows])

    def _whole_seeds(self, plan: Plan, lane: int, place: int) -> Array:
        """The seeds of full-batch descent: (steps, parts)."""
        parts = -(-int(self.planner.sizes.max()) // batches.CHUNK)
        facts = (plan.round, plan.devices[lane, place])
        keys = np.asarray(self._whole_keys(self._key, *map(np.int32, facts), self.batching.epochs, parts))
        return _seeds(keys.reshape(-1, keys.shape[-1])).reshape(keys.shape[:2])

    # In a worker.

    def batches(
        self, slots: workers.Slots, slot: int, rows: int, first: int, steps: int, seeds: Array | None
    ) -> Iterator[list[Any]]:
        """What each step takes: for each of its batches the parts, and the number of examples."""
        number = self.batching.per_step
        if self.batching.batch_size is None:
            for step in range(steps):
                yield self._whole(first, rows, None if seeds is None else seeds[step].tolist()) * number
            return
        taken: list[Any] = []
        for part, size in self._rows_of(slots, slot, rows, seeds):
            taken += [[part], float(size)]
            if len(taken) == 2 * number:
                yield taken
                taken = []

    def _rows_of(self, slots: workers.Slots, slot: int, rows: int, seeds: Array | None) -> Iterator[tuple[Part, int]]:
        table = torch.from_numpy(slots.array(slot, self._table))
        for begin in range(0, rows, ROWS):
            here = table[begin : min(begin + ROWS, rows)]
            real = here >= 0
            sizes = real.sum(1).tolist()
            chosen = here[real].long()
            if self.x is not None:
                x = self.x[chosen]
            else:
                x = torch.from_numpy(slots.array(slot, self._x))[begin : begin + len(here)][real]
            together = zip(x.split(sizes), self.y[chosen].split(sizes), sizes, strict=True)
            for i, (some, labels, size) in enumerate(together):
                seed = None if seeds is None else int(seeds[begin + i])
                yield Part(some, labels, seed), size

    def _whole(self, first: int, examples: int, seeds: list[int] | None) -> list[Any]:
        """All of a device's examples, in parts."""
        assert self.x is not None
        parts = []
        for number, begin in enumerate(range(first, first + examples, batches.CHUNK)):
            end = min(begin + batches.CHUNK, first + examples)
            seed = None if seeds is None else seeds[number]
            parts.append(Part(self.x[begin:end], self.y[begin:end], seed, (end - begin) / examples))
        return [parts, float(examples)]


def _seeds(keys: Array) -> Array:
    """PyTorch's seeds for keys of JAX."""
    return np.asarray([joined_seed(key) for key in keys], np.int64)


def _whole_keys(key: Any, round: Any, index: Any, steps: int, parts: int) -> Any:
    """As `fedbc.simulation.batches.whole_loss_on` has them."""
    device_key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), round), index)

    def one(step: Any, part: Any) -> Any:
        return jax.random.key_data(jax.random.split(jax.random.fold_in(jax.random.fold_in(device_key, step), part))[1])

    return jax.vmap(lambda step: jax.vmap(lambda part: one(step, part))(np.arange(parts)))(np.arange(steps))
