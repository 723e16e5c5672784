"""SCAFFOLD: FedAvg whose local steps are corrected for the device's drift by control variates.

    S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled Averaging
    for Federated Learning", ICML 2020, Algorithm 1.

    device:  w^0 = z,  w^{k+1} = w^k - eta_l (∇f_i(w^k) - c_i + c),  x_i = w^K
             option I:   c_i+ = ∇f_i(z)                        option II:  c_i+ = c_i - c + (z - x_i) / (K eta_l)
    server:  z <- z + eta_g mean(x_i - z) over the sampled devices;      c = mean of c_i over all devices, absent ones
             with their last c_i, those that never took part with 0

    symbol   argument        symbol   argument        symbol               argument
    eta_l    lr              eta_g    server_lr       option "I" or "II"   option

c and every c_i start from 0. At a fixed point c_i = ∇f_i(z), c = 0 and x_i = z: the optimum, whatever K and K_i.

Two additions to the paper. `momentum` m in the local steps, v <- m v + g: after K steps along a constant g, z - x_i is
eta_l Σ_{k=1..K} (1 - m^k)/(1 - m) g, and that sum takes K's place in option II; dividing by K eta_l would make the
control variates 1/(1 - m) times too large. `weights="examples"` aims at Σ n_i f_i instead of the paper's Σ f_i (the
default, "uniform"): both means are then weighted by n_i. For c this takes Σ n_i over *all* devices, which the server
estimates by N times the mean n_i of those that took part so far; it is exact from when all of them have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms import onepass, solver, weighted
from fedbc.algorithms.base import Context, Finished, Loss, Params, Scalar, parameter
from fedbc.algorithms.descending import Descending
from fedbc.algorithms.oracle import oracle_of
from fedbc.algorithms.ranges import Limits, Number, Vector
from fedbc.algorithms.solver import Rate
from fedbc.errors import InputError


class Server(NamedTuple):
    """z, c, and the sums over the devices that took part so far of which c is made."""

    z: Params
    c: Params
    sum: Params
    """Σ n_i c_i (n_i or 1, by `weights`)"""
    weight: Scalar
    """Σ n_i"""
    members: Scalar


class Message(NamedTuple):
    """What a device receives."""

    z: Params
    c: Params


class Device(NamedTuple):
    """What a device keeps: its last model, its control variate, and whether (1) it took part before."""

    x: Params
    c: Params
    joined: Scalar


class Carry(NamedTuple):
    """Local training, ∇f_i(z) so far (option I), and the round's fixed quantities."""

    descent: solver.Descent
    gradient: onepass.Pass
    message: Message
    device: Device
    weight: Scalar
    context: Context


class Total(NamedTuple):
    """The sum that the server sees."""

    move: Params
    """Σ n_i (x_i - z)"""
    weight: Scalar
    c: Params
    """Σ n_i (c_i+ - c_i)"""
    new_weight: Scalar
    """Σ n_i of the devices that took part for the first time"""
    new_members: Scalar


