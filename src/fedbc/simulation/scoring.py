"""How well models answer: compiled scoring of one model on all examples, or of each device's model on its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedbc.data.federation import Federation, Split
from fedbc.models.base import Model
from fedbc.simulation.batches import Data
from fedbc.simulation.schedule import deal

Array = np.ndarray
CHUNK = 256


class Sums(NamedTuple):
    """Scores summed over each device's examples."""

    correct: Array
    loss: Array
    examples: Array

    @property
    def accuracy(self) -> Array:
        """The share of right answers on each device; NaN where a device has no examples."""
        return _ratio(self.correct, self.examples)

    @property
    def mean_loss(self) -> Array:
        """The mean loss on each device."""
        return _ratio(self.loss, self.examples)


class Chunks(NamedTuple):
    """Work for the lanes: which model answers rows start..stop; shape (lanes, length), `number` of them in use."""

    model: Array
    start: Array
    stop: Array
    number: Array


class Scorer:
    """Scores models on one split of a federation."""

    def __init__(self, model: Model, federation: Federation, split: Split, mesh: Mesh, lanes: int, depth: int) -> None:
        self.model, self.federation, self.split = model, federation, split
        self.mesh, self.lanes, self.depth = mesh, lanes, depth
        self.size = _chunk_size(len(split.y), lanes)
        self.own_size = _chunk_size(int(split.sizes.max(initial=1)), 1)
        self.own_chunks = -(-split.sizes // self.own_size)
        self._own_length = max(1, int(np.sort(self.own_chunks)[::-1][:depth].sum()))
        self.all_rows = self._spread_all_rows()
        self._compiled = jax.jit(self._on_lanes, static_argnames="size")

    def one(self, params: Any, data: Data) -> tuple[Array, Array]:
        """One model on all rows: (right answers, losses), one value a row."""
        stacked = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.lanes, 1, *a.shape)), params)
        right, loss = self._run(stacked, self.all_rows, data, self.size)
        rows = len(self.split.y)
        return np.asarray(right).reshape(-1)[:rows], np.asarray(loss).reshape(-1)[:rows]

    def by_device(self, right: Array, loss: Array, split: Split | None = None) -> Sums:
        """Sum one value a row over each device's rows; `split` may divide the same rows in another way."""
        split = split or self.split
        return Sums(_segment_sums(right, split.offsets), _segment_sums(loss, split.offsets), split.sizes)

    def own(self, states_of: Any, devices: Array, data: Data) -> Sums:
        """Each device's own model on its own rows; `states_of(places)` gives the models for (lanes, depth) devices."""
        right, loss = np.zeros(len(devices)), np.zeros(len(devices))
        for begin in range(0, len(devices), self.lanes * self.depth):
            part = np.arange(begin, min(begin + self.lanes * self.depth, len(devices)))
            lane_of = deal(self.own_chunks[devices[part]], self.lanes, self.depth)
            places = np.full((self.lanes, self.depth), -1)
            chunks = _empty_chunks(self.lanes, self._own_length)
            owner = np.full((self.lanes, self._own_length), -1)
            for lane in range(self.lanes):
                members = part[lane_of == lane]
                places[lane, : len(members)] = devices[members]
                self._fill_lane(chunks, owner, lane, members, devices[members])
            r, v = self._run(states_of(places), chunks, data, self.own_size)
            used = owner >= 0
            np.add.at(right, owner[used], np.asarray(r, float).sum(-1)[used])
            np.add.at(loss, owner[used], np.asarray(v, float).sum(-1)[used])
        return Sums(right, loss, self.split.sizes[devices])

    def _fill_lane(self, chunks: Chunks, owner: Array, lane: int, members: Array, devices: Array) -> None:
        """Lay out one lane's devices as chunks that never span two devices."""
        end = 0
        for place, (member, device) in enumerate(zip(members, devices, strict=True)):
            first, last = self.split.offsets[device], self.split.offsets[device + 1]
            starts = np.arange(first, last, self.own_size)
            here = slice(end, end + len(starts))
            chunks.model[lane, here] = place
            chunks.start[lane, here] = starts
            chunks.stop[lane, here] = np.minimum(starts + self.own_size, last)
            owner[lane, here] = member
            end += len(starts)
        chunks.number[lane] = end

    def _spread_all_rows(self) -> Chunks:
        rows = len(self.split.y)
        number = -(-rows // self.size)
        length = max(1, -(-number // self.lanes))
        chunks = _empty_chunks(self.lanes, length)
        start = (np.arange(self.lanes * length) * self.size).reshape(self.lanes, length)
        chunks.start[:] = np.minimum(start, rows)
        chunks.stop[:] = np.minimum(start + self.size, rows)
        chunks.number[:] = (start < rows).sum(1)
        return chunks

    def _run(self, models: Any, chunks: Chunks, data: Data, size: int) -> tuple[Any, Any]:
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            lanes = [self._lane(nth(i, models), nth(i, chunks), data, size) for i in range(self.lanes)]
            return tuple(jnp.stack(parts) for parts in zip(*lanes, strict=True))  # type: ignore[return-value]
        return self._compiled(models, chunks, data, size=size)

    def _on_lanes(self, models: Any, chunks: Chunks, data: Data, *, size: int) -> Any:
        def on_device(models: Any, chunks: Chunks, data: Data) -> Any:
            return jax.vmap(lambda m, c: self._lane(m, c, data, size))(models, chunks)

        lane = PartitionSpec("lane")
        return jax.shard_map(
            on_device, mesh=self.mesh, in_specs=(lane, lane, PartitionSpec()), out_specs=lane, check_vma=False
        )(models, chunks, data)

    def _lane(self, models: Any, chunks: Chunks, data: Data, size: int) -> tuple[Any, Any]:
        dtype = jax.tree.leaves(models)[0].dtype
        last_row = data.y.shape[0] - 1

        def chunk(c: Any, sofar: tuple[Any, Any]) -> tuple[Any, Any]:
            params = jax.tree.map(lambda a: a[chunks.model[c]], models)
            rows = chunks.start[c] + jnp.arange(size)
            real = rows < chunks.stop[c]
            rows = jnp.minimum(rows, last_row)
            x, y = self.federation.decode(data.shared, data.x[rows]), data.y[rows]
            outputs = self.model.outputs(params, x)
            loss = jnp.where(real, self.model.loss(outputs, y), 0)
            right = self.model.correct(outputs, y) & real if self.model.correct else jnp.zeros(size, bool)
            return sofar[0].at[c].set(right), sofar[1].at[c].set(loss)

        length = chunks.start.shape[0]
        empty = jnp.zeros((length, size), bool), jnp.zeros((length, size), dtype)
        return jax.lax.fori_loop(0, chunks.number, chunk, empty)


def nth(i: int, tree: Any) -> Any:
    """Entry i of every leaf."""
    return jax.tree.map(lambda a: a[i], tree)


def _chunk_size(rows: int, lanes: int) -> int:
    """At most CHUNK rows at once; less where there are fewer, a power of two to keep shapes few."""
    share = max(1, -(-rows // lanes))
    return int(min(CHUNK, 2 ** int(np.ceil(np.log2(share)))))


def _empty_chunks(lanes: int, length: int) -> Chunks:
    model, start, stop = (np.zeros((lanes, length), np.int32) for _ in range(3))
    return Chunks(model, start, stop, np.zeros(lanes, np.int32))


def _segment_sums(values: Array, offsets: Array) -> Array:
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, float))])
    return sums[offsets[1:]] - sums[offsets[:-1]]


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.full(len(a), np.nan), where=b > 0)
