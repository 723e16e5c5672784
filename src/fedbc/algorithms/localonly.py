"""Local-only training: every device trains its own model on its own data, and nothing is learned from others.

    x_i^0 = z^0,   w^0 = x_i,   w^{k+1} = w^k - lr ∇f_i(w^k),   x_i = w^K

It is one end of the scale of personalisation (the other is one model for the pooled data). All devices start from the
same initial model z^0, whenever they first take part. No device uses what the server sends but z^0; z, the plain mean
of the last x_i of all devices that took part so far, is formed for reference.

    lr         rate of the steps
    momentum   of the steps, restarted each round
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from fedbc import trees
from fedbc.algorithms import latest, solver
from fedbc.algorithms.base import Context, Finished, Params, Scalar, parameter
from fedbc.algorithms.descending import Descending
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Rate


class Server(NamedTuple):
    """z and z^0, and the sum of the last x_i that z is the mean of."""

    z: Params
    origin: Params
    sent: latest.Latest


class Message(NamedTuple):
    """z, to measure the drift from, and z^0, to start from."""

    z: Params
    origin: Params


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
class LocalOnly(Descending):
    """No communication: each device trains its own model on its own data, from a common initial model."""

    name: ClassVar[str] = "localonly"
    reference: ClassVar[str] = ""

    lr: float = parameter(0.01, "rate of the local steps", rate=Rate.LOCAL)
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")

    def __post_init__(self) -> None:
        solver.check(self.lr, self.momentum)

    def check_summand(self, summand: latest.Latest, examples: int) -> None:
        """It joins once."""
        del examples
        latest.check_senders(summand)

    def ranges(self, limits: Limits) -> Any:
        """The change of what it sent last."""
        return latest.ranges(limits)

    def init_server(self, params: Params) -> Server:
        """No device has sent anything yet."""
        return Server(params, params, latest.start(params))

    def global_model(self, server: Server) -> Params:
        """z, the mean of the local models"""
        return server.z

    def broadcast(self, server: Server) -> Message:
        """(z, z^0)"""
        return Message(server.z, server.origin)

    def init_device(self, params: Params, context: Context) -> Device:
        """The device has not trained yet; `begin` replaces this x_i by z^0."""
        return Device(params, jnp.zeros((), float))

    def local_model(self, device: Device) -> Params:
        """x_i"""
        return device.x

    def begin(self, message: Message, device: Device, context: Context) -> Carry:
        """w^0 = x_i, at first z^0"""
        w = trees.where(device.joined > 0, device.x, message.origin)
        return Carry(self.solver.start(w), message.z, device, context.steps)

    def objective(self, carry: Carry) -> solver.Objective:
        """f_i alone: w <- w - lr ∇f_i(w)"""
        return solver.ALONE

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
        return Server(latest.mean(sent), server.origin, sent)
