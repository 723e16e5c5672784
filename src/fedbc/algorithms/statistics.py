"""Any method for a model that keeps state besides its parameters, such as the running statistics of a BatchNorm.

The method trains the parameters and knows of nothing else. Statistics are neither trained nor pulled, and count neither
in ‖x_i - z‖² nor in the method's summand. They follow the evaluations of the loss along the local steps, and

    local (FedBN's way)   stay with the device from round to round; the server has the initial ones
    averaged              start each round from the server's, which takes their mean, weighted by n_i, from the sum

FedBN: X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021; there the layer's trained scale and shift stay local too, here only its statistics do.

Parameters and statistics together are a dictionary with the two, `params` and `statistics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import trees
from fedbc.algorithms.base import Algorithm, Context, Finished, Params, Scalar
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.wrapping import Wrapping
from fedbc.errors import InputError

Both = dict[str, Any]


class Server(NamedTuple):
    """The method's state, and the statistics of the global model."""

    inner: Any
    statistics: Any


class Message(NamedTuple):
    """The method's message, and the statistics to start from; None where they stay local."""

    inner: Any
    statistics: Any


class Device(NamedTuple):
    """The method's state, and the device's statistics."""

    inner: Any
    statistics: Any


class Carry(NamedTuple):
    """The method's local training, and the statistics so far."""

    inner: Any
    statistics: Any
    examples: Scalar


class Summand(NamedTuple):
    """The method's summand, and n_i times the statistics; None where they stay local."""

    inner: Any
    statistics: Any
    examples: Any


@dataclass(frozen=True)
class WithStatistics(Wrapping):
    """A method, for a model that keeps statistics."""

    name: ClassVar[str] = "with statistics"

    averaged: bool = False

    def __post_init__(self) -> None:
        if self.averaged:
            self.algorithm.check_statistics()

    def init_server(self, params: Both) -> Server:
        """The method's state, and the initial statistics."""
        return Server(self.algorithm.init_server(params["params"]), params["statistics"])

    def global_model(self, server: Server) -> Both:
        """z, with the server's statistics."""
        return {"params": self.algorithm.global_model(server.inner), "statistics": server.statistics}

    def broadcast(self, server: Server) -> Message:
        """The method's message."""
        return Message(self.algorithm.broadcast(server.inner), server.statistics if self.averaged else None)

    def init_device(self, params: Both, context: Context) -> Device:
        """The method's state, and the initial statistics."""
        return Device(self.algorithm.init_device(params["params"], context), params["statistics"])

    def local_model(self, device: Device) -> Both:
        """x_i, with the device's statistics."""
        return {"params": self.algorithm.local_model(device.inner), "statistics": device.statistics}

    def begin(self, message: Message, device: Device, context: Context) -> Carry:
        """From the device's own statistics, or from the server's."""
        statistics = message.statistics if self.averaged else device.statistics
        return Carry(self.algorithm.begin(message.inner, device.inner, context), statistics, context.examples)

    def step(self, loss: Any, carry: Carry, batch: object) -> Carry:
        """The method's step. `loss` gives the value and the new statistics, which pass by the method in a reference."""
        kept = jax.tree.map(jax.new_ref, carry.statistics)

        def value_alone(params: Params, batch: object) -> Scalar:
            value, new = loss({"params": params, "statistics": jax.tree.map(lambda ref: ref[...], kept)}, batch)
            jax.tree.map(lambda ref, a: ref.__setitem__(..., jax.lax.stop_gradient(a)), kept, new)
            return value

        inner = self.algorithm.step(value_alone, carry.inner, batch)
        return carry._replace(inner=inner, statistics=jax.tree.map(lambda ref: ref[...], kept))

    def finish(self, carry: Carry) -> Finished:
        """The method's end."""
        return self.finished(self.algorithm.finish(carry.inner), carry.statistics, carry.examples)

    def finished(self, done: Finished, statistics: Any, examples: Scalar) -> Finished:
        """The method's end, with the statistics after the local steps."""
        weight = jnp.asarray(examples, float) if self.averaged else None
        weighted = jax.tree.map(lambda a: weight * a, statistics) if self.averaged else None
        return Finished(Device(done.device, statistics), Summand(done.summand, weighted, weight), done.info)

    def update(self, server: Server, total: Summand, population: Scalar) -> Server:
        """The method's, and the mean of the statistics."""
        statistics = server.statistics
        if self.averaged:
            mean = trees.mean(total.statistics, total.examples)
            statistics = jax.tree.map(_of_type, mean, statistics)
        return Server(self.algorithm.update(server.inner, total.inner, population), statistics)

    def ranges(self, limits: Limits) -> Any:
        """The method's own; averaged statistics have no declared range, and so no secure sum."""
        none: Any = None
        return Summand(self.algorithm.ranges(limits), none, none)

    def check_summand(self, summand: Summand, examples: int) -> None:
        """As the method does; and the statistics have the weight of the device's examples."""
        self.algorithm.check_summand(summand.inner, examples)
        if self.averaged and float(summand.examples) != examples:
            raise InputError(f"its statistics have the weight {float(summand.examples):g} with {examples} examples")


def with_statistics(algorithm: Algorithm, kept: str | None) -> Algorithm:
    """The method for a model whose statistics are `kept` "local" or "averaged"; for one without, the method itself."""
    return algorithm if kept is None else WithStatistics(algorithm, averaged=kept == "averaged")


def method_name(algorithm: Algorithm) -> str:
    """What tells one method from another, also where both keep statistics."""
    if not isinstance(algorithm, WithStatistics):
        return algorithm.name
    return f"{algorithm.algorithm.name}, {'averaged' if algorithm.averaged else 'local'} statistics"


def at_home(algorithm: Algorithm, z: Any, device: Any) -> Any:
    """The global model as a device judges it: with its own statistics, where they stay with it."""
    if not isinstance(algorithm, WithStatistics) or algorithm.averaged:
        return z
    return {**z, "statistics": device.statistics}


def trained(algorithm: Algorithm, model: Any) -> Any:
    """The part of a model that is trained."""
    return model["params"] if isinstance(algorithm, WithStatistics) else model


def _of_type(value: Any, like: Any) -> Any:
    """Counters are whole numbers."""
    return (value if jnp.issubdtype(like.dtype, jnp.floating) else jnp.round(value)).astype(like.dtype)
