"""From row numbers to a loss: how a batch is gathered inside the compiled step, and f_i on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbc.data.federation import Federation
from fedbc.models.base import Model, Params

Array = jax.Array
CHUNK = 256
"""Examples that full-batch descent takes at once."""


class Data(NamedTuple):
    """A split's arrays where the compiled code reads them, with the federation's shared arrays."""

    x: Any
    y: Any
    shared: Any


class Batch(NamedTuple):
    """A mini-batch: decoded examples, labels, and a mask that is 0 where the batch is not full."""

    x: Array
    y: Array
    mask: Array
    size: Array
    key: Array


class WholeDevice(NamedTuple):
    """All of a device's examples, for full-batch descent: the rows from `first`, gathered chunk by chunk."""

    data: Data
    first: Array
    size: Array
    key: Array


Gather = Callable[[Data, Array, Array], Batch]


def gatherer(federation: Federation, *, augment: bool = True) -> Gather:
    """A function from (data, row numbers, key) to a training batch; row number -1 is a masked place."""
    change = federation.augment if augment else None

    def gather(data: Data, rows: Array, key: Array) -> Batch:
        real = rows >= 0
        rows = jnp.maximum(rows, 0)
        x = data.x[rows]
        use, keep = jax.random.split(key)
        if change is not None:
            x = change(use, x)
        x = federation.decode(data.shared, x)
        return Batch(x, data.y[rows], real.astype(float), jnp.sum(real).astype(float), keep)

    return gather


def loss_on(model: Model) -> Callable[[Params, Batch], Array]:
    """f_i on a mini-batch: the mean loss over its real examples."""

    def loss(params: Params, batch: Batch) -> Array:
        each = model.loss(model.outputs(params, batch.x, batch.key), batch.y)
        return jnp.sum(each * batch.mask) / batch.size

    return loss


def whole_loss_on(model: Model, federation: Federation, largest: int) -> Callable[[Params, WholeDevice], Array]:
    """f_i on all examples of a device, as a loop over chunks.

    The loop has as many turns as the largest device needs; turns without examples are skipped by a branch, so that
    the work is the device's own. (A loop of variable length has no reverse derivative.)
    """
    gather, part = gatherer(federation), loss_on(model)
    size = min(CHUNK, largest)
    chunks = -(-largest // size)

    def loss(params: Params, whole: WholeDevice) -> Array:
        def chunk(total: Array, c: Array) -> tuple[Array, None]:
            place = c * size + jnp.arange(size)
            rows = jnp.where(place < whole.size, whole.first + place, -1)

            def some() -> Array:
                batch = gather(whole.data, rows, jax.random.fold_in(whole.key, c))
                return part(params, batch) * batch.size

            return total + jax.lax.cond(c * size < whole.size, some, lambda: jnp.zeros_like(total)), None

        dtype = jax.tree.leaves(params)[0].dtype
        total, _ = jax.lax.scan(chunk, jnp.zeros((), dtype), jnp.arange(chunks))
        return total / whole.size

    return loss


def host_data(split: Any, shared: Any) -> Data:
    """A split as arrays that can be placed without a copy."""
    return Data(np.ascontiguousarray(split.x), np.ascontiguousarray(split.y), shared)
