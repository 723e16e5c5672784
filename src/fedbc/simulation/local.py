"""One device's local work: the same function in the simulator's lanes and on a real device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fedbc.algorithms.base import Algorithm, Context, Finished, Loss

Array = jax.Array


def train_device(
    algorithm: Algorithm,
    loss: Loss,
    batch: Callable[[Array], Any],
    message: Any,
    device: Any,
    context: Context,
) -> Finished:
    """begin, step K_i times, finish; `batch(k)` gives what step k takes."""
    carry = algorithm.begin(message, device, context)
    carry = jax.lax.fori_loop(0, context.steps, lambda k, c: algorithm.step(loss, c, batch(k)), carry)
    return algorithm.finish(carry)
