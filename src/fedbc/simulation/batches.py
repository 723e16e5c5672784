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


def gatherer(federation: Federation, *, augment: bool = True, repeat: bool = False) -> Gather:
    """A function from (data, row numbers, key) to a training batch; row number -1 is a masked place.

    repeat: masked places, which come last, repeat the others: for models that look at the batch as a whole.
    """
    change = federation.augment if augment else None

    def gather(data: Data, rows: Array, key: Array) -> Batch:
        real = rows >= 0
        if repeat:
            rows = rows[jnp.arange(len(rows)) % jnp.maximum(jnp.sum(real), 1)]
        rows = jnp.maximum(rows, 0)
        x = data.x[rows]
        use, keep = jax.random.split(key)
        if change is not None:
            x = change(use, x)
        x = federation.decode(data.shared, x)
        return Batch(x, data.y[rows], real.astype(float), jnp.sum(real).astype(float), keep)

    return gather


def loss_on(model: Model) -> Callable[[Params, Batch], Any]:
    """f_i on a mini-batch: the mean loss over its real examples; with new statistics, of a model that keeps some."""

    def loss(params: Params, batch: Batch) -> Any:
        outputs = model.outputs(params, batch.x, batch.key)
        outputs, statistics = outputs if model.statistics else (outputs, None)
        value = jnp.sum(model.loss(outputs, batch.y) * batch.mask) / batch.size
        return (value, statistics) if model.statistics else value

    return loss


def gradient_on(model: Model) -> Callable[[Params, Batch], Params]:
    """∇f_i on a mini-batch, of what is trained."""
    loss = loss_on(model)

    def gradient(params: Params, batch: Batch) -> Params:
        def value(trained: Params) -> Array:
            found = loss(model.with_trained(params, trained), batch)
            return found[0] if model.statistics else found

        return jax.grad(value)(model.trained(params))

    return gradient


def whole_loss_on(
    model: Model, federation: Federation, largest: int, *, augment: bool = True
) -> Callable[[Params, WholeDevice], Array]:
    """f_i on all examples of a device, as a loop over chunks.

    The loop has as many turns as the largest device needs; turns without examples are skipped by a branch, so that
    the work is the device's own. (A loop of variable length has no reverse derivative.)
    """
    gather = gatherer(federation, augment=augment, repeat=model.statistics is not None)
    part = loss_on(model)
    size = min(CHUNK, largest)
    chunks = -(-largest // size)

    def loss(params: Params, whole: WholeDevice) -> Any:
        def chunk(sofar: tuple[Array, Params], c: Array) -> tuple[tuple[Array, Params], None]:
            place = c * size + jnp.arange(size)
            rows = jnp.where(place < whole.size, whole.first + place, -1)

            def some() -> tuple[Array, Params]:
                batch = gather(whole.data, rows, jax.random.fold_in(whole.key, c))
                value, statistics = with_statistics(sofar[1], batch)
                return sofar[0] + value * batch.size, statistics

            return jax.lax.cond(c * size < whole.size, some, lambda: sofar), None

        def with_statistics(statistics: Params, batch: Batch) -> tuple[Array, Params]:
            if model.statistics is None:
                return part(params, batch), statistics
            value, new = part({**params, "statistics": statistics}, batch)
            return value, new

        dtype = jax.tree.leaves(model.trained(params))[0].dtype
        start = jnp.zeros((), dtype), params["statistics"] if model.statistics else None
        (total, statistics), _ = jax.lax.scan(chunk, start, jnp.arange(chunks))
        return (total / whole.size, statistics) if model.statistics else total / whole.size

    return loss


def host_data(split: Any, shared: Any) -> Data:
    """A split as arrays that can be placed without a copy."""
    return Data(np.ascontiguousarray(split.x), np.ascontiguousarray(split.y), shared)
