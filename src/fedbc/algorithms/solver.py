"""The local solver, which a method is given: how a device descends on f_i and what the method adds to it.

    g <- ∇f_i(w) + pull (w - centre) + linear          the gradient of the method's local objective, on one batch
    v <- m v + g,      w <- w - lr v                   the default: gradient descent with momentum, restarted each round

A pull of 2 lambda is the gradient of FedBC's lambda‖w - z‖², a pull of mu that of FedProx's mu/2‖w - z‖²; `linear` is
a dual vector or a control variate. What a run may choose instead:

    optimizer        another rule in the place of the second line (`fedbc.algorithms.optimizers`)
    keep_optimizer   what it remembers stays on the device from round to round
    clip             ∇f_i(w) min(1, clip/‖∇f_i(w)‖) in the place of ∇f_i(w); the method's own terms are not clipped
    weight_decay     c w is added to the (clipped) gradient, as of c/2 ‖w‖²
    domain           X: every step ends with the projection on it (`fedbc.algorithms.domains`)
    epsilon          the steps end when ‖∇L_i(w)‖² <= epsilon_i, L_i being f_i with the terms above
    lr_schedule      factors of the rates over the rounds (`fedbc.algorithms.schedules`), dual_schedule of the dual rate
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import optimizers
from fedbc.algorithms.domains import Domain
from fedbc.algorithms.optimizers import Optimizer
from fedbc.algorithms.oracle import Oracle, Params, Scalar, oracle_of
from fedbc.algorithms.schedules import Schedule


class Descent(NamedTuple):
    """Where local training stands."""

    w: Params
    memory: Any
    """what the optimizer remembers; of gradient descent with momentum, the velocity"""
    loss: Scalar
    """the sum of the batches' losses so far, for the diagnostics"""


class Objective(NamedTuple):
    """What a method adds to f_i(w): pull/2 ‖w - centre‖² + <linear, w>."""

    pull: Scalar | float | None = None
    centre: Params = None
    linear: Params = None

    def gradient(self, own: Params, w: Params) -> Params:
        """∇f_i(w) + pull (w - centre) + linear, from ∇f_i(w)."""
        if self.pull is not None:
            own = jax.tree.map(lambda g, w, c: g + self.pull * (w - c), own, w, self.centre)
        return own if self.linear is None else trees.add(own, self.linear)


ALONE = Objective()
"""f_i itself."""


class Rate(StrEnum):
    """What a schedule moves."""

    LOCAL = "local"
    DUAL = "dual"


class Part(StrEnum):
    """What a run may choose of the local solver, by the names of the run's arguments."""

    OPTIMIZER = "optimizer"
    KEEP_OPTIMIZER = "keep_optimizer"
    CLIP = "clip"
    WEIGHT_DECAY = "weight_decay"
    DOMAIN = "domain"
    EPSILON = "epsilon"


@dataclass(frozen=True)
class Solver:
    """Takes a device's local steps."""

    optimizer: Optimizer | None = None
    """None for the method's own gradient descent with momentum"""
    keep_optimizer: bool = False
    clip: float | None = None
    weight_decay: float = 0.0
    domain: Domain | None = None
    epsilon: float | tuple[float, ...] | None = None
    """to be kept by whoever has the device's data; one number, or one per device"""
    lr_schedule: Schedule | None = None
    dual_schedule: Schedule | None = None

    @property
    def chosen(self) -> list[Part]:
        """The parts that are not the default."""
        plain = Solver()
        return [part for part in Part if getattr(self, part) != getattr(plain, part)]

    def factors(self, round: Scalar) -> dict[Rate, Scalar]:
        """Of the rates that a schedule moves, in a round, counted from 1."""
        schedules = {Rate.LOCAL: self.lr_schedule, Rate.DUAL: self.dual_schedule}
        return {rate: jnp.asarray(s(round - 1), float) for rate, s in schedules.items() if s is not None}

    def start(self, w: Params) -> Descent:
        """Begin at w, at rest."""
        return Descent(w, optimizers.rest(self.optimizer, w), jnp.zeros((), jax.tree.leaves(w)[0].dtype))

    def step(
        self, loss: Any, at: Descent, batch: object, objective: Objective, lr: Scalar | float, momentum: float
    ) -> Descent:
        """One step on one batch."""
        value, gradient = oracle_of(loss).value_and_gradient(at.w, batch)
        return self.descend(at, value, gradient, objective, lr, momentum)

    def descend(
        self,
        at: Descent,
        value: Scalar,
        gradient: Params,
        objective: Objective,
        lr: Scalar | float,
        momentum: float,
    ) -> Descent:
        """Move along a gradient of f_i that is already known; `value` is the loss to record."""
        if self.clip is not None:
            gradient = trees.clipped(gradient, self.clip)
        gradient = self.full_gradient(gradient, at.w, objective)
        if self.optimizer is not None:
            w, memory = optimizers.apply(self.optimizer, at.w, gradient, at.memory, lr)
            return Descent(self.projected(w), memory, at.loss + value)
        velocity = gradient if momentum == 0 else trees.axpy(momentum, at.memory, gradient)
        w = jax.tree.map(lambda w, v: w - lr * v, at.w, velocity)
        # Without momentum the velocity stays 0, so that the compiler drops it from the loop.
        return Descent(self.projected(w), at.memory if momentum == 0 else velocity, at.loss + value)

    def full_gradient(self, own: Params, w: Params, objective: Objective) -> Params:
        """∇L_i(w), from ∇f_i(w): with the weight decay, and the method's own terms."""
        if self.weight_decay:
            own = trees.axpy(self.weight_decay, w, own)
        return objective.gradient(own, w)

    def projected(self, w: Params) -> Params:
        """The nearest model of X."""
        return w if self.domain is None else self.domain.project(w)


def check(lr: float, momentum: float) -> None:
    """Check the two hyper-parameters that all methods with local descent have."""
    checks.number("lr", lr, above=0)
    checks.number("momentum", momentum, at_least=0, below=1)


def adapted(
    loss: Any, w: Params, batch: object, lr: float, steps: int = 1, objective: Objective = ALONE
) -> tuple[Scalar, Params]:
    """The loss at w, and where `steps` plain steps from w on one batch lead."""
    oracle: Oracle = oracle_of(loss)
    value, gradient = oracle.value_and_gradient(w, batch)

    def move(u: Params, gradient: Params) -> Params:
        return trees.axpy(-lr, objective.gradient(gradient, u), u)

    u = move(w, gradient)
    if steps > 1:
        u = oracle.repeat(steps - 1, lambda u: move(u, oracle.gradient(u, batch)), u)
    return value, u


def path(steps: Scalar, momentum: float) -> Scalar:
    """How far `steps` steps along a constant gradient g carry, in units of lr g: Σ_{k=1..K} (1 - m^k)/(1 - m)."""
    k = jnp.asarray(steps, float)
    return (k - momentum * (1 - momentum**k) / (1 - momentum)) / (1 - momentum)
