"""FedAvg: local steps from the global model, then a mean.

    B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
    from Decentralized Data", AISTATS 2017.

    w^0 = z,  w^{k+1} = w^k - lr ∇f_i(w^k),  x_i = w^{K_i};      z = Σ n_i x_i / Σ n_i  over the sampled devices

`momentum` of the local steps is 0 on paper; `weights="uniform"` puts 1 in the place of n_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fedbc import trees
from fedbc.algorithms import solver, weighted
from fedbc.algorithms.base import Context, Finished, LocalProblem, Params, Scalar, parameter
from fedbc.algorithms.descending import PlainSteps
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.solver import Rate


class Carry(NamedTuple):
    """Local training, and the round's fixed quantities."""

    descent: solver.Descent
    z: Params
    weight: Scalar
    steps: Scalar


@dataclass(frozen=True)
class FedAvg(PlainSteps):
    """Federated averaging: local steps from the global model, then a mean weighted by n_i, √n_i or uniformly."""

    name: ClassVar[str] = "fedavg"
    reference: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"

    lr: float = parameter(0.01, "rate of the local steps", rate=Rate.LOCAL)
    momentum: float = parameter(0.0, "momentum of the local steps, restarted each round")
    weights: str = parameter("examples", weighted.WEIGHTS)

    def __post_init__(self) -> None:
        solver.check(self.lr, self.momentum)
        weighted.check(self.weights)

    def check_summand(self, summand: weighted.Mean, examples: int) -> None:
        """Its weight is that of its examples."""
        weighted.check_weight(self.weights, summand.weight, examples)

    def ranges(self, limits: Limits) -> Any:
        """w (x_i - z) and w"""
        return weighted.ranges(self.weights, limits)

    def init_server(self, params: Params) -> Params:
        """The server keeps z alone."""
        return params

    def init_device(self, params: Params, context: Context) -> Params:
        """A device keeps the last model it trained, to be looked at; training does not use it."""
        return params

    def local_model(self, device: Params) -> Params:
        """x_i"""
        return device

    def begin(self, message: Params, device: Params, context: Context) -> Carry:
        """w^0 = z"""
        return Carry(self.solver.start(message), message, weighted.weight(self.weights, context), context.steps)

    def objective(self, carry: Carry) -> solver.Objective:
        """f_i alone, w <- w - lr ∇f_i(w); with a pull towards z where a method built on this one has it."""
        return solver.Objective(self.pull, carry.z)

    @property
    def pull(self) -> float | None:
        """The strength of the pull towards z."""
        return None

    @property
    def has_plain_steps(self) -> bool:
        """Unless a method built on this one has other steps."""
        return type(self).step is FedAvg.step

    def local_problem(self, carry: Carry) -> LocalProblem:
        """The pull is the gradient of pull/2 ‖w - z‖²."""
        return LocalProblem(carry.descent.w, (self.pull or 0.0) / 2, self.lr, self.momentum)

    def finish(self, carry: Carry) -> Finished:
        """The summand (n_i x_i, n_i)."""
        x = carry.descent.w
        info = {
            "drift": trees.sqdist(x, carry.z),
            "loss": carry.descent.loss / carry.steps,
            "weight": carry.weight,
        }
        return Finished(x, weighted.summand(x, carry.weight), info)

    def update(self, server: Params, total: weighted.Mean, population: Scalar) -> Params:
        """z = Σ n_i x_i / Σ n_i"""
        return weighted.average(total)
