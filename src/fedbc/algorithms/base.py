"""The contract of every method: an algorithm is a sum.

A method is a frozen dataclass of hyper-parameters with pure functions over pytrees. One round is

    message = broadcast(server)                          the server's message to the sampled devices
    for each sampled device i:
        carry = begin(message, device_i, context_i)      the device's local work begins,
        carry = step(loss, carry, batch)  ... K times    takes its steps,
        device_i, summand_i, info_i = finish(carry)      and ends
    server = update(server, Σ summand_i, population)     the server sees only the sum

so that the server needs constant memory, partial sums may be formed per core and per machine in any order, a device
that fails is left out of the sum, and no upload need ever be seen by itself. The same functions run in the simulator
and on real devices.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax

from fedbc.algorithms.finetune import FineTune

Params = Any
State = Any
Carry = Any
Scalar = jax.Array
Loss = Callable[[Params, Any], Scalar]


class Context(NamedTuple):
    """What a device knows of itself in a round."""

    index: Scalar  # type: ignore[assignment]  # it hides a tuple's method of this name
    """its number in the federation, from 0"""
    examples: Scalar
    """n_i, how many training examples it holds"""
    steps: Scalar
    """K_i, how many local steps it will take"""


class Finished(NamedTuple):
    """The outcome of one device's local work."""

    device: State
    """the state that the device keeps, on the device"""
    summand: State
    """what it adds to the sum that the server sees"""
    info: dict[str, Scalar]
    """scalars for people to look at, apart from state; `weight` is the device's weight in the server's mean"""


def parameter(default: Any, help: str) -> Any:
    """A hyper-parameter with its default and the line of help that the command line shows."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass(frozen=True)
class Algorithm(ABC):
    """Base class of all methods; the module's docstring tells the contract."""

    name: ClassVar[str]
    """the name on the command line and in tables"""
    reference: ClassVar[str] = ""
    """the publication"""
    batches: ClassVar[int] = 1
    """how many mini-batches one step takes; where more than one, `step` gets a tuple of them"""

    @abstractmethod
    def init_server(self, params: Params) -> State:
        """The state that the server keeps, from the initial global model."""

    def global_model(self, server: State) -> Params:
        """z, from the server's state."""
        return server

    def broadcast(self, server: State) -> State:
        """What the server sends to the sampled devices."""
        return server

    @abstractmethod
    def init_device(self, params: Params, context: Context) -> State:
        """The state that a device keeps, from the global model that it receives when it first takes part."""

    @abstractmethod
    def local_model(self, device: State) -> Params:
        """x_i, from the device's state."""

    @abstractmethod
    def begin(self, message: State, device: State, context: Context) -> Carry:
        """Start a device's local work; what it returns is carried from step to step."""

    @abstractmethod
    def step(self, loss: Loss, carry: Carry, batch: Any) -> Carry:
        """One local step; `loss(params, batch)` is f_i on the batch, and `batch.size` its number of examples."""

    @abstractmethod
    def finish(self, carry: Carry) -> Finished:
        """End a device's local work."""

    @abstractmethod
    def update(self, server: State, total: State, population: Scalar) -> State:
        """The server's new state from the sum of the summands; `population` is the number of all devices."""

    def fine_tune(self) -> FineTune | None:
        """How a device adapts its model before use, for methods that train a model to be adapted (MAML)."""
        return None

    def check_summand(self, summand: State, examples: int) -> None:  # noqa: B027 (a hook, as the next)
        """Raise an InputError if no honest device with so many examples could have sent this summand.

        A deployment's server asks this of arrays that have the right shapes and are finite, before it adds them.
        """

    def check_population(self, devices: int) -> None:  # noqa: B027 (a hook that most methods leave empty)
        """Raise an InputError if a hyper-parameter does not fit a federation of this many devices."""

    def hyperparameters(self) -> dict[str, Any]:
        """Names and values, as they are written to a specification."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
