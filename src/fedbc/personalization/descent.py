"""Several smooth problems minimised at once: L-BFGS with backtracking, one call of the oracle a step for all of them.

    d = -H ∇F(w), H from the last changes of w and ∇F (Nocedal and Wright, Numerical Optimization, Algorithm 7.4)
    w <- w + t d   if that decreases F enough (Armijo), else t is made smaller

A problem is at rest when ‖∇F(w)‖ <= accuracy, or when no step decreases F in the arithmetic's precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
Oracle = Callable[[Array], tuple[Array, Array]]
"""From points (problems, numbers) to their values and gradients."""

MEMORY = 8
"""Changes that L-BFGS remembers."""
ENOUGH = 1e-4
"""Armijo's share of the decrease that the slope promises."""
SHORTEST = 1e-6
"""A step so much shorter than the first one tried is given up."""


class Minimum(NamedTuple):
    """Where the problems came to rest."""

    w: Array
    residual: Array
    """‖∇F(w)‖ of each problem"""
    steps: Array
    """calls of the oracle"""


class _State(NamedTuple):
    w: Array
    value: Array
    gradient: Array
    direction: Array
    length: Array
    """t"""
    moves: Array
    """(problems, MEMORY, numbers): the latest changes of w, the newest last"""
    turns: Array
    """and of the gradient"""
    curvature: Array
    """(problems, MEMORY): 1 / <move, turn>, 0 where there is none"""
    stuck: Array
    steps: Array


def minimize(oracle: Oracle, start: Array, accuracy: float, most: int) -> Minimum:
    """Minimise each problem from its own start, in at most so many calls of the oracle."""
    slack = 10 * jnp.finfo(start.dtype).eps

    def resting(s: _State) -> Array:
        return s.stuck | (_norm(s.gradient) <= accuracy)

    def step(s: _State) -> _State:
        trial = s.w + s.length[:, None] * s.direction
        value, gradient = oracle(trial)
        slope = jnp.sum(s.gradient * s.direction, -1)
        enough = value <= s.value + ENOUGH * s.length * slope + slack * jnp.maximum(1, jnp.abs(s.value))
        taken = enough & jnp.isfinite(value) & ~resting(s)
        moved = _remember(s, trial - s.w, gradient - s.gradient, taken)
        w, g = _where(taken, trial, s.w), _where(taken, gradient, s.gradient)
        fresh = _direction(g, moved)
        uphill = jnp.sum(fresh * g, -1) >= 0
        fresh = _where(uphill, -g, fresh)
        known = jnp.any(moved.curvature > 0, -1) & ~uphill
        first = jnp.where(known, 1.0, jnp.minimum(1.0, 1 / jnp.maximum(_norm(g), 1e-30)))
        # The parabola through what is known of this line says where its least value is.
        lower = -slope * s.length**2 / jnp.maximum(2 * (value - s.value - slope * s.length), 1e-30)
        shorter = jnp.clip(jnp.where(jnp.isfinite(lower), lower, 0), 0.1 * s.length, 0.5 * s.length)
        return s._replace(
            w=w,
            value=jnp.where(taken, value, s.value),
            gradient=g,
            direction=_where(taken, fresh, s.direction),
            length=jnp.where(taken, first, shorter),
            moves=moved.moves,
            turns=moved.turns,
            curvature=moved.curvature,
            stuck=s.stuck | (~taken & (shorter < SHORTEST)),
            steps=s.steps + 1,
        )

    value, gradient = oracle(start)
    problems, numbers = start.shape
    empty = jnp.zeros((problems, MEMORY, numbers), start.dtype)
    begun = _State(
        start,
        value,
        gradient,
        -gradient,
        jnp.minimum(1.0, 1 / jnp.maximum(_norm(gradient), 1e-30)),
        empty,
        empty,
        jnp.zeros((problems, MEMORY), start.dtype),
        jnp.zeros(problems, bool),
        jnp.ones((), int),
    )
    done = jax.lax.while_loop(lambda s: (s.steps < most) & ~jnp.all(resting(s)), step, begun)
    return Minimum(done.w, _norm(done.gradient), done.steps)


def _remember(s: _State, move: Array, turn: Array, taken: Array) -> _State:
    """The memories with another change, where one was made and F curves upwards along it."""
    product = jnp.sum(move * turn, -1)
    good = taken & (product > 1e-10 * _norm(move) * _norm(turn))
    newest = jnp.where(good, 1 / jnp.where(good, product, 1), 0)

    def pushed(old: Array, new: Array) -> Array:
        return _where(good, jnp.concatenate([old[:, 1:], new[:, None]], 1), old)

    return s._replace(moves=pushed(s.moves, move), turns=pushed(s.turns, turn), curvature=pushed(s.curvature, newest))


def _direction(gradient: Array, s: _State) -> Array:
    """-H g, by the two loops over the memory."""
    q = gradient
    shares: list[Any] = [None] * MEMORY
    for k in reversed(range(MEMORY)):
        shares[k] = s.curvature[:, k] * jnp.sum(s.moves[:, k] * q, -1)
        q = q - shares[k][:, None] * s.turns[:, k]
    known = s.curvature[:, -1] > 0
    square = jnp.sum(s.turns[:, -1] ** 2, -1)
    scale = jnp.where(known, 1 / jnp.where(known, s.curvature[:, -1] * square, 1), 1)
    r = scale[:, None] * q
    for k in range(MEMORY):
        back = s.curvature[:, k] * jnp.sum(s.turns[:, k] * r, -1)
        r = r + (shares[k] - back)[:, None] * s.moves[:, k]
    return -r


def _norm(a: Array) -> Array:
    return jnp.sqrt(jnp.sum(a * a, -1))


def _where(condition: Array, a: Array, b: Array) -> Array:
    return jnp.where(condition.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
