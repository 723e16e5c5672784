"""Local training until ‖∇L_i(w)‖² <= epsilon_i on all of a device's examples, with K_i as the limit.

L_i is what the method descends on: f_i with the method's own terms (FedBC: lambda_i‖w - z‖²) and the run's weight
decay. The gradient is exact, over all of the device's training examples, as in evaluation: without augmentation and
dropout. It costs one pass over them each time (Ditto's two models one each), so that it is formed every so many steps
only; the device tells how often.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc.algorithms.base import Algorithm, Context
from fedbc.algorithms.oracle import JaxOracle
from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.simulation import batches
from fedbc.simulation.schedule import Batching

Array = jax.Array
RESIDUAL = "residual"
TOLD = ("steps", RESIDUAL, "checks")
"""What a device tells: the steps that it took, ‖∇L_i‖² where it ended, and how often it was measured."""


@dataclass(frozen=True)
class Stopping:
    """epsilon_i, and every how many steps it is looked at."""

    epsilon: Any
    """one number, or one per device"""
    every: int | None
    """None for once per epoch; for full-batch descent, after each step"""

    def of(self, model: Model, federation: Federation, batching: Batching) -> Until:
        """For one run."""
        settled = dataclasses.replace(model, stochastic=False)
        whole = batches.whole_loss_on(settled, federation, int(federation.train.sizes.max()), augment=False)
        sizes = federation.train.sizes
        # Methods that take epsilon take one batch per step.
        usual = np.ones_like(sizes) if batching.batch_size is None else -(-sizes // batching.batch_size)
        every = jnp.asarray(usual if self.every is None else np.full_like(sizes, self.every), jnp.int32)
        epsilon = jnp.broadcast_to(jnp.asarray(self.epsilon, float), (len(sizes),))
        return Until(JaxOracle(whole), jnp.asarray(federation.train.offsets[:-1]), every, epsilon)


@dataclass(frozen=True)
class Until:
    """Takes a device's steps until it may stop."""

    oracle: JaxOracle
    first: Array
    """each device's first row in the data"""
    every: Array
    epsilon: Array

    def train(
        self, algorithm: Algorithm, step: Callable[[Array, Any], Any], carry: Any, context: Context, data: batches.Data
    ) -> tuple[Any, dict[str, Array]]:
        """The carry after the steps, and what the device tells."""
        i = context.index
        own = batches.WholeDevice(data, self.first[i], context.examples.astype(float), jax.random.key(0))

        def residual(carry: Any) -> Array:
            return jnp.asarray(algorithm.stationarity(carry, lambda w: self.oracle.gradient(w, own)), float)

        def turn(state: tuple[Any, Array, Array, Array]) -> tuple[Any, Array, Array, Array]:
            carry, k, last, checks = state
            carry, k = step(k, carry), k + 1
            due = (k % self.every[i] == 0) | (k == context.steps)
            last = jax.lax.cond(due, lambda: residual(carry), lambda: last)
            return carry, k, last, checks + due

        def goes_on(state: tuple[Any, Array, Array, Array]) -> Array:
            _, k, last, _ = state
            return (k < context.steps) & (last > self.epsilon[i])

        none = jnp.zeros_like(context.steps)
        start = carry, none, jnp.asarray(jnp.inf, float), none
        carry, steps, last, number = jax.lax.while_loop(goes_on, turn, start)
        return algorithm.count_steps(carry, steps), {"steps": steps, RESIDUAL: last, "checks": number}
