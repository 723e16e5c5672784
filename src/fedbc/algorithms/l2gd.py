"""L2GD: a mixture of global and local models.

    F. Hanzely, P. Richtárik, "Federated Learning of a Mixture of Global and Local Models", 2020, Algorithm 1.

The objective, over all n devices' models and with their mean x̄, is

    F(x) = (1/n) Σ f_i(x_i) + lambda/(2n) Σ ‖x_i - x̄‖²

The paper's loopless method takes, at rate alpha, with probability 1 - p a local step on every device,
x_i <- x_i - alpha/(n(1-p)) ∇f_i(x_i), and with probability p an aggregation,
x_i <- x_i - (alpha lambda/(n p)) (x_i - x̄). Only an aggregation that follows a local step needs communication.

Here a round is one aggregation, on receipt of the mean, and the K local steps that follow it:

    s   = lr K lambda / (1 + lr K lambda)
    w^0 = x_i - s (x_i - z),   w^{k+1} = w^k - lr ∇f_i(w^k),   x_i = w^K;        z = x̄

    symbol            argument        symbol                        argument
    lambda            penalty         alpha/(n(1-p))                lr
    p                 1/(K+1)         (of the local steps)          momentum, 0 in the paper

How this follows from the paper. Between two aggregations there are on average (1-p)/p local steps, so K steps mean
p = 1/(K+1); lr = alpha/(n(1-p)) gives the aggregation's share alpha lambda/(n p) = lr K lambda: local steps and
aggregation run through the same "time" lr K of the gradient flow of F. Departures: the order is fixed, not random; and
the aggregation is implicit, x⁺ = x - lr K lambda (x⁺ - x̄), hence the share s. To first order in lr K lambda this is the
paper's explicit step, but it contracts for every lambda and K, where the explicit one overshoots once lr K lambda > 1
and diverges from 2 on, which devices with many batches would soon reach.

What holds: with full participation, full batches and K = 1, this is the proximal-gradient method for n F, and at its
fixed point the w^0 minimise F exactly, whatever lr. With K > 1 the fixed point is off by O(lr K), and with K_i that
differ over devices each device runs at its own pace lr K_i towards the same optimum, likewise up to O(lr max K_i).
x_i, the local model, is the model after the local steps, about lr K ‖∇f_i‖ away from w^0. With `momentum` m the local
steps go further, and Σ_{k=1..K} (1 - m^k)/(1 - m) takes the place of K in s.

The paper has every device take part. Under sampling, z is the mean of the last x_i of all devices that took part so far
(see `fedbc.algorithms.latest`). penalty = 0 is local training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import latest, solver
from fedbc.algorithms.base import Context, Finished, Params, Scalar, parameter
from fedbc.algorithms.descending import Descending
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Rate


class Server(NamedTuple):
    """z, and the sum of the last x_i that it is the mean of."""

    z: Params
    sent: latest.Latest


class Device(NamedTuple):
    """What a device keeps: its model, and whether (1) it took part before."""

    x: Params
    joined: Scalar


class Carry(NamedTuple):
    """Local training, and the round's fixed quantities."""

    descent: solver.Descent
    z: Params
    device: Device
    steps: Scalar


@dataclass(frozen=True)
class L2GD(Descending):
    """A mixture of global and local models: local steps, and a pull of the local models towards their mean."""

    name: ClassVar[str] = "l2gd"
    reference: ClassVar[str] = "Hanzely, Richtárik, Federated Learning of a Mixture of Global and Local Models, 2020"

    lr: float = parameter(0.01, "rate of the local steps (alpha/(n(1-p)))", rate=Rate.LOCAL)
    penalty: float = parameter(0.1, "strength of the pull towards the mean model (lambda)")
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")

    def __post_init__(self) -> None:
        solver.check(self.lr, self.momentum)
        checks.number("penalty", self.penalty, at_least=0)

    def check_summand(self, summand: latest.Latest, examples: int) -> None:
        """It joins once."""
        del examples
        latest.check_senders(summand)

    def ranges(self, limits: Limits) -> Any:
        """The change of what it sent last."""
        return latest.ranges(limits)

    def init_server(self, params: Params) -> Server:
        """No device has sent anything yet."""
        return Server(params, latest.start(params))

    def global_model(self, server: Server) -> Params:
        """z = x̄"""
        return server.z

    def broadcast(self, server: Server) -> Params:
        """z"""
        return server.z

    def init_device(self, params: Params, context: Context) -> Device:
        """x_i = z"""
        return Device(params, jnp.zeros((), float))

    def local_model(self, device: Device) -> Params:
        """x_i"""
        return device.x

    def begin(self, message: Params, device: Device, context: Context) -> Carry:
        """The aggregation: w^0 = x_i - s (x_i - z)"""
        time = self.lr * self.penalty * solver.path(context.steps, self.momentum)
        w = trees.mix(time / (1 + time), message, device.x)
        return Carry(self.solver.start(w), message, device, context.steps)

    def objective(self, carry: Carry) -> solver.Objective:
        """f_i alone: w <- w - lr ∇f_i(w)"""
        return solver.ALONE

    def refuses(self, part: solver.Part) -> str | None:
        """The share s of the aggregation follows from how far plain steps go."""
        if part in (solver.Part.OPTIMIZER, solver.Part.KEEP_OPTIMIZER, solver.Part.EPSILON):
            return "its aggregation is as strong as lr K plain steps are long, K being known before"
        return None

    def finish(self, carry: Carry) -> Finished:
        """The change of x_i as the summand."""
        x, old = carry.descent.w, carry.device
        one = jnp.ones_like(old.joined)
        info = {
            "drift": trees.sqdist(x, carry.z),
            "loss": carry.descent.loss / carry.steps,
            "weight": one,
        }
        return Finished(Device(x, one), latest.change(x, old.x, old.joined), info)

    def update(self, server: Server, total: latest.Latest, population: Scalar) -> Server:
        """z = mean of the last x_i"""
        sent = latest.add(server.sent, total)
        return Server(latest.mean(sent), sent)
