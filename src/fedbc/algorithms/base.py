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

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax

from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Part, Rate, Solver
from fedbc.errors import InputError

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


INFO = {
    "drift": "‖x_i - z‖² after the local steps",
    "loss": "the mean loss along the local steps",
    "weight": "the device's weight in the server's mean",
}
"""The diagnostics that every method gives, one number per device each; a method may add others of its own."""


class Finished(NamedTuple):
    """The outcome of one device's local work."""

    device: State
    """the state that the device keeps, on the device"""
    summand: State
    """what it adds to the sum that the server sees"""
    info: dict[str, Scalar]
    """scalars for people to look at, apart from state: those of `INFO`, and the method's own"""


class Duals(NamedTuple):
    """The dual variables of a device, lambda_i and gamma_i; or of many, as arrays of the host."""

    multiplier: Any
    tolerance: Any


class LocalProblem(NamedTuple):
    """What plain local steps descend on: f_i(w) + multiplier ‖w - z‖²."""

    start: Params
    """w^0"""
    multiplier: Scalar | float
    lr: float
    momentum: float


class StepsTaken(NamedTuple):
    """Local steps that somebody else took."""

    w: Params
    """where they led"""
    loss: Scalar
    """the sum of their batches' losses"""
    number: Scalar


def parameter(default: Any, help: str, *, rate: Rate | None = None) -> Any:
    """A hyper-parameter with its default and the line of help that the command line shows.

    rate: for a rate of local or dual steps, which a run's schedule may move.
    """
    return dataclasses.field(default=default, metadata={"help": help, "rate": rate})


def is_zero(rate: Any) -> bool:
    """Whether a rate is 0, as far as is known before the run: one that a schedule moves is not."""
    return not isinstance(rate, jax.Array) and rate == 0


@dataclasses.dataclass(frozen=True)
class Algorithm(ABC):
    """Base class of all methods; the module's docstring tells the contract."""

    name: ClassVar[str]
    """the name on the command line and in tables"""
    reference: ClassVar[str] = ""
    """the publication"""
    batches: ClassVar[int] = 1
    """how many mini-batches one step takes; where more than one, `step` gets a tuple of them"""
    solver: ClassVar[Solver] = Solver()
    """takes the local steps, of a method that leaves them to it; given by the run (`with_solver`)"""

    def with_solver(self, solver: Solver) -> Self:
        """The same method with another local solver."""
        given = copy.copy(self)
        object.__setattr__(given, "solver", solver)  # it is no hyper-parameter: the same method takes any
        return given

    def in_round(self, round: Scalar) -> Self:
        """The same method with the rates of a round, where schedules move them."""
        return self.with_factors(self.solver.factors(round))

    def with_factors(self, factors: Mapping[Rate, Scalar]) -> Self:
        """The same method with its rates multiplied; a rate of 0 stays."""
        moved = {f.name: factors[f.metadata["rate"]] for f in self._rates() if f.metadata["rate"] in factors}
        if not moved:
            return self
        given = copy.copy(self)
        for name, factor in moved.items():
            object.__setattr__(given, name, factor * getattr(self, name))  # no longer a number to be checked
        return given

    def check_solver(self, solver: Solver) -> None:
        """Raise an InputError if the method cannot use what was chosen of the local solver."""
        for part in solver.chosen:
            reason = self.refuses(part)
            if reason is not None:
                raise InputError(f"{part} does not apply to {self.name}: {reason}")
        moved = {f.metadata["rate"] for f in self._rates()}
        if solver.lr_schedule is not None and Rate.LOCAL not in moved:
            raise InputError(f"lr_schedule does not apply to {self.name}: it declares no rate=Rate.LOCAL")
        if solver.dual_schedule is not None and Rate.DUAL not in moved:
            raise InputError(f"dual_schedule does not apply to {self.name}: it has no dual rate")

    def refuses(self, part: Part) -> str | None:
        """Why the method does not take this part of a local solver; None if it does."""
        return "it takes its local steps itself"

    def stationarity(self, carry: Carry, gradient: Callable[[Params], Params]) -> Scalar:
        """‖∇L_i(w)‖² where local training stands, from the function w -> ∇f_i(w); of methods that take epsilon."""
        raise NotImplementedError

    def count_steps(self, carry: Carry, steps: Scalar) -> Carry:
        """The carry of local training that ended after so many steps; of methods that take epsilon."""
        raise NotImplementedError

    def with_global_model(self, server: State, z: Params) -> State:
        """The server's state with another global model."""
        return server._replace(z=z) if hasattr(server, "_fields") else z

    def _rates(self) -> list[Any]:
        """The hyper-parameters that schedules may move, unless they are 0."""
        return [f for f in dataclasses.fields(self) if f.metadata.get("rate") and not is_zero(getattr(self, f.name))]

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

    def duals(self, device: State) -> Duals | None:
        """lambda_i and gamma_i, from the device's state, for methods that have them."""
        return None

    @property
    def has_plain_steps(self) -> bool:
        """Whether somebody else, such as an optimizer of PyTorch, may take the local steps in the place of `step`.

        The work is then `begin`, steps on `local_problem`, `accept_steps`, `finish`.
        """
        return False

    def local_problem(self, carry: Carry) -> LocalProblem:
        """What the steps descend on, of a method with plain steps."""
        raise NotImplementedError

    def accept_steps(self, carry: Carry, taken: StepsTaken) -> Carry:
        """What `step` would carry after the steps that somebody else took, of a method with plain steps."""
        raise NotImplementedError

    def fine_tune(self) -> FineTune | None:
        """How a device adapts its model before use, for methods that train a model to be adapted (MAML)."""
        return None

    def check_summand(self, summand: State, examples: int) -> None:  # noqa: B027 (a hook, as the next)
        """Raise an InputError if no honest device with so many examples could have sent this summand.

        A deployment's server asks this of arrays that have the right shapes and are finite, before it adds them.
        """

    def ranges(self, limits: Limits) -> Any:
        """How large each part of the summand can be, in the form of the summand (`fedbc.algorithms.ranges`).

        None, the default, declares nothing: such a method cannot be summed securely.
        """
        return None

    def check_statistics(self) -> None:  # noqa: B027 (a hook that most methods leave empty)
        """Raise an InputError if a model's running statistics may not travel beside the summand."""

    def check_population(self, devices: int) -> None:  # noqa: B027 (a hook that most methods leave empty)
        """Raise an InputError if a hyper-parameter does not fit a federation of this many devices."""

    def hyperparameters(self) -> dict[str, Any]:
        """Names and values, as they are written to a specification."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
