"""FedADMM: consensus by the method of multipliers, under partial participation.

    H. Wang, S. Marella, J. Anderson, "FedADMM: A Federated Primal-Dual Algorithm Allowing Partial Participation",
    CDC 2022; Y. Gong, Y. Li, N. M. Freris, "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to
    System Heterogeneity", ICDE 2022. The notation is the second one's, with z for its theta.

    device:  w^{k+1} = w^k - lr (∇f_i(w^k) + y_i + rho (w^k - z)),  x_i = w^K,  from w^0 = z or x_i
             y_i     = y_i + rho (x_i - z)
             a_i     = x_i + y_i/rho                    the augmented model; its change is what the device sends
    server:  z       = z + eta mean(a_i - old a_i)      over the sampled devices

    symbol   argument        symbol   argument        symbol   argument
    rho      rho             eta      server_lr       w^0      start

y_i starts from 0 and old a_i from the initial z^0, on every device, whenever it first takes part. With eta = |S|/N
(`server_lr=None`, the default: the first paper's server, and the second one's theory) z is at all times the mean of
all a_i, and a fixed point is the exact optimum of Σ f_i. Any other eta loses that under sampling: it may be faster, but
where it comes to rest depends on its way. `lr` and `momentum` are the local steps', momentum being 0 in the papers.

The papers leave w^0 open; `start="global"` is what the second one's code does. The difference to FedPD: there x_i is
where training starts, and devices that never took part do not hold z at z^0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import latest, solver, weighted
from fedbc.algorithms.base import Context, Finished, Params, Scalar, parameter
from fedbc.algorithms.descending import Descending
from fedbc.algorithms.ranges import Limits, Vector
from fedbc.algorithms.solver import Rate


class Server(NamedTuple):
    """z, and z^0, which devices that take part for the first time need."""

    z: Params
    origin: Params


class Device(NamedTuple):
    """What a device keeps: its model, its dual vector, and whether (1) it took part before."""

    x: Params
    dual: Params
    joined: Scalar


class Carry(NamedTuple):
    """Local training, and the round's fixed quantities."""

    descent: solver.Descent
    message: Server
    device: Device
    steps: Scalar


@dataclass(frozen=True)
class FedADMM(Descending):
    """Consensus by ADMM with partial participation: devices send the change of their augmented models."""

    name: ClassVar[str] = "fedadmm"
    reference: ClassVar[str] = "Wang et al., FedADMM, CDC 2022; Gong et al., FedADMM, ICDE 2022"

    lr: float = parameter(0.01, "rate of the local steps", rate=Rate.LOCAL)
    rho: float = parameter(0.1, "strength of the pull towards the global model (rho)")
    server_lr: float | None = parameter(None, "rate of the server's step (eta); None means |S|/N, which is exact")
    start: str = parameter("global", "where local training starts: 'global' (z) or 'local' (x_i)")
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")

    def __post_init__(self) -> None:
        solver.check(self.lr, self.momentum)
        checks.number("rho", self.rho, above=0)
        if self.server_lr is not None:
            checks.number("server_lr", self.server_lr, above=0)
        checks.choice("start", self.start, ["global", "local"])

    def check_summand(self, summand: weighted.Mean, examples: int) -> None:
        """The device counts once."""
        weighted.check_weight("uniform", summand.weight, examples)

    def ranges(self, limits: Limits) -> Any:
        """a_i - old a_i = (x_i - old x_i) + (x_i - z), and 1"""
        change: Any = Vector(latest.CHANGES * limits.clip)
        return weighted.Mean(change, weighted.weight_range("uniform", limits))  # type: ignore[arg-type]

    def init_server(self, params: Params) -> Server:
        """z = z^0"""
        return Server(params, params)

    def global_model(self, server: Server) -> Params:
        """z"""
        return server.z

    def init_device(self, params: Params, context: Context) -> Device:
        """x_i = z, y_i = 0"""
        return Device(params, trees.zeros_like(params), jnp.zeros((), float))

    def local_model(self, device: Device) -> Params:
        """x_i"""
        return device.x

    def begin(self, message: Server, device: Device, context: Context) -> Carry:
        """w^0 = z, or x_i"""
        w = message.z if self.start == "global" else device.x
        return Carry(self.solver.start(w), message, device, context.steps)

    def objective(self, carry: Carry) -> solver.Objective:
        """<y_i, w> + rho/2 ‖w - z‖²: w <- w - lr (∇f_i(w) + y_i + rho (w - z))"""
        return solver.Objective(self.rho, carry.message.z, carry.device.dual)

    def finish(self, carry: Carry) -> Finished:
        """The dual step, and the summand (a_i - old a_i, 1)."""
        x, (z, origin), old = carry.descent.w, carry.message, carry.device
        dual = jax.tree.map(lambda y, x, z: y + self.rho * (x - z), old.dual, x, z)
        before = trees.where(old.joined > 0, trees.axpy(1 / self.rho, old.dual, old.x), origin)
        after = trees.axpy(1 / self.rho, dual, x)
        one = jnp.ones_like(old.joined)
        info = {
            "drift": trees.sqdist(x, z),
            "loss": carry.descent.loss / carry.steps,
            "dual": trees.sqnorm(dual),
            "weight": one,
        }
        return Finished(Device(x, dual, one), weighted.summand(trees.sub(after, before), one), info)

    def update(self, server: Server, total: weighted.Mean, population: Scalar) -> Server:
        """z <- z + eta mean(a_i - old a_i)"""
        rate = 1 / population if self.server_lr is None else self.server_lr / total.weight
        return Server(trees.axpy(rate, total.weighted, server.z), server.origin)