@dataclass(frozen=True)
class SCAFFOLD(Descending):
    """Federated averaging with control variates that cancel the drift of heterogeneous devices."""

    name: ClassVar[str] = "scaffold"
    reference: ClassVar[str] = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for FL, ICML 2020"

    lr: float = parameter(0.01, "rate of the local steps (eta_l)", rate=Rate.LOCAL)
    server_lr: float = parameter(1.0, "rate of the server's step (eta_g)")
    option: str = parameter("II", "control variates: 'I' (gradient at the global model) or 'II' (from the local steps)")
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")
    weights: str = parameter("uniform", weighted.WEIGHTS)

    def __post_init__(self) -> None:
        solver.check(self.lr, self.momentum)
        checks.number("server_lr", self.server_lr, above=0)
        checks.choice("option", self.option, ["I", "II"])
        weighted.check(self.weights)

    def check_summand(self, summand: Total, examples: int) -> None:
        """Its weight is that of its examples, and it joins once."""
        weighted.check_weight(self.weights, summand.weight, examples)
        joins = float(summand.new_members)
        if joins not in (0, 1) or float(summand.new_weight) != joins * float(summand.weight):
            raise InputError(f"it joins as {joins:g} devices with weight {float(summand.new_weight):g}")

    def ranges(self, limits: Limits) -> Any:
        """w (x_i - z); c_i+ - c_i has the norm of (z - x_i) / (K eta_l) and of c, K being at least 1."""
        weight: Any = weighted.weight_range(self.weights, limits)
        moves: tuple[Any, Any] = Vector(limits.clip, "weight"), Vector(limits.clip / self.lr, "weight")
        new: tuple[Any, Any] = Number(0, weight.high), Number(0, 1)
        return Total(moves[0], weight, moves[1], *new)

    def init_server(self, params: Params) -> Server:
        """c = 0"""
        zero, none = trees.zeros_like(params), jnp.zeros((), float)
        return Server(params, zero, zero, none, none)

    def global_model(self, server: Server) -> Params:
        """z"""
        return server.z

    def broadcast(self, server: Server) -> Message:
        """(z, c)"""
        return Message(server.z, server.c)

    def init_device(self, params: Params, context: Context) -> Device:
        """c_i = 0"""
        return Device(params, trees.zeros_like(params), jnp.zeros((), float))

    def local_model(self, device: Device) -> Params:
        """x_i"""
        return device.x

    def begin(self, message: Message, device: Device, context: Context) -> Carry:
        """w^0 = z"""
        weight = weighted.weight(self.weights, context)
        return Carry(self.solver.start(message.z), onepass.start(message.z), message, device, weight, context)

    def objective(self, carry: Carry) -> solver.Objective:
        """<c - c_i, w>, so that w <- w - eta_l (∇f_i(w) - c_i + c)"""
        return solver.Objective(linear=self.correction(carry))

    def correction(self, carry: Carry) -> Params:
        """c - c_i, what every local step adds to the gradient"""
        return trees.sub(carry.message.c, carry.device.c)

    def count_steps(self, carry: Carry, steps: Scalar) -> Carry:
        """K_i"""
        return carry._replace(context=carry.context._replace(steps=steps))

    def refuses(self, part: solver.Part) -> str | None:
        """Option II reads the gradient off plain steps."""
        if self.option == "II" and part in (solver.Part.OPTIMIZER, solver.Part.KEEP_OPTIMIZER, solver.Part.DOMAIN):
            return "the control variates of option II assume plain steps; give option='I'"
        return None

    def step(self, loss: Loss, carry: Carry, batch: object) -> Carry:
        """A local step; for option I, ∇f_i(z) on the batch."""
        moved = super().step(loss, carry, batch)
        if self.option == "II":
            return moved

        def at_z() -> Params:
            return oracle_of(loss).gradient(carry.message.z, batch)

        return moved._replace(gradient=onepass.add(loss, carry.gradient, carry.context.examples, batch, at_z))

    def finish(self, carry: Carry) -> Finished:
        """The new control variate, and the summand (n_i (x_i - z), n_i, n_i (c_i+ - c_i), ...)."""
        x, z, old = carry.descent.w, carry.message.z, carry.device
        if self.option == "I":
            own = onepass.mean(carry.gradient)
        else:
            path = self.lr * solver.path(carry.context.steps, self.momentum)
            own = jax.tree.map(lambda added, zi, xi: (zi - xi) / path - added, self.correction(carry), z, x)
        info = {"drift": trees.sqdist(x, z), "loss": carry.descent.loss / carry.context.steps}
        info |= {"control": trees.sqnorm(own), "weight": carry.weight}
        move, change = (trees.scale(carry.weight, trees.sub(*pair)) for pair in ((x, z), (own, old.c)))
        new = 1 - old.joined
        total = Total(move, carry.weight, c=change, new_weight=new * carry.weight, new_members=new)
        return Finished(Device(x, own, jnp.ones_like(old.joined)), total, info)

    def update(self, server: Server, total: Total, population: Scalar) -> Server:
        """z <- z + eta_g mean(x_i - z), and c from the sums."""
        sum, weight, members = trees.add(server[2:], total[2:])
        c = trees.mean(sum, population * weight / members)
        return Server(trees.axpy(self.server_lr / total.weight, total.move, server.z), c, sum, weight, members)
