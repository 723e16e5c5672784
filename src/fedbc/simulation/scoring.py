"""How well models answer: compiled scoring of one model on all examples, or of each device's model on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import trees
from fedbc.data.federation import Federation, Split
from fedbc.models.base import Model
from fedbc.rewriting import rewritten
from fedbc.simulation.batches import Data
from fedbc.simulation.lanes import Copies, Lanes
from fedbc.simulation.schedule import deal

Array = np.ndarray
CHUNK = 256
"""Rows that a lane answers at once, if few numbers each."""
CHUNK_NUMBERS = 1 << 17
"""Decoded numbers of such a chunk at most, so that the first layers' work on it stays in a core's cache: the CNN needs
a fifth less time."""
AT_ONCE = 4_000_000
"""One model answers all rows at once, in the asking thread, if rows times parameters are no more: to wake the lanes
takes longer than that."""


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


class Models(Protocol):
    """Which model answers for a device."""

    def inputs(self, places: Array) -> Any:
        """On the host: what the lanes need to form the models of (lanes, depth) devices, -1 where there is none."""

    def form(self, own: Any, z: Any, data: Data) -> Any:
        """In compiled code: the models of one lane's places, stacked; `data` is the split that models may adapt to."""


class Scorer:
    """Scores models on one split of a federation."""

    def __init__(self, model: Model, federation: Federation, split: Split, lanes: Lanes, depth: int) -> None:
        self.model, self.federation, self.split = model, federation, split
        self.lanes, self.depth = lanes, depth
        most = _rows_at_once(federation, split)
        self.size = _chunk_size(len(split.y), lanes.count, most)
        self.own_size = _chunk_size(int(split.sizes.max(initial=1)), 1, most)
        self.own_chunks = -(-split.sizes // self.own_size)
        self._own_length = max(1, int(np.sort(self.own_chunks)[::-1][:depth].sum()))
        self.all_rows = self._spread_all_rows()
        self._one = lanes.compiled(
            lambda chunks, z, data: self._lane(chunks, jax.tree.map(lambda a: a[None], z), data, self.size)
        )
        self._at_once = jax.jit(rewritten(self._answers))

    def one(self, z: Copies, data: Copies) -> tuple[Array, Array]:
        """One model on all rows: (right answers, losses), one value per row."""
        if trees.size(z[0]) * len(self.split.y) <= AT_ONCE:
            answers = self._at_once(z[0], data[0].shared, data[0].x, data[0].y)
            return np.asarray(answers[0]), np.asarray(answers[1])
        right, loss = zip(*self._one(self.all_rows, z, data), strict=True)
        rows = len(self.split.y)
        return _joined(right).reshape(-1)[:rows], _joined(loss).reshape(-1)[:rows]

    def by_device(self, right: Array, loss: Array, split: Split | None = None) -> Sums:
        """Sum one value per row over each device's rows; `split` may divide the same rows in another way."""
        split = split or self.split
        return Sums(_segment_sums(right, split.offsets), _segment_sums(loss, split.offsets), split.sizes)

    def own(self, models: Models) -> Callable[..., Sums]:
        """A function that scores devices' own models: (devices, z, data, data to adapt to) to Sums."""
        score = self.own_rows(models)

        def summed(devices: Array, z: Copies, data: Copies, adapt_to: Copies) -> Sums:
            sums = self.by_device(*score(devices, z, data, adapt_to))
            return Sums(*(part[devices] for part in sums))

        return summed

    def own_rows(self, models: Models) -> Callable[..., tuple[Array, Array]]:
        """The same, with one value per row: (right answers, losses); 0 in the rows of other devices."""

        def lane(own: Any, z: Any, data: Data, adapt_to: Data) -> tuple[Any, Any]:
            chunks, inputs = own
            return self._lane(chunks, models.form(inputs, z, adapt_to), data, self.own_size)

        compiled = self.lanes.compiled(lane)

        def score(devices: Array, z: Copies, data: Copies, adapt_to: Copies) -> tuple[Array, Array]:
            right, loss = np.zeros(len(self.split.y)), np.zeros(len(self.split.y))
            lanes, at_once = self.lanes.count, self.lanes.count * self.depth
            for begin in range(0, len(devices), at_once):
                part = np.arange(begin, min(begin + at_once, len(devices)))
                lane_of = deal(self.own_chunks[devices[part]], lanes, self.depth)
                places = np.full((lanes, self.depth), -1)
                chunks = _empty_chunks(lanes, self._own_length)
                for i in range(lanes):
                    members = part[lane_of == i]
                    places[i, : len(members)] = devices[members]
                    self._fill_lane(chunks, i, devices[members])
                r, v = zip(*compiled((chunks, models.inputs(places)), z, data, adapt_to), strict=True)
                in_rows = np.arange(self.own_size)
                used = chunks.start[..., None] + in_rows < chunks.stop[..., None]
                rows = (chunks.start[..., None] + in_rows)[used]
                right[rows], loss[rows] = _joined(r)[used], _joined(v)[used]
            return right, loss

        return score

    def _fill_lane(self, chunks: Chunks, lane: int, devices: Array) -> None:
        """Lay out one lane's devices as chunks that never span two devices."""
        end = 0
        for place, device in enumerate(devices):
            first, last = self.split.offsets[device], self.split.offsets[device + 1]
            starts = np.arange(first, last, self.own_size)
            here = slice(end, end + len(starts))
            chunks.model[lane, here] = place
            chunks.start[lane, here] = starts
            chunks.stop[lane, here] = np.minimum(starts + self.own_size, last)
            end += len(starts)
        chunks.number[lane] = end

    def _spread_all_rows(self) -> Chunks:
        rows = len(self.split.y)
        number = -(-rows // self.size)
        lanes = self.lanes.count
        length = max(1, -(-number // lanes))
        chunks = _empty_chunks(lanes, length)
        start = (np.arange(lanes * length) * self.size).reshape(lanes, length)
        chunks.start[:] = np.minimum(start, rows)
        chunks.stop[:] = np.minimum(start + self.size, rows)
        chunks.number[:] = (start < rows).sum(1)
        return chunks

    def _answers(self, params: Any, shared: Any, x: Any, y: Any) -> tuple[Any, Any]:
        """Whether each example is answered rightly, and its loss."""
        outputs = self.model.outputs(params, self.federation.decode(shared, x))
        right = self.model.correct(outputs, y) if self.model.correct else jnp.zeros(len(y), bool)
        return right, self.model.loss(outputs, y)

    def _lane(self, chunks: Chunks, models: Any, data: Data, size: int) -> tuple[Any, Any]:
        dtype = jax.tree.leaves(self.model.trained(models))[0].dtype
        last_row = data.y.shape[0] - 1

        def chunk(c: Any, sofar: tuple[Any, Any]) -> tuple[Any, Any]:
            params = jax.tree.map(lambda a: a[chunks.model[c]], models)
            rows = chunks.start[c] + jnp.arange(size)
            real = rows < chunks.stop[c]
            rows = jnp.minimum(rows, last_row)
            right, loss = self._answers(params, data.shared, data.x[rows], data.y[rows])
            return sofar[0].at[c].set(right & real), sofar[1].at[c].set(jnp.where(real, loss, 0))

        length = chunks.start.shape[0]
        empty = jnp.zeros((length, size), bool), jnp.zeros((length, size), dtype)
        return jax.lax.fori_loop(0, chunks.number, chunk, empty)


class StoredModels:
    """The local models of a finished run; z for a device that never took part."""

    def __init__(self, devices: int) -> None:
        self.slot = np.full(devices, -1)
        self.stack: Any = None

    def put(self, stack: Any, participants: Array) -> None:
        """Take the models of these devices, in the same order."""
        self.stack = jax.tree.map(np.asarray, stack)
        self.slot[:] = -1
        self.slot[participants] = np.arange(len(participants))

    def inputs(self, places: Array) -> Any:
        """Their rows of the stack, and whether a device has none."""
        slots = np.where(places >= 0, self.slot[places], -1)
        return jax.tree.map(lambda a: a[np.maximum(slots, 0)], self.stack), slots < 0

    def form(self, own: Any, z: Any, data: Data) -> Any:
        """The models of one lane's places."""
        del data
        models, fresh = own
        return jax.tree.map(lambda x, zz: jnp.where(fresh.reshape(-1, *(1,) * zz.ndim), zz, x), models, z)


def _joined(parts: tuple[Any, ...]) -> Array:
    """The threads' outcomes as one array of the host."""
    return np.concatenate([np.asarray(part) for part in parts])


def _rows_at_once(federation: Federation, split: Split) -> int:
    """CHUNK rows, or as many as CHUNK_NUMBERS allows; a power of two."""
    stored = jax.ShapeDtypeStruct((1, *split.x.shape[1:]), split.x.dtype)
    numbers = trees.size(jax.eval_shape(federation.decode, federation.shared, stored))
    rows = max(1, CHUNK_NUMBERS // max(1, numbers))
    return min(CHUNK, 1 << (rows.bit_length() - 1))


def _chunk_size(rows: int, lanes: int, most: int) -> int:
    """At most so many rows at once; less where there are fewer, a power of two to keep shapes few."""
    share = max(1, -(-rows // lanes))
    return int(min(most, 2 ** int(np.ceil(np.log2(share)))))


def _empty_chunks(lanes: int, length: int) -> Chunks:
    model, start, stop = (np.zeros((lanes, length), np.int32) for _ in range(3))
    return Chunks(model, start, stop, np.zeros(lanes, np.int32))


def _segment_sums(values: Array, offsets: Array) -> Array:
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, float))])
    return sums[offsets[1:]] - sums[offsets[:-1]]


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.full(len(a), np.nan), where=b > 0)
