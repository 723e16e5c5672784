"""Per-FedBC: FedBC whose local models are trained to be adapted (first-order MAML).

    A. S. Bedi, C. Fan, A. Koppel, A. K. Sahu, B. M. Sadler, F. Huang, D. Manocha,
    "FedBC: Calibrating Global and Local Models via Federated Learning Beyond Consensus", Algorithm 3.

A local step takes two batches, D and D', and starts from u^0 = w:

    u^{j+1} = u^j - alpha (∇f_i(u^j; D) + 2 lambda_i (u^j - z)),  j = 0..J-1
    w      <- w - beta ∇f_i(u^J; D')

x_i = w^K; multipliers, tolerances and the server's mean are FedBC's (`fedbc.algorithms.fedbc`), second-order terms are
left out as in the paper. The hyper-parameters are FedBC's, `momentum` being that of the steps with rate lr, and:

    symbol   argument        symbol   argument        symbol   argument
    beta     lr              alpha    inner_lr        J        inner_steps

The paper's alpha_lambda is `dual_lr`; `tolerance`, `server`, `absent`, `start`, `lambda_min`, `lambda_max`,
`multiplier` and `bounds` are as in FedBC. What the paper leaves open: all J inner steps take the batch D (J = 1 in its
experiments).

What a device uses is its local model after J steps at rate alpha on its own data (`fine_tune`; the pull is left out
there, as in the paper's experiments).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbc import checks
from fedbc.algorithms import smoothness, solver
from fedbc.algorithms.base import Loss, parameter
from fedbc.algorithms.fedbc import Carry, FedBC
from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.oracle import oracle_of
from fedbc.algorithms.solver import Rate


@dataclass(frozen=True)
class PerFedBC(FedBC):
    """FedBC with meta-learning: local models within a tolerance of the global one, trained to be adapted."""

    name: ClassVar[str] = "perfedbc"
    reference: ClassVar[str] = "Bedi et al., FedBC: Calibrating Global and Local Models via FL Beyond Consensus, Alg. 3"
    batches: ClassVar[int] = 2

    lr: float = parameter(0.001, "rate of the outer steps (beta)", rate=Rate.LOCAL)
    inner_lr: float = parameter(0.01, "rate of the inner, adapting steps (alpha)")
    inner_steps: int = parameter(1, "inner steps before each outer one (J)")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("inner_lr", self.inner_lr, above=0)
        checks.integer("inner_steps", self.inner_steps, at_least=1)

    def refuses(self, part: solver.Part) -> str | None:
        """Its steps are no descent on one function of the data."""
        return "its steps are no descent on one function of the device's data" if part is solver.Part.EPSILON else None

    def fine_tune(self) -> FineTune:
        """The model in use is x_i after the inner steps on the device's own data."""
        return FineTune(steps=self.inner_steps, lr=self.inner_lr, of="local")

    def step(self, loss: Loss, carry: Carry, batch: tuple[object, object]) -> Carry:  # type: ignore[override]
        """w <- w - beta ∇f_i(u^J; D'); the loss recorded is f_i(w; D), before adaptation."""
        inner, outer = batch
        carry = smoothness.within_bounds(loss, carry, inner)
        w, pulled = carry.descent.w, self.objective(carry)
        value, u = solver.adapted(loss, w, inner, self.inner_lr, self.inner_steps, pulled)
        gradient = oracle_of(loss).gradient(u, outer)
        descent = self.solver.descend(carry.descent, value, gradient, solver.ALONE, self.lr, self.momentum)
        return carry._replace(descent=descent)
