"""A method around another one: everything is the inner method's, but for what the outer one changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from fedbc.algorithms.base import Algorithm, Context, Duals, Loss, Params, Scalar
from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Part, Rate, Solver


@dataclass(frozen=True)
class Wrapping(Algorithm):
    """Around `algorithm`, whose device state and carry are `inner` in this one's."""

    algorithm: Algorithm

    @property
    def batches(self) -> int:  # type: ignore[override]
        """As the inner method's."""
        return self.algorithm.batches

    def hyperparameters(self) -> dict[str, Any]:
        """The inner method's own are under `algorithm`."""
        inner = {"name": self.algorithm.name, **self.algorithm.hyperparameters()}
        return super().hyperparameters() | {"algorithm": inner}

    def with_solver(self, solver: Solver) -> Self:
        """For the inner method."""
        return dataclasses.replace(self, algorithm=self.algorithm.with_solver(solver))

    def in_round(self, round: Scalar) -> Self:
        """As the inner method."""
        inner = self.algorithm.in_round(round)
        return self if inner is self.algorithm else dataclasses.replace(self, algorithm=inner)

    def with_factors(self, factors: Mapping[Rate, Scalar]) -> Self:
        """As the inner method."""
        return dataclasses.replace(self, algorithm=self.algorithm.with_factors(factors))

    def check_solver(self, solver: Solver) -> None:
        """As the inner method does."""
        self.algorithm.check_solver(solver)

    def refuses(self, part: Part) -> str | None:
        """As the inner method does."""
        return self.algorithm.refuses(part)

    def ranges(self, limits: Limits) -> Any:
        """As the inner method's, unless the wrapper changes the summand."""
        return self.algorithm.ranges(limits)

    def check_population(self, devices: int) -> None:
        """As the inner method does."""
        self.algorithm.check_population(devices)

    def check_statistics(self) -> None:
        """As the inner method does."""
        self.algorithm.check_statistics()

    def fine_tune(self) -> FineTune | None:
        """As the inner method does."""
        return self.algorithm.fine_tune()

    def init_server(self, params: Params) -> Any:
        """The inner method's state."""
        return self.algorithm.init_server(params)

    def global_model(self, server: Any) -> Params:
        """z"""
        return self.algorithm.global_model(server)

    def broadcast(self, server: Any) -> Any:
        """The inner method's message."""
        return self.algorithm.broadcast(server)

    def local_model(self, device: Any) -> Params:
        """x_i"""
        return self.algorithm.local_model(device.inner)

    def duals(self, device: Any) -> Duals | None:
        """As the inner method's."""
        return self.algorithm.duals(device.inner)

    def step(self, loss: Loss, carry: Any, batch: object) -> Any:
        """As the inner method does."""
        return carry._replace(inner=self.algorithm.step(loss, carry.inner, batch))

    def stationarity(self, carry: Any, gradient: Callable[[Params], Params]) -> Scalar:
        """As the inner method's."""
        return self.algorithm.stationarity(carry.inner, gradient)

    def count_steps(self, carry: Any, steps: Scalar) -> Any:
        """As the inner method does."""
        return carry._replace(inner=self.algorithm.count_steps(carry.inner, steps))

    def with_global_model(self, server: Any, z: Params) -> Any:
        """As the inner method does."""
        return self.algorithm.with_global_model(server, z)

    def update(self, server: Any, total: Any, population: Scalar) -> Any:
        """As the inner method does."""
        return self.algorithm.update(server, total, population)


def start_anew(algorithm: Algorithm, params: Params, context: Context) -> Any:
    """What a method carries at the beginning of a device's first round, from the global model."""
    message = algorithm.broadcast(algorithm.init_server(params))
    return algorithm.begin(message, algorithm.init_device(params, context), context)
