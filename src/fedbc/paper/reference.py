"""What the paper's public code of 2022 does: its slips, apart from the methods themselves.

Each class departs from its correct method in the ways its docstring lists, and in no other; a specification names it
`reference-...`, which `fedbc.runs.catalog.PLUGINS` finds here.

Two more slips need no class. One optimiser with momentum 0.5 stepped lambda and gamma of *all* devices, so that a
device's dual step went on by itself while others stepped: its parts sum to 1/(1 - 0.5) = 2 steps, nearly all of them
before the round's end, which `dual_rate` says. And Per-FedAvg's outer rate was never read: the inner one served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import trees
from fedbc.algorithms import onepass, weighted
from fedbc.algorithms.base import Context, Finished, Params, Scalar, parameter
from fedbc.algorithms.pfedme import Carry as PFedMeCarry
from fedbc.algorithms.pfedme import PFedMe
from fedbc.algorithms.qfedavg import SMALLEST_LOSS, QFedAvg
from fedbc.algorithms.qfedavg import Carry as QFedAvgCarry
from fedbc.algorithms.qfedavg import Total as QFedAvgTotal
from fedbc.algorithms.scaffold import SCAFFOLD, Carry, Device, Message
from fedbc.runs.catalog import register

DUAL_MOMENTUM = 0.5


def dual_rate(rate: float) -> float:
    """The rate without momentum whose step is as long as all parts of one step with the reference's dual momentum."""
    return rate / (1 - DUAL_MOMENTUM)


@register
@dataclass(frozen=True)
class ReferenceQFedAvg(QFedAvg):
    """q-FedAvg with h_i = q F_i^{q-1} ‖z - x_i‖² + F_i^q/lr (its norm lacks 1/lr²), sums weighted by examples."""

    name: ClassVar[str] = "reference-qfedavg"

    weights: str = parameter("examples", weighted.WEIGHTS)

    def finish(self, carry: QFedAvgCarry) -> Finished:
        """The summand (F_i^q Delta_i, h_i), with the norm of z - x_i in the place of Delta_i's."""
        finished = super().finish(carry)
        f = jnp.maximum(onepass.mean(carry.loss_of_z), SMALLEST_LOSS)
        drift = finished.info["drift"]
        h = carry.weight * (self.q * f ** (self.q - 1) * drift + f**self.q / self.lr)
        return finished._replace(summand=QFedAvgTotal(finished.summand.delta, h))


class ReferenceServer(NamedTuple):
    """z and c, and the random network from which every control variate starts."""

    z: Params
    c: Params
    first: Params


class ReferenceTotal(NamedTuple):
    """The sum that the server sees."""

    mean: weighted.Mean
    c: Params
    """Σ (c_i+ - c_i)"""


@register
@dataclass(frozen=True)
class ReferenceSCAFFOLD(SCAFFOLD):
    """SCAFFOLD whose control variates start from a random network, and are 1/(1 - momentum) times too large.

    c and every c_i start from the weights of one random network (here: the initial model's entries in another order)
    instead of 0; option II divides by K lr although momentum carries further; the server's mean is weighted by
    examples, c's is not. (With a network of its own for every c_i, c would never be their mean, and accuracy on the
    synthetic data would be 54 %, far below what the code of 2022 gave; with one for all it agrees.)
    """

    name: ClassVar[str] = "reference-scaffold"

    weights: str = parameter("examples", weighted.WEIGHTS)

    def init_server(self, params: Params) -> ReferenceServer:  # type: ignore[override]
        """c is a random network."""
        network = shuffled(params)
        return ReferenceServer(params, network, network)

    def broadcast(self, server: ReferenceServer) -> ReferenceServer:  # type: ignore[override]
        """z, c and the random network."""
        return server

    def begin(self, message: ReferenceServer, device: Device, context: Context) -> Carry:  # type: ignore[override]
        """w^0 = z; c_i is the random network at first."""
        c = trees.where(device.joined > 0, device.c, message.first)
        weight = weighted.weight(self.weights, context)
        own, sent = device._replace(c=c), Message(message.z, message.c)
        return Carry(self.solver.start(message.z), onepass.start(message.z), sent, own, weight, context)

    def finish(self, carry: Carry) -> Finished:
        """c_i+ = c_i - c + (z - x_i)/(K lr), and the summand (n_i x_i, n_i, c_i+ - c_i)."""
        x, (z, c), old = carry.descent.w, carry.message, carry.device
        path = self.lr * carry.context.steps
        own = jax.tree.map(lambda ci, cg, zi, xi: ci - cg + (zi - xi) / path, old.c, c, z, x)
        info = {
            "drift": trees.sqdist(x, z),
            "loss": carry.descent.loss / carry.context.steps,
            "control": trees.sqnorm(own),
            "weight": carry.weight,
        }
        total = ReferenceTotal(weighted.summand(x, carry.weight), trees.sub(own, old.c))
        return Finished(Device(x, own, jnp.ones_like(old.joined)), total, info)

    def update(self, server: ReferenceServer, total: ReferenceTotal, population: Scalar) -> ReferenceServer:  # type: ignore[override]
        """z = Σ n_i x_i / Σ n_i;  c <- c + Σ (c_i+ - c_i) / N"""
        return server._replace(z=weighted.average(total.mean), c=trees.axpy(1 / population, total.c, server.c))


def shuffled(params: Params) -> Params:
    """The entries of every array in another order: a network as random as the initial one."""
    leaves, shape = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(2022), len(leaves))
    mixed = [jax.random.permutation(k, a.reshape(-1)).reshape(a.shape) for k, a in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(shape, mixed)


@register
@dataclass(frozen=True)
class ReferencePFedMe(PFedMe):
    """pFedMe whose local model is w_i, not the personalised theta_i; the server's mean is weighted by examples."""

    name: ClassVar[str] = "reference-pfedme"

    inner_lr: float = parameter(0.01, "rate of the steps on theta")
    weights: str = parameter("examples", weighted.WEIGHTS)

    def finish(self, carry: PFedMeCarry) -> Finished:
        """The device keeps w_i."""
        return super().finish(carry)._replace(device=carry.w)
