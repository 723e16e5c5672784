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

`momentum` is that of the local steps, 0 on paper. `bounds="theory"` takes each device's bounds of lambda from the
smoothness of its loss, which it measures by power iteration, as the proofs need it (`fedbc.algorithms.smoothness`).

Two departures from the paper's letter. w^0 = z is the default where Algorithm 2 starts from x_i: it is what the paper's
experiments did, and it is what works (`start="local"` is the letter). Where every sampled lambda_i is 0 the server's
mean is 0/0 on paper: the plain mean takes its place, which is why x_i travels both weighted and plain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import sgd, smoothness
from fedbc.algorithms.base import Algorithm, Context, Finished, Loss, Params, Scalar, parameter
from fedbc.errors import InputError


class Device(NamedTuple):
    """What a FedBC device keeps."""

    x: Params
    multiplier: Scalar
    tolerance: Scalar
    smoothness: Scalar | None = None
    """L_i as measured so far; only for bounds="theory\""""


class Carry(NamedTuple):
    """Local training, and the round's fixed quantities."""

    descent: sgd.Descent
    z: Params
    multiplier: Scalar
    tolerance: Scalar
    steps: Scalar
    smoothness: smoothness.Measured | None = None


class Total(NamedTuple):
    """The sum that the server sees."""

    weighted: Params
    """Σ lambda_i x_i"""
    weight: Scalar
    """Σ lambda_i"""
    plain: Params
    """Σ x_i, for the case that every lambda_i is 0"""
    devices: Scalar


