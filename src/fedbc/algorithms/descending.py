"""What the methods share whose local steps descend on f_i and a few terms of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from fedbc import trees
from fedbc.algorithms import optimizers
from fedbc.algorithms.base import Algorithm, Loss, StepsTaken
from fedbc.algorithms.solver import Objective, Part, Solver
from fedbc.errors import InputError


class Descending(Algorithm):
    """A method that says what its steps descend on, and leaves the steps to its solver; it carries a `descent`."""

    lr: float
    momentum: float

    @abstractmethod
    def objective(self, carry: Any) -> Objective:
        """What the local steps descend on beside f_i."""

    def check_solver(self, solver: Solver) -> None:
        """Momentum is that of the method's own gradient descent."""
        super().check_solver(solver)
        if solver.optimizer is not None and self.momentum != 0:
            raise InputError(
                f"momentum={self.momentum:g} is that of optimizer='sgd': leave it out, and give the optimizer its own"
            )
        if solver.keep_optimizer and solver.optimizer is None and self.momentum == 0:
            raise InputError("keep_optimizer has nothing to keep: plain gradient descent remembers nothing")
        if solver.lr_schedule is not None and optimizers.has_own_rate(solver.optimizer):
            raise InputError(
                "lr_schedule does not move the rate of a ready optimizer: give a function from the rate, as optax.adam"
            )

    def refuses(self, part: Part) -> str | None:
        """All parts apply."""
        return None

    def stationarity(self, carry: Any, gradient: Callable[[Any], Any]) -> Any:
        """Of f_i with the objective's terms."""
        w = carry.descent.w
        return trees.sqnorm(self.solver.full_gradient(gradient(w), w, self.objective(carry)))

    def count_steps(self, carry: Any, steps: Any) -> Any:
        """Where the carry has its number of steps."""
        return carry._replace(steps=steps)

    def step(self, loss: Loss, carry: Any, batch: object) -> Any:
        """One step of the solver on the objective."""
        descent = self.solver.step(loss, carry.descent, batch, self.objective(carry), self.lr, self.momentum)
        return carry._replace(descent=descent)


class PlainSteps(Descending):
    """A method that carries the number of its `steps` too, and may have somebody else take them."""

    def accept_steps(self, carry: Any, taken: StepsTaken) -> Any:
        """x_i = w"""
        descent = carry.descent._replace(w=taken.w, loss=taken.loss)
        return carry._replace(descent=descent, steps=taken.number)
