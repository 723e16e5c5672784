"""Per-FedAvg: a global model to be adapted by one gradient step (MAML) on each device.

    A. Fallah, A. Mokhtari, A. Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
    Meta-Learning Approach", NeurIPS 2020, Algorithm 1.

The objective is Σ F_i(z), F_i(w) = f_i(w - alpha ∇f_i(w)). A local step takes two batches, D and D':

    v = w - alpha ∇f_i(w; D),    d = ∇f_i(v; D')
    w <- w - beta (d - alpha H d),      H = ∇²f_i(w; D)

    order "first":         H d is left out (FO-MAML, as in the FedBC paper's experiments)
    order "hessian_free":  H d = (∇f_i(w + delta d; D) - ∇f_i(w - delta d; D)) / (2 delta)
    order "exact":         H d by automatic differentiation: the step is along ∇F_i on these batches

    server:  z = mean of x_i = w^K over the sampled devices

    symbol   argument        symbol   argument        symbol   argument
    beta     lr              alpha    inner_lr        delta    probe

`momentum` is that of the steps with rate lr, 0 in the paper; `weights` are the server's, uniform in the paper.

Departure: the paper draws a third batch D'' for H, which makes the direction's expectation easier to analyse. Here
D'' = D, as in common implementations of MAML: the exact direction is then the derivative of the number
f_i(w - alpha ∇f_i(w; D); D') itself, and no data are spent on H.

What a device uses is the global model after one step at rate alpha on its own data (`fine_tune`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbc import checks, trees
from fedbc.algorithms import solver, weighted
from fedbc.algorithms.base import Loss, Params, Scalar, parameter
from fedbc.algorithms.fedavg import Carry, FedAvg
from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.oracle import oracle_of
from fedbc.algorithms.solver import Rate


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """Federated meta-learning: a global model that one gradient step adapts to each device."""

    name: ClassVar[str] = "perfedavg"
    reference: ClassVar[str] = (
        "Fallah et al., Personalized FL with Theoretical Guarantees: A MAML Approach, NeurIPS 2020"
    )
    batches: ClassVar[int] = 2

    lr: float = parameter(0.001, "rate of the outer steps (beta)", rate=Rate.LOCAL)
    weights: str = parameter("uniform", weighted.WEIGHTS)
    inner_lr: float = parameter(0.01, "rate of the inner, adapting step (alpha)")
    order: str = parameter("first", "second-order term: 'first' (left out), 'hessian_free' (by differences) or 'exact'")
    probe: float = parameter(0.001, "distance of the differences for order='hessian_free' (delta)")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("inner_lr", self.inner_lr, above=0)
        checks.choice("order", self.order, ["first", "hessian_free", "exact"])
        checks.number("probe", self.probe, above=0)

    def refuses(self, part: solver.Part) -> str | None:
        """Its steps are no descent on one function of the data."""
        return "its steps are no descent on one function of the device's data" if part is solver.Part.EPSILON else None

    def fine_tune(self) -> FineTune:
        """The model in use is z after one inner step on the device's own data."""
        return FineTune(steps=1, lr=self.inner_lr, of="global")

    def step(self, loss: Loss, carry: Carry, batch: tuple[object, object]) -> Carry:  # type: ignore[override]
        """w <- w - beta (direction of the chosen order); the loss recorded is f_i(w; D), before adaptation."""
        value, direction = self.direction(loss, carry.descent.w, batch)
        descent = self.solver.descend(carry.descent, value, direction, solver.ALONE, self.lr, self.momentum)
        return carry._replace(descent=descent)

    def direction(self, loss: Loss, w: Params, batch: tuple[object, object]) -> tuple[Scalar, Params]:
        """f_i(w; D), and the derivative of f_i(w - alpha ∇f_i(w; D); D') to the chosen order."""
        inner, outer = batch
        oracle = oracle_of(loss)
        if self.order == "exact":

            def adapted_loss(w: Params) -> tuple[Scalar, Scalar]:
                value, v = solver.adapted(oracle, w, inner, self.inner_lr)
                return oracle(v, outer), value

            return oracle.derivative(adapted_loss, w)
        value, v = solver.adapted(oracle, w, inner, self.inner_lr)
        d = oracle.gradient(v, outer)
        if self.order == "first":
            return value, d
        ahead = oracle.gradient(trees.axpy(self.probe, d, w), inner)
        behind = oracle.gradient(trees.axpy(-self.probe, d, w), inner)
        return value, trees.axpy(-self.inner_lr / (2 * self.probe), trees.sub(ahead, behind), d)
