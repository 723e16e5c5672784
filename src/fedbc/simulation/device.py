"""One device's local work, from row numbers, data and a key: the same in lanes, by hand, and on a real device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedbc.algorithms.base import Algorithm, Context, Finished, Loss
from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.simulation import batches
from fedbc.simulation.schedule import Batching, generator
from fedbc.simulation.stopping import TOLD, Stopping, Until

Array = jax.Array
Stage = Callable[..., Any]
"""Runs a stage of a device's work: called with its name, the function and its arguments."""


class Rows(NamedTuple):
    """Which rows of the data a device's steps take."""

    table: Any
    """(length, batch_size): row numbers, -1 where a batch is not full; full-batch descent has no use for it"""
    first: Any
    """the device's first row in the table; for full-batch descent, in the data"""


def run_stage(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """Nothing but the work."""
    del name
    return work(*arguments)


class LocalWork:
    """What a device does in a round, for any algorithm and model; data come in a federation's form."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        federation: Federation,
        batching: Batching,
        stopping: Stopping | None = None,
    ) -> None:
        self.algorithm, self.federation, self.batching = algorithm, federation, batching
        self.gather = batches.gatherer(federation, repeat=model.statistics is not None)
        self.loss: Loss
        if batching.batch_size is None:
            self.loss = batches.whole_loss_on(model, federation, int(federation.train.sizes.max()))
        else:
            self.loss = batches.loss_on(model)
        self.until: Until | None = None
        self.told: tuple[str, ...] = () if isinstance(batching.amount, int) else ("steps",)
        """diagnostics that come to the method's own"""
        if stopping is not None:
            self.until, self.told = stopping.of(model, federation, batching), TOLD

    def in_round(self, round: Any) -> LocalWork:
        """The same at the rates of a round."""
        now = copy.copy(self)
        now.algorithm = self.algorithm.in_round(round)
        return now

    def train(
        self,
        message: Any,
        state: Any,
        context: Context,
        rows: Rows,
        data: batches.Data,
        round_key: Array,
        stage: Stage = run_stage,
    ) -> Finished:
        """begin, step K_i times, finish."""
        key = jax.random.fold_in(round_key, context.index)

        def step(k: Array, carry: Any) -> Any:
            batch = stage(f"batch of step {k}", self.batch, rows, context, data, key, k)
            return stage(f"step {k}", self.algorithm.step, self.loss, carry, batch)

        carry = stage("begin", self.algorithm.begin, message, state, context)
        told = dict.fromkeys(self.told, context.steps)
        if self.until is None:
            carry = jax.lax.fori_loop(0, context.steps, step, carry)
        else:
            carry, told = self.until.train(self.algorithm, step, carry, context, data)
        done = stage("finish", self.algorithm.finish, carry)
        return done._replace(info={**done.info, **told}) if told else done

    def batch(self, rows: Rows, context: Context, data: batches.Data, key: Array, k: Array) -> Any:
        """What step k takes: a batch, or a tuple of them."""
        key = jax.random.fold_in(key, k)
        number = self.batching.per_step
        parts: list[Any]
        if self.batching.batch_size is None:
            parts = [batches.WholeDevice(data, rows.first, context.examples.astype(float), key)] * number
        else:
            parts = [
                self.gather(data, rows.table[rows.first + number * k + j], jax.random.fold_in(key, j))
                for j in range(number)
            ]
        return parts[0] if number == 1 else tuple(parts)


def run_key(seed: int, purpose: int) -> Array:
    """JAX's key for one purpose of a run."""
    return jax.random.key(int(generator(seed, purpose).integers(2**31)))
