"""FedBC: federated learning beyond consensus.

    A. S. Bedi, C. Fan, A. Koppel, A. K. Sahu, B. M. Sadler, F. Huang, D. Manocha,
    "FedBC: Calibrating Global and Local Models via Federated Learning Beyond Consensus", Algorithms 1 and 2.

The problem: min Σ_i f_i(x_i) subject to ‖x_i - z‖² <= gamma_i for every device i. Its Lagrangian
f_i(x_i) + lambda_i(‖x_i - z‖² - gamma_i) is minimised in x_i on the device, maximised in lambda_i, minimised in z:

    w^{k+1}  = w^k - beta (∇f_i(w^k) + 2 lambda_i (w^k - z)),  k = 0..K_i-1      x_i = w^{K_i}
    lambda_i = P[lambda_min, lambda_max] (lambda_i + alpha (‖x_i - z‖² - gamma_i))
    gamma_i  = gamma_i + alpha lambda_i          (the paper's "Selection of gamma_i", from the old lambda_i)
    z        = Σ lambda_i x_i / Σ lambda_i       over the sampled devices

    symbol          argument                      symbol                  argument
    beta            lr                            alpha, lr_lambda        dual_lr
    gamma_i         tolerance                     lambda_min, lambda_max  lambda_min, lambda_max
    lambda_i^0      multiplier                    w^0 = z or x_i          start

`momentum` is that of the local steps, 0 on paper; `server` says whose mean z is (`fedbc.algorithms.multiplied`);
`absent="follow"` moves lambda_i in rounds without device i (`fedbc.algorithms.following`); `bounds="theory"` measures
each device's smoothness, from which the proofs' bounds of lambda follow (`fedbc.algorithms.smoothness`).

Departures from the letter: w^0 = z where Algorithm 2 starts from x_i, as in the paper's experiments (`start="local"` is
the letter). Where all lambda_i are 0 the server's mean, 0/0 on paper, is the plain one: x_i travels plain, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import following, multiplied, smoothness, solver
from fedbc.algorithms.base import Context, Duals, Finished, LocalProblem, Loss, Params, Scalar, is_zero, parameter
from fedbc.algorithms.descending import PlainSteps
from fedbc.algorithms.following import Followed
from fedbc.algorithms.latest import Latest
from fedbc.algorithms.multiplied import Device, Server, Total, check_share
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Rate, Solver


class Carry(NamedTuple):
    """Local training, and the round's fixed quantities."""

    descent: solver.Descent
    z: Params
    multiplier: Scalar
    tolerance: Scalar
    steps: Scalar
    smoothness: smoothness.Measured | None = None
    old: Device | None = None
    """the device at the round's start; only for server="all\""""
    round: Any = None
    """its number; only for absent="follow\""""


