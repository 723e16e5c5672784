"""FedBC's multipliers of absent devices: they stand still while a device is not drawn, or follow the global model.

A-FedPD's cure for stale duals (Y. Sun, L. Shen, D. Tao, "A-FedPD: Aligning Dual-Drift is All Federated Primal-Dual
Learning Needs", NeurIPS 2024) moves the dual of an absent device as if its local training had ended in the mean of the
others' models. For FedBC this mean is the next z, so that round t of an absent device is a dual step like any other,

    lambda_i = P[lambda_min, lambda_max] (lambda_i + alpha (‖z^t - z^{t-1}‖² - gamma_i)),   gamma_i by its own rule

and all that it needs is how far z went. The server remembers that of its last `KEPT` rounds and sends it along; a
device makes up for the rounds that it missed (before its first one, for all of them) when it takes part again. This
costs nothing where nobody is absent, and the server still sees the sum alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms.base import Duals, Params, Scalar, is_zero
from fedbc.algorithms.solver import Solver
from fedbc.errors import InputError

KEPT = 1024
"""Rounds that the server remembers; what a device missed before them is lost."""


class Followed(NamedTuple):
    """The server's state, and its message."""

    z: Params
    moves: Any
    """‖z^t - z^{t-1}‖² of the last rounds, that of round t at t mod KEPT"""
    rounds: Scalar
    """how many there were"""


def check(method: Any) -> None:
    """Raise an InputError if the argument means nothing, or nothing beside FedBC's others."""
    checks.choice("absent", method.absent, ["still", "follow"])
    if method.absent == "follow" and method.server == "all":
        raise InputError(
            "absent='follow' cannot be given with server='all', which counts absent devices with what they sent last"
        )
    if method.absent == "follow" and is_zero(method.dual_lr):
        raise InputError("absent='follow' has nothing to move with dual_lr=0: the multipliers stay as they are")


def check_solver(method: Any, solver: Solver) -> None:
    """Raise an InputError if the rounds that a device missed had dual rates of their own, which nobody tells it."""
    if method.absent == "follow" and solver.dual_schedule is not None:
        raise InputError(
            "dual_schedule does not apply to absent='follow': devices make up for missed rounds at one rate"
        )


def start(z: Params) -> Followed:
    """Before the first round."""
    return Followed(z, jnp.zeros(KEPT, float), jnp.zeros((), jnp.int32))


def moved(server: Followed, z: Params) -> Followed:
    """After a round that led to z."""
    number = server.rounds + 1
    return Followed(z, server.moves.at[number % KEPT].set(trees.sqdist(z, server.z)), number)


def caught_up(method: Any, message: Any, device: Any) -> tuple[Params, Duals, Scalar | None]:
    """z, a device's duals after the rounds since it took part last, and the number of the round that begins."""
    duals = Duals(device.multiplier, device.tolerance)
    if not isinstance(message, Followed):
        return message, duals, None

    def missed(t: Scalar, duals: Duals) -> Duals:
        return method.dual_step(duals, message.moves[t % KEPT], device.smoothness)

    done = message.rounds
    first = jnp.maximum(device.seen, done - KEPT) + 1
    return message.z, jax.lax.fori_loop(first, done + 1, missed, duals), done + 1
