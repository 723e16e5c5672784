"""FedPD: consensus by the method of multipliers, device by device.

    X. Zhang, M. Hong, S. Dhople, W. Yin, Y. Liu, "FedPD: A Federated Learning Framework with Adaptivity to Non-IID
    Data", IEEE Transactions on Signal Processing 2021, Algorithm 1 with its Oracle I.

The problem: min Σ f_i(x_i) subject to x_i = x_0,i and x_0,i = z. A round, with dual vector lambda_i, is

    w^0      = x_i,   w^{k+1} = w^k - lr (∇f_i(w^k) + lambda_i + (w^k - z)/eta),   x_i = w^K
    lambda_i = lambda_i + (x_i - z)/eta
    x_0,i    = x_i + eta lambda_i
    z        = mean of x_0,i over all devices

    symbol          argument          symbol   argument
    eta_1           lr                eta      eta
    (of the steps)  momentum, 0 in the paper

lambda_i starts from 0. The paper skips the communication of a round with probability p; here p = 0, a round being a
communication. Skipping saves messages only; with p = 0 the method is the paper's FedPD that "communicates every round".

Departure: the paper has every device take part in every round. Under sampling, the mean is over the last x_0,i of all
devices that took part so far (see `fedbc.algorithms.latest`). Averaging the sampled devices alone would move z even
from the optimum, since Σ lambda_i = 0 holds over all devices, not over a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import latest, solver
from fedbc.algorithms.base import Context, Finished, Params, Scalar, parameter
from fedbc.algorithms.descending import Descending
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Rate


class Server(NamedTuple):
    """z, and the sum of the last x_0,i that it is the mean of."""

    z: Params
    sent: latest.Latest


class Device(NamedTuple):
    """What a device keeps: its model, its dual vector, and whether (1) it took part before."""

    x: Params
    dual: Params
    joined: Scalar


class Carry(NamedTuple):
    """Local training, and the round's fixed quantities."""

    descent: solver.Descent
    z: Params
    device: Device
    steps: Scalar


@dataclass(frozen=True)
class FedPD(Descending):
    """Consensus by a primal-dual method: devices minimise their augmented Lagrangians, the server averages."""

    name: ClassVar[str] = "fedpd"
    reference: ClassVar[str] = "Zhang et al., FedPD: A Framework with Adaptivity to Non-IID Data, IEEE TSP 2021"

    lr: float = parameter(0.01, "rate of the local steps (eta_1)", rate=Rate.LOCAL)
    eta: float = parameter(1.0, "inverse strength of the pull towards the global model (eta)")
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")

    def __post_init__(self) -> None:
        solver.check(self.lr, self.momentum)
        checks.number("eta", self.eta, above=0)

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
        """z"""
        return server.z

    def broadcast(self, server: Server) -> Params:
        """z"""
        return server.z

    def init_device(self, params: Params, context: Context) -> Device:
        """x_i = z, lambda_i = 0"""
        return Device(params, trees.zeros_like(params), jnp.zeros((), float))

    def local_model(self, device: Device) -> Params:
        """x_i"""
        return device.x

    def begin(self, message: Params, device: Device, context: Context) -> Carry:
        """w^0 = x_i"""
        return Carry(self.solver.start(device.x), message, device, context.steps)

    def objective(self, carry: Carry) -> solver.Objective:
        """<lambda_i, w> + 1/(2 eta) ‖w - z‖²: w <- w - lr (∇f_i(w) + lambda_i + (w - z)/eta)"""
        return solver.Objective(1 / self.eta, carry.z, carry.device.dual)

    def finish(self, carry: Carry) -> Finished:
        """The dual step, and the change of x_0,i as the summand."""
        x, z, old = carry.descent.w, carry.z, carry.device
        dual = jax.tree.map(lambda d, x, z: d + (x - z) / self.eta, old.dual, x, z)
        info = {
            "drift": trees.sqdist(x, z),
            "loss": carry.descent.loss / carry.steps,
            "dual": trees.sqnorm(dual),
            "weight": jnp.ones_like(old.joined),
        }
        before = trees.axpy(self.eta, old.dual, old.x)
        after = trees.axpy(self.eta, dual, x)
        summand = latest.change(after, before, old.joined)
        return Finished(Device(x, dual, jnp.ones_like(old.joined)), summand, info)

    def update(self, server: Server, total: latest.Latest, population: Scalar) -> Server:
        """z = mean of the last x_0,i"""
        sent = latest.add(server.sent, total)
        return Server(latest.mean(sent), sent)
