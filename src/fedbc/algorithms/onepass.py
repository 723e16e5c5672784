"""The exact mean of something at a fixed point over all of a device's examples, formed beside its local steps.

Every epoch shows every example once, so the mean over the batches of the first epoch, weighted by their sizes, is the
mean over the device's examples. It costs one evaluation a batch of the first epoch, and nothing in later epochs.
Where local training is shorter than an epoch, it is the mean over the batches that it saw.
(Under augmentation or dropout it is the mean over that epoch's random draws.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedbc import trees
from fedbc.algorithms.oracle import Params, Scalar, oracle_of


class Pass(NamedTuple):
    """The sum so far of values weighted by batch sizes, and the examples it covers."""

    total: Any
    seen: Scalar


def start(like: Params) -> Pass:
    """Nothing seen yet; `like` has the shapes of the value."""
    return Pass(trees.zeros_like(like), jnp.zeros((), float))


def add(loss: Any, sofar: Pass, examples: Scalar, batch: Any, value: Callable[[], Any]) -> Pass:
    """Take in one batch's value, unless all the device's examples have been seen."""

    def more() -> Pass:
        return Pass(trees.axpy(batch.size, value(), sofar.total), sofar.seen + batch.size)

    return oracle_of(loss).when(sofar.seen < examples, more, sofar)


def mean(sofar: Pass) -> Any:
    """The mean over the examples seen."""
    return trees.mean(sofar.total, sofar.seen)
