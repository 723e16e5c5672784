"""The oracle that the methods share: mini-batch gradient descent with momentum, and an optional pull to a point.

    v <- m v + g(w) + pull (w - centre),      w <- w - lr v

The momentum m restarts each round. A pull of 2 lambda is the gradient of FedBC's lambda‖w - z‖², a pull of mu that of
FedProx's mu/2‖w - z‖².
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms.base import Loss, Params, Scalar


class Descent(NamedTuple):
    """Where local training stands."""

    w: Params
    velocity: Params
    loss: Scalar
    """the sum of the batches' losses so far, for the diagnostics"""


def check(lr: float, momentum: float) -> None:
    """Check the two hyper-parameters that all users of this oracle have."""
    checks.number("lr", lr, above=0)
    checks.number("momentum", momentum, at_least=0, below=1)


def start(w: Params) -> Descent:
    """Begin at w, at rest."""
    return Descent(w, trees.zeros_like(w), jnp.zeros((), jax.tree.leaves(w)[0].dtype))


def step(
    loss: Loss,
    at: Descent,
    batch: object,
    lr: Scalar | float,
    momentum: float,
    *,
    pull: Scalar | float | None = None,
    centre: Params = None,
    correction: Params = None,
) -> Descent:
    """One step on one batch; `correction` is added to the gradient (control variates, dual variables)."""
    value, gradient = jax.value_and_grad(loss)(at.w, batch)
    gradient = _pulled(gradient, at.w, pull, centre)
    if correction is not None:
        gradient = trees.add(gradient, correction)
    return descend(at, value, gradient, lr, momentum)


def _pulled(gradient: Params, w: Params, pull: Scalar | float | None, centre: Params) -> Params:
    """g + pull (w - centre)"""
    if pull is None:
        return gradient
    return jax.tree.map(lambda g, w, c: g + pull * (w - c), gradient, w, centre)


def descend(at: Descent, value: Scalar, gradient: Params, lr: Scalar | float, momentum: float) -> Descent:
    """Move along a gradient that is already known; `value` is the loss to record."""
    velocity = gradient if momentum == 0 else trees.axpy(momentum, at.velocity, gradient)
    w = jax.tree.map(lambda w, v: w - lr * v, at.w, velocity)
    # Without momentum the velocity stays 0, so that the compiler drops it from the loop.
    return Descent(w, at.velocity if momentum == 0 else velocity, at.loss + value)


def adapted(
    loss: Loss,
    w: Params,
    batch: object,
    lr: float,
    steps: int = 1,
    *,
    pull: Scalar | float | None = None,
    centre: Params = None,
) -> tuple[Scalar, Params]:
    """The loss at w, and where `steps` plain steps from w on one batch lead."""
    value, gradient = jax.value_and_grad(loss)(w, batch)

    def move(u: Params, gradient: Params) -> Params:
        return trees.axpy(-lr, _pulled(gradient, u, pull, centre), u)

    u = move(w, gradient)
    if steps > 1:
        u = jax.lax.fori_loop(1, steps, lambda _, u: move(u, jax.grad(loss)(u, batch)), u)
    return value, u


def path(steps: Scalar, momentum: float) -> Scalar:
    """How far `steps` steps along a constant gradient g carry, in units of lr g: Σ_{k=1..K} (1 - m^k)/(1 - m)."""
    k = jnp.asarray(steps, float)
    return (k - momentum * (1 - momentum**k) / (1 - momentum)) / (1 - momentum)