@dataclass(frozen=True)
class FedBC(PlainSteps):
    """Federated learning beyond consensus: local models within a tolerance of the global one (primal-dual)."""

    name: ClassVar[str] = "fedbc"
    reference: ClassVar[str] = "Bedi et al., FedBC: Calibrating Global and Local Models via FL Beyond Consensus"

    lr: float = parameter(0.01, "rate of the local steps (beta)", rate=Rate.LOCAL)
    dual_lr: float = parameter(0.01, "rate of lambda and of a learned gamma (alpha, lr_lambda)", rate=Rate.DUAL)
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")
    tolerance: float | str | Sequence[float] = parameter(
        "learned", "gamma: 'learned' from 0 at rate dual_lr, or a fixed number, or one number per device"
    )
    server: str = parameter(
        "sampled", "whose mean z is: 'sampled', or 'all' devices that ever took part, as last known"
    )
    absent: str = parameter(
        "still", "multipliers of absent devices: they stand 'still', or 'follow' the global model's moves (A-FedPD)"
    )
    start: str = parameter("global", "where local training starts: 'global' (z) or 'local' (x_i, Algorithm 2's letter)")
    lambda_min: float = parameter(0.0, "lower bound of the multipliers (lambda_min)")
    lambda_max: float = parameter(math.inf, "upper bound of the multipliers (lambda_max)")
    multiplier: float = parameter(0.0, "the multipliers' initial value (lambda^0)")
    bounds: str = parameter(
        "given", "bounds of the multipliers: 'given', or 'theory' from each device's smoothness L_i"
    )

    def __post_init__(self) -> None:
        solver.check(self.lr, self.momentum)
        checks.number("dual_lr", self.dual_lr, at_least=0)
        object.__setattr__(self, "tolerance", checks.tolerance(self.tolerance))
        checks.choice("start", self.start, ["global", "local"])
        checks.number("lambda_min", self.lambda_min, at_least=0)
        checks.number("lambda_max", self.lambda_max, at_least=self.lambda_min, infinite=True)
        checks.number("multiplier", self.multiplier, at_least=self.lambda_min, at_most=self.lambda_max)
        checks.choice("server", self.server, ["sampled", "all"])
        following.check(self)
        smoothness.check(self)

    def check_population(self, devices: int) -> None:
        """One tolerance per device, where they are given one by one."""
        if isinstance(self.tolerance, tuple):
            checks.one_per_device("tolerance", self.tolerance, devices)

    def check_solver(self, solver: Solver) -> None:
        """Absent devices follow at one dual rate."""
        super().check_solver(solver)
        following.check_solver(self, solver)

    def check_summand(self, summand: Total | Latest, examples: int) -> None:
        """An honest share; of a change alone nothing is known."""
        check_share(summand, self.lambda_min, self.lambda_max)

    def ranges(self, limits: Limits) -> Any:
        """Those of the share (lambda_i x_i, lambda_i, x_i, 1)."""
        return multiplied.ranges(limits, self)

    def init_server(self, params: Params) -> Server:
        """The server keeps z, and what `server` and `absent` ask for."""
        return following.start(params) if self.absent == "follow" else multiplied.start(params, self.server)

    def global_model(self, server: Server) -> Params:
        """z"""
        return multiplied.global_model(server)

    def broadcast(self, server: Server) -> Params | Followed:
        """z, and what absent devices follow."""
        return server if isinstance(server, Followed) else self.global_model(server)

    def init_device(self, params: Params, context: Context) -> Device:
        """x_i = z, lambda_i = lambda^0, gamma_i = 0 if learned."""
        gamma = jnp.asarray(0.0 if isinstance(self.tolerance, str) else self.tolerance, float)
        if isinstance(self.tolerance, tuple):
            gamma = gamma[context.index]
        return multiplied.joining(self, params, gamma)

    def local_model(self, device: Device) -> Params:
        """x_i"""
        return device.x

    def duals(self, device: Device) -> Duals:
        """lambda_i and gamma_i"""
        return Duals(device.multiplier, device.tolerance)

    def begin(self, message: Params | Followed, device: Device, context: Context) -> Carry:
        """w^0 = z, or x_i."""
        z, duals, number = following.caught_up(self, message, device)
        w = z if self.start == "global" else device.x
        old = device if self.server == "all" else None
        return Carry(self.solver.start(w), z, *duals, context.steps, smoothness.begun(device.smoothness), old, number)

    def objective(self, carry: Carry) -> solver.Objective:
        """lambda_i ‖w - z‖², so that w <- w - beta (∇f_i(w) + 2 lambda_i (w - z))"""
        return solver.Objective(2 * carry.multiplier, carry.z)

    def step(self, loss: Loss, carry: Carry, batch: object) -> Carry:
        """A step on the objective, after lambda_i is within its bounds."""
        return super().step(loss, smoothness.within_bounds(loss, carry, batch), batch)

    @property
    def has_plain_steps(self) -> bool:
        """Unless a method built on this one has other steps; bounds="theory" measures L_i in the first step."""
        return type(self).step is FedBC.step and self.bounds == "given"

    def local_problem(self, carry: Carry) -> LocalProblem:
        """f_i(w) + lambda_i ‖w - z‖²"""
        return LocalProblem(carry.descent.w, carry.multiplier, self.lr, self.momentum)

    def dual_step(self, duals: Duals, drift: Scalar, known: Scalar | None) -> Duals:
        """lambda_i and gamma_i after a round that ended with ‖x_i - z‖² = drift; `known` is L_i, for its bounds."""
        multiplier, tolerance = duals
        if not is_zero(self.dual_lr):  # 0 times the slack of an infinite tolerance would be undefined
            ascended = multiplier + self.dual_lr * (drift - tolerance)
            low, high = (self.lambda_min, self.lambda_max) if known is None else smoothness.bounds(known)
            multiplier = jnp.clip(ascended, low, high)
        return Duals(multiplier, tolerance + (self.dual_lr * duals.multiplier if self.tolerance == "learned" else 0))

    def finish(self, carry: Carry) -> Finished:
        """The dual step, the tolerance's step, and the summand (lambda_i x_i, lambda_i, x_i, 1)."""
        x, drift = carry.descent.w, trees.sqdist(carry.descent.w, carry.z)
        known = carry.smoothness.constant if carry.smoothness is not None else None
        multiplier, tolerance = self.dual_step(Duals(carry.multiplier, carry.tolerance), drift, known)
        info = {
            "multiplier": multiplier,
            "tolerance": tolerance,
            "drift": drift,
            "violation": jnp.maximum(drift - carry.tolerance, 0),
            "loss": carry.descent.loss / carry.steps,
            "weight": multiplier,
            **({} if known is None else {"smoothness": known}),
        }
        joined = None if carry.old is None else jnp.ones_like(multiplier)
        device = Device(x, multiplier, tolerance, known, joined, carry.round)
        return Finished(device, multiplied.summand(x, multiplier, carry.old), info)

    def update(self, server: Server, total: Total | Latest, population: Scalar) -> Server:
        """z = Σ lambda_i x_i / Σ lambda_i, or the plain mean where Σ lambda_i = 0."""
        return multiplied.updated(server, total)
