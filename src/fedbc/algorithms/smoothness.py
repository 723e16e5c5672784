"""L_i, the smoothness constant of a device's loss, by power iteration, and the bounds on lambda_i that follow from it.

The proofs of the FedBC paper need 1 + L_i <= lambda_i < (1 + L_i)²/L_i. L_i is the largest |eigenvalue| of ∇²f_i over
the domain; what can be measured is that at the points which training visits, so the largest value met so far counts.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms.base import Loss, Params, Scalar
from fedbc.errors import InputError

ITERATIONS = 20
BELOW = 0.99
"""How far up to the upper bound, which is itself excluded, the interval reaches."""


def curvature(loss: Loss, w: Params, batch: object, iterations: int = ITERATIONS) -> Scalar:
    """The largest |eigenvalue| of the loss's Hessian at w on the batch."""
    leaves, shape = jax.tree.flatten(w)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    noise = [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)]

    def hessian_times(v: Params) -> Params:
        return jax.grad(lambda u: trees.dot(jax.grad(loss)(u, batch), v))(w)

    def normed(v: Params) -> tuple[Params, Scalar]:
        length = jnp.sqrt(trees.sqnorm(v))
        return trees.scale(1 / jnp.maximum(length, 1e-30), v), length

    def turn(_: Scalar, state: tuple[Params, Scalar]) -> tuple[Params, Scalar]:
        return normed(hessian_times(state[0]))

    return jax.lax.fori_loop(0, iterations, turn, normed(jax.tree.unflatten(shape, noise)))[1]


def check(method: Any) -> None:
    """Raise an InputError if the bounds of lambda are both given and to be measured."""
    checks.choice("bounds", method.bounds, ["given", "theory"])
    if method.bounds == "theory" and (method.lambda_min > 0 or method.lambda_max < math.inf):
        raise InputError("bounds='theory' sets lambda_min and lambda_max itself: leave them out")


def bounds(constant: Scalar) -> tuple[Scalar, Scalar]:
    """[lambda_min, lambda_max] for a device with this L_i."""
    constant = jnp.maximum(constant, 1e-6)
    low = 1 + constant
    return low, low + BELOW * low / constant  # low²/constant = low + low/constant


class Measured(NamedTuple):
    """L_i in the course of a round."""

    constant: Scalar
    """the largest value met so far"""
    done: Scalar
    """whether (1) it was measured in this round"""


def begun(constant: Scalar | None) -> Measured | None:
    """At a round's start; None for a device that does not measure."""
    return None if constant is None else Measured(constant, jnp.zeros(()))


def measure(sofar: Measured, loss: Loss, w: Params, batch: object) -> Measured:
    """In a round's first step: the curvature there, if it is larger."""

    def larger() -> Scalar:
        return jnp.maximum(sofar.constant, curvature(loss, w, batch))

    return Measured(jax.lax.cond(sofar.done > 0, lambda: sofar.constant, larger), jnp.ones(()))


def within_bounds(loss: Loss, carry: Any, batch: object) -> Any:
    """For bounds="theory", in a round's first step: L_i, and FedBC's lambda_i moved into its interval."""
    if carry.smoothness is None:
        return carry
    known = measure(carry.smoothness, loss, carry.descent.w, batch)
    return carry._replace(smoothness=known, multiplier=jnp.clip(carry.multiplier, *bounds(known.constant)))