@dataclass(frozen=True)
class FedBC(Algorithm):
    """Federated learning beyond consensus: local models within a tolerance of the global one (primal-dual)."""

    name: ClassVar[str] = "fedbc"
    reference: ClassVar[str] = "Bedi et al., FedBC: Calibrating Global and Local Models via FL Beyond Consensus"

    lr: float = parameter(0.01, "rate of the local steps (beta)")
    dual_lr: float = parameter(0.01, "rate of the dual ascent on lambda, and of a learned gamma (alpha, lr_lambda)")
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")
    tolerance: float | str | Sequence[float] = parameter(
        "learned", "gamma: 'learned' from 0 at rate dual_lr, or a fixed number, or one number a device"
    )
    start: str = parameter("global", "where local training starts: 'global' (z) or 'local' (x_i, Algorithm 2's letter)")
    lambda_min: float = parameter(0.0, "lower bound of the multipliers (lambda_min)")
    lambda_max: float = parameter(math.inf, "upper bound of the multipliers (lambda_max)")
    multiplier: float = parameter(0.0, "the multipliers' initial value (lambda^0)")
    bounds: str = parameter(
        "given", "bounds of the multipliers: 'given', or 'theory' from each device's smoothness L_i"
    )

    def __post_init__(self) -> None:
        sgd.check(self.lr, self.momentum)
        checks.number("dual_lr", self.dual_lr, at_least=0)
        object.__setattr__(self, "tolerance", checks.tolerance(self.tolerance))
        checks.choice("start", self.start, ["global", "local"])
        checks.number("lambda_min", self.lambda_min, at_least=0)
        checks.number("lambda_max", self.lambda_max, at_least=self.lambda_min, infinite=True)
        checks.number("multiplier", self.multiplier, at_least=self.lambda_min, at_most=self.lambda_max)
        checks.choice("bounds", self.bounds, ["given", "theory"])
        if self.bounds == "theory" and (self.lambda_min > 0 or self.lambda_max < math.inf):
            raise InputError("bounds='theory' sets lambda_min and lambda_max itself: leave them out")

    def check_population(self, devices: int) -> None:
        """One tolerance a device, where they are given one by one."""
        if isinstance(self.tolerance, tuple) and len(self.tolerance) != devices:
            raise InputError(
                f"tolerance has {len(self.tolerance)} values but the federation has {devices} devices: "
                "give one number, or one number a device"
            )

    def check_summand(self, summand: Total, examples: int) -> None:
        """lambda_i is within its bounds, up to rounding, and the device counts once."""
        del examples
        multiplier, slack = float(summand.weight), 1e-6
        low, high = self.lambda_min * (1 - slack), self.lambda_max * (1 + slack)
        if not low <= multiplier <= high:
            raise InputError(
                f"its lambda is {multiplier:g}, out of the bounds {self.lambda_min:g} to {self.lambda_max:g}"
            )
        if float(summand.devices) != 1:
            raise InputError(f"it counts as {float(summand.devices):g} devices")

    def init_server(self, params: Params) -> Params:
        """The server keeps z alone."""
        return params

    def init_device(self, params: Params, context: Context) -> Device:
        """x_i = z, lambda_i = lambda^0, gamma_i = 0 if learned."""
        if isinstance(self.tolerance, str):
            gamma = jnp.zeros(())
        elif isinstance(self.tolerance, tuple):
            gamma = jnp.asarray(self.tolerance, float)[context.index]
        else:
            gamma = jnp.asarray(self.tolerance, float)
        unknown = jnp.zeros(()) if self.bounds == "theory" else None
        return Device(params, jnp.asarray(self.multiplier, float), gamma, unknown)

    def local_model(self, device: Device) -> Params:
        """x_i"""
        return device.x

    def begin(self, message: Params, device: Device, context: Context) -> Carry:
        """w^0 = z, or x_i."""
        w = message if self.start == "global" else device.x
        known = smoothness.begun(device.smoothness)
        return Carry(sgd.start(w), message, device.multiplier, device.tolerance, context.steps, known)

    def step(self, loss: Loss, carry: Carry, batch: object) -> Carry:
        """w <- w - beta (∇f_i(w) + 2 lambda_i (w - z))"""
        carry = self.within_bounds(loss, carry, batch)
        descent = sgd.step(
            loss, carry.descent, batch, self.lr, self.momentum, pull=2 * carry.multiplier, centre=carry.z
        )
        return carry._replace(descent=descent)

    def within_bounds(self, loss: Loss, carry: Carry, batch: object) -> Carry:
        """For bounds="theory", in a round's first step: L_i, and lambda_i moved into its interval."""
        if carry.smoothness is None:
            return carry
        known = smoothness.measure(carry.smoothness, loss, carry.descent.w, batch)
        multiplier = jnp.clip(carry.multiplier, *smoothness.bounds(known.constant))
        return carry._replace(smoothness=known, multiplier=multiplier)

    def finish(self, carry: Carry) -> Finished:
        """The dual step, the tolerance's step, and the summand (lambda_i x_i, lambda_i, x_i, 1)."""
        x = carry.descent.w
        drift = trees.sqdist(x, carry.z)
        multiplier = carry.multiplier
        known = carry.smoothness.constant if carry.smoothness is not None else None
        if self.dual_lr > 0:  # 0 times the slack of an infinite tolerance would be undefined
            ascended = multiplier + self.dual_lr * (drift - carry.tolerance)
            low, high = (self.lambda_min, self.lambda_max) if known is None else smoothness.bounds(known)
            multiplier = jnp.clip(ascended, low, high)
        learned = self.tolerance == "learned"
        tolerance = carry.tolerance + self.dual_lr * carry.multiplier if learned else carry.tolerance
        info = {
            "multiplier": multiplier,
            "tolerance": tolerance,
            "drift": drift,
            "violation": jnp.maximum(drift - carry.tolerance, 0),
            "loss": carry.descent.loss / carry.steps,
            "weight": multiplier,
        }
        total = Total(trees.scale(multiplier, x), multiplier, x, jnp.ones_like(multiplier))
        if known is not None:
            info["smoothness"] = known
        return Finished(Device(x, multiplier, tolerance, known), total, info)

    def update(self, server: Params, total: Total, population: Scalar) -> Params:
        """z = Σ lambda_i x_i / Σ lambda_i, or the plain mean where Σ lambda_i = 0."""
        del server, population
        some = total.weight > 0
        weighted = trees.mean(total.weighted, jnp.where(some, total.weight, 1))
        return trees.where(some, weighted, trees.mean(total.plain, total.devices))
