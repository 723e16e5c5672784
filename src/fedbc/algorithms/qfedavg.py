"""q-FedAvg: FedAvg for the q-fair objective, which gives devices with a large loss more weight.

    T. Li, M. Sanjabi, A. Beirami, V. Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2.

The objective is Σ F_i^{q+1} / (q+1). A device trains x_i from z as in FedAvg, and measures F_i = F_i(z), the loss of z
on all its data, before training:

    Delta_i = L (z - x_i),   h_i = q F_i^{q-1} ‖Delta_i‖² + L F_i^q
    z       = z - Σ F_i^q Delta_i / Σ h_i                        over the sampled devices

    symbol   argument                  symbol   argument
    q        q                         L        lipschitz (None: 1/lr, as the paper suggests)
    eta      lr                        p_i      weights

`momentum` is the local steps', 0 in the paper; with it L = 1/lr no longer bounds the step, and the method is bolder.

Departures. The paper draws devices with probability p_i = n_i/n and adds plainly; here sampling is uniform, so that
plain sums (`weights="uniform"`, the default, and what its authors ran) mean p_i = 1/N, while `weights="examples"`
multiplies each summand by n_i. F_i is kept above 1e-10 (as its authors do), since F_i^{q-1} is infinite at 0 for q < 1.
With q = 0, the server's step is FedAvg's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import onepass, solver, weighted
from fedbc.algorithms.base import Context, Finished, Loss, Params, Scalar, parameter
from fedbc.algorithms.descending import Descending
from fedbc.algorithms.ranges import Limits, Number, Vector
from fedbc.algorithms.solver import Rate
from fedbc.errors import InputError

SMALLEST_LOSS = 1e-10


class Carry(NamedTuple):
    """Local training, the loss of z so far, and the round's fixed quantities."""

    descent: solver.Descent
    loss_of_z: onepass.Pass
    z: Params
    weight: Scalar
    context: Context


class Total(NamedTuple):
    """The sum that the server sees."""

    delta: Params
    """Σ F_i^q Delta_i"""
    h: Scalar


@dataclass(frozen=True)
class QFedAvg(Descending):
    """Fair federated averaging: devices whose loss is larger count more, the more so the larger q is."""

    name: ClassVar[str] = "qfedavg"
    reference: ClassVar[str] = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020"

    lr: float = parameter(0.01, "rate of the local steps (eta)", rate=Rate.LOCAL)
    q: float = parameter(1.0, "fairness: 0 is FedAvg, larger values favour devices with a large loss")
    lipschitz: float | None = parameter(None, "estimate of the gradients' Lipschitz constant (L); None means 1/lr")
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")
    weights: str = parameter("uniform", weighted.WEIGHTS)

    def __post_init__(self) -> None:
        solver.check(self.lr, self.momentum)
        checks.number("q", self.q, at_least=0)
        if self.lipschitz is not None:
            checks.number("lipschitz", self.lipschitz, above=0)
        weighted.check(self.weights)

    def check_summand(self, summand: Total, examples: int) -> None:
        """Its part of the denominator is not negative."""
        del examples
        if not float(summand.h) >= 0:
            raise InputError(f"its h is {float(summand.h):g}, which must not be negative")

    def ranges(self, limits: Limits) -> Any:
        """F_i^q L (z - x_i) and h, for losses F_i up to the largest number."""
        weight, most = weighted.weight_range(self.weights, limits).high, limits.number**self.q
        lipschitz = 1 / self.lr if self.lipschitz is None else self.lipschitz
        steepest = limits.number if self.q >= 1 else SMALLEST_LOSS
        delta: Any = Vector(weight * most * lipschitz * limits.clip)
        moved = self.q * steepest ** (self.q - 1) * (lipschitz * limits.clip) ** 2 if self.q else 0.0
        h: Any = Number(0, weight * (moved + lipschitz * most))
        return Total(delta, h)

    def init_server(self, params: Params) -> Params:
        """The server keeps z alone."""
        return params

    def init_device(self, params: Params, context: Context) -> Params:
        """A device keeps the last model it trained, to be looked at; training does not use it."""
        return params

    def local_model(self, device: Params) -> Params:
        """x_i"""
        return device

    def begin(self, message: Params, device: Params, context: Context) -> Carry:
        """w^0 = z"""
        descent = self.solver.start(message)
        weight = weighted.weight(self.weights, context)
        return Carry(descent, onepass.start(descent.loss), message, weight, context)

    def objective(self, carry: Carry) -> solver.Objective:
        """f_i alone: w <- w - eta ∇f_i(w)"""
        return solver.ALONE

    def count_steps(self, carry: Carry, steps: Scalar) -> Carry:
        """K_i"""
        return carry._replace(context=carry.context._replace(steps=steps))

    def refuses(self, part: solver.Part) -> str | None:
        """L = 1/lr bounds plain steps only."""
        if self.lipschitz is None and part is solver.Part.OPTIMIZER:
            return "its L = 1/lr is that of plain steps; give lipschitz"
        return None

    def step(self, loss: Loss, carry: Carry, batch: object) -> Carry:
        """A local step, and F_i(z) on the batch"""
        loss_of_z = onepass.add(loss, carry.loss_of_z, carry.context.examples, batch, lambda: loss(carry.z, batch))
        return super().step(loss, carry, batch)._replace(loss_of_z=loss_of_z)

    def finish(self, carry: Carry) -> Finished:
        """The summand (F_i^q Delta_i, h_i)."""
        x = carry.descent.w
        lipschitz = 1 / self.lr if self.lipschitz is None else self.lipschitz
        f = jnp.maximum(onepass.mean(carry.loss_of_z), SMALLEST_LOSS)
        fair = carry.weight * f**self.q
        delta = trees.scale(lipschitz, trees.sub(carry.z, x))
        h = carry.weight * self.q * f ** (self.q - 1) * trees.sqnorm(delta) + lipschitz * fair
        info = {
            "drift": trees.sqdist(x, carry.z),
            "loss": carry.descent.loss / carry.context.steps,
            "loss_of_global": f,
            "weight": fair,
        }
        return Finished(x, Total(trees.scale(fair, delta), h), info)

    def update(self, server: Params, total: Total, population: Scalar) -> Params:
        """z <- z - Σ F_i^q Delta_i / Σ h_i"""
        return trees.axpy(-1 / total.h, total.delta, server)
