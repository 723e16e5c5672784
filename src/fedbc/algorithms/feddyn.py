"""FedDyn: devices minimise a dynamically regularised loss, whose stationary points agree with the global one's.

    D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, "Federated Learning Based on
    Dynamic Regularization", ICLR 2021, Algorithm 1.

    device:  x_i = about argmin f_i(w) - <g_i, w> + alpha/2 ‖w - z‖², by K steps from w^0 = z
                   w^{k+1} = w^k - lr (∇f_i(w^k) - g_i + alpha (w^k - z))
             g_i = g_i - alpha (x_i - z)
    server:  h   = h - alpha (1/N) Σ (x_i - z)          over the sampled devices, N all devices
             z   = mean(x_i) - h/alpha                  over the sampled devices

    symbol   argument        symbol            argument
    alpha    penalty         (of the steps)    lr; momentum, 0 in the paper

g_i and h start from 0, so that h is the mean of all g_i. At a fixed point x_i = z, g_i = ∇f_i(z) and h = 0: the exact
optimum of Σ f_i. The paper leaves the oracle open; w^0 = z is what its authors' code does.

penalty = 0 is FedAvg with uniform weights: h is then 0, and h/alpha is read as 0. It is a case of its own, not the
limit of small alpha: h/alpha, the sum of all moves so far, does not depend on alpha by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import solver, weighted
from fedbc.algorithms.base import Context, Finished, Params, Scalar, parameter
from fedbc.algorithms.descending import Descending
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Rate


class Server(NamedTuple):
    """z and h."""

    z: Params
    h: Params


class Device(NamedTuple):
    """What a device keeps: its last model, and its gradient there (g_i)."""

    x: Params
    gradient: Params


class Carry(NamedTuple):
    """Local training, and the round's fixed quantities."""

    descent: solver.Descent
    z: Params
    gradient: Params
    steps: Scalar


@dataclass(frozen=True)
class FedDyn(Descending):
    """Federated learning with dynamic regularisation: exact consensus from inexact local training."""

    name: ClassVar[str] = "feddyn"
    reference: ClassVar[str] = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"

    lr: float = parameter(0.01, "rate of the local steps", rate=Rate.LOCAL)
    penalty: float = parameter(0.1, "strength of the pull towards the global model (alpha); 0 is FedAvg")
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")

    def __post_init__(self) -> None:
        solver.check(self.lr, self.momentum)
        checks.number("penalty", self.penalty, at_least=0)

    def check_summand(self, summand: weighted.Mean, examples: int) -> None:
        """The device counts once."""
        weighted.check_weight("uniform", summand.weight, examples)

    def ranges(self, limits: Limits) -> Any:
        """x_i - z, and 1"""
        return weighted.ranges("uniform", limits)

    def init_server(self, params: Params) -> Server:
        """h = 0"""
        return Server(params, trees.zeros_like(params))

    def global_model(self, server: Server) -> Params:
        """z"""
        return server.z

    def broadcast(self, server: Server) -> Params:
        """z"""
        return server.z

    def init_device(self, params: Params, context: Context) -> Device:
        """g_i = 0"""
        return Device(params, trees.zeros_like(params))

    def local_model(self, device: Device) -> Params:
        """x_i"""
        return device.x

    def begin(self, message: Params, device: Device, context: Context) -> Carry:
        """w^0 = z"""
        return Carry(self.solver.start(message), message, device.gradient, context.steps)

    def objective(self, carry: Carry) -> solver.Objective:
        """-<g_i, w> + alpha/2 ‖w - z‖²: w <- w - lr (∇f_i(w) - g_i + alpha (w - z))"""
        return solver.Objective(self.penalty, carry.z, trees.scale(-1, carry.gradient))

    def finish(self, carry: Carry) -> Finished:
        """g_i's step, and the summand (x_i, 1)."""
        x, z = carry.descent.w, carry.z
        gradient = jax.tree.map(lambda g, x, z: g - self.penalty * (x - z), carry.gradient, x, z)
        one = jnp.ones((), float)
        info = {
            "drift": trees.sqdist(x, z),
            "loss": carry.descent.loss / carry.steps,
            "dual": trees.sqnorm(gradient),
            "weight": one,
        }
        return Finished(Device(x, gradient), weighted.summand(x, one), info)

    def update(self, server: Server, total: weighted.Mean, population: Scalar) -> Server:
        """h <- h - alpha (1/N) Σ (x_i - z);  z = mean(x_i) - h/alpha"""
        mean = weighted.average(total)
        if self.penalty == 0:
            return Server(mean, server.h)
        moved = trees.scale(total.weight / population, trees.sub(mean, server.z))
        h = trees.axpy(-self.penalty, moved, server.h)
        return Server(trees.axpy(-1 / self.penalty, h, mean), h)
