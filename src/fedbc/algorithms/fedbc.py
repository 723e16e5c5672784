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
`bounds="theory"` measures each device's smoothness, from which the proofs' bounds of lambda follow
(`fedbc.algorithms.smoothness`).

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
from fedbc.algorithms import latest, multiplied, smoothness, solver
from fedbc.algorithms.base import Context, Duals, Finished, LocalProblem, Loss, Params, Scalar, is_zero, parameter
from fedbc.algorithms.descending import PlainSteps
from fedbc.algorithms.latest import Latest
from fedbc.algorithms.multiplied import Total, check_share
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Rate
from fedbc.errors import InputError


class Device(NamedTuple):
    """What a FedBC device keeps."""

    x: Params
    multiplier: Scalar
    tolerance: Scalar
    smoothness: Scalar | None = None
    """L_i as measured so far; only for bounds="theory\""""
    joined: Any = None
    """whether (1) it took part before; only for server="all\""""


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
        checks.choice("bounds", self.bounds, ["given", "theory"])
        if self.bounds == "theory" and (self.lambda_min > 0 or self.lambda_max < math.inf):
            raise InputError("bounds='theory' sets lambda_min and lambda_max itself: leave them out")

    def check_population(self, devices: int) -> None:
        """One tolerance a device, where they are given one by one."""
        if isinstance(self.tolerance, tuple):
            checks.one_per_device("tolerance", self.tolerance, devices)

    def check_summand(self, summand: Total | Latest, examples: int) -> None:
        """An honest share; of a change alone nothing is known."""
        if isinstance(summand, Total):
            check_share(summand, self.lambda_min, self.lambda_max)

    def ranges(self, limits: Limits) -> Any:
        """Those of the share (lambda_i x_i, lambda_i, x_i, 1)."""
        if self.lambda_max == math.inf:
            raise InputError(
                f"{self.name}: the part 'weight', lambda_i, has no declared range for a secure sum: give a finite "
                "lambda_max" + (", and bounds='given'" if self.bounds == "theory" else "")
            )
        return multiplied.ranges(limits, self.lambda_min, self.lambda_max, changes=self.server == "all")

    def init_server(self, params: Params) -> Params | multiplied.Everyone:
        """The server keeps z; for server="all" also what the devices sent."""
        return multiplied.start(params) if self.server == "all" else params

    def global_model(self, server: Params | multiplied.Everyone) -> Params:
        """z"""
        return server.z if self.server == "all" else server

    def broadcast(self, server: Params | multiplied.Everyone) -> Params:
        """z"""
        return self.global_model(server)

    def init_device(self, params: Params, context: Context) -> Device:
        """x_i = z, lambda_i = lambda^0, gamma_i = 0 if learned."""
        gamma = jnp.asarray(0.0 if isinstance(self.tolerance, str) else self.tolerance, float)
        if isinstance(self.tolerance, tuple):
            gamma = gamma[context.index]
        unknown = jnp.zeros(()) if self.bounds == "theory" else None
        joined = jnp.zeros((), float) if self.server == "all" else None
        return Device(params, jnp.asarray(self.multiplier, float), gamma, unknown, joined)

    def local_model(self, device: Device) -> Params:
        """x_i"""
        return device.x

    def duals(self, device: Device) -> Duals:
        """lambda_i and gamma_i"""
        return Duals(device.multiplier, device.tolerance)

    def begin(self, message: Params, device: Device, context: Context) -> Carry:
        """w^0 = z, or x_i."""
        w = message if self.start == "global" else device.x
        known = smoothness.begun(device.smoothness)
        old = device if self.server == "all" else None
        return Carry(self.solver.start(w), message, device.multiplier, device.tolerance, context.steps, known, old)

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

    def finish(self, carry: Carry) -> Finished:
        """The dual step, the tolerance's step, and the summand (lambda_i x_i, lambda_i, x_i, 1)."""
        x, multiplier = carry.descent.w, carry.multiplier
        drift = trees.sqdist(x, carry.z)
        known = carry.smoothness.constant if carry.smoothness is not None else None
        if not is_zero(self.dual_lr):  # 0 times the slack of an infinite tolerance would be undefined
            ascended = multiplier + self.dual_lr * (drift - carry.tolerance)
            low, high = (self.lambda_min, self.lambda_max) if known is None else smoothness.bounds(known)
            multiplier = jnp.clip(ascended, low, high)
        tolerance = carry.tolerance + (self.dual_lr * carry.multiplier if self.tolerance == "learned" else 0)
        info = {
            "multiplier": multiplier,
            "tolerance": tolerance,
            "drift": drift,
            "violation": jnp.maximum(drift - carry.tolerance, 0),
            "loss": carry.descent.loss / carry.steps,
            "weight": multiplier,
        }
        if known is not None:
            info["smoothness"] = known
        own, old = multiplied.share(x, multiplier), carry.old
        if old is None:
            return Finished(Device(x, multiplier, tolerance, known), own, info)
        change = latest.change(own, multiplied.share(old.x, old.multiplier), old.joined)
        return Finished(Device(x, multiplier, tolerance, known, jnp.ones_like(multiplier)), change, info)

    def update(self, server: Params, total: Total | Latest, population: Scalar) -> Params:
        """z = Σ lambda_i x_i / Σ lambda_i, or the plain mean where Σ lambda_i = 0."""
        return multiplied.updated(server, total) if isinstance(total, Latest) else multiplied.mean(total)
