"""Ditto: a personal model for each device, held near the global one, which is trained apart.

    T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
    Algorithm 1.

    global:    as FedAvg: w^0 = z, w^{k+1} = w^k - lr ∇f_i(w^k), z = mean of w^K over the sampled devices
    personal:  v_i = about argmin f_i(v) + lambda/2 ‖v - z‖², by the steps v <- v - eta (∇f_i(v) + lambda (v - z))

    symbol   argument        symbol          argument
    lambda   penalty         eta             personal_lr

`lr`, `momentum` and `weights` are FedAvg's, and the global model is FedAvg's to the bit: the personal ones do not act
on it. v_i is kept from round to round, and is the local model x_i. Both models take their steps on the same batches,
with the same momentum, z being the global model that the device received (as in the paper). A device's v_i starts from
the global model that it receives when it first takes part; the paper starts all of them from the initial one.
penalty = 0 is local training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedbc import checks, trees
from fedbc.algorithms import fedavg, solver
from fedbc.algorithms.base import Context, Finished, Loss, Params, parameter
from fedbc.algorithms.fedavg import FedAvg
from fedbc.algorithms.personal import BesidePersonal
from fedbc.algorithms.solver import Rate


class Carry(NamedTuple):
    """FedAvg's local training, and the personal model's."""

    shared: fedavg.Carry
    personal: solver.Descent


@dataclass(frozen=True)
class Ditto(BesidePersonal, FedAvg):
    """FedAvg's global model, and beside it a personal model for each device with a pull towards the global one."""

    name: ClassVar[str] = "ditto"
    reference: ClassVar[str] = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"

    penalty: float = parameter(0.1, "strength of the pull of the personal models towards the global one (lambda)")
    personal_lr: float = parameter(0.01, "rate of the personal models' steps (eta)", rate=Rate.LOCAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("penalty", self.penalty, at_least=0)
        checks.number("personal_lr", self.personal_lr, above=0)

    def begin(self, message: Params, device: Params, context: Context) -> Carry:  # type: ignore[override]
        """w^0 = z, v^0 = v_i"""
        return Carry(super().begin(message, device, context), self.solver.start(device))

    def step(self, loss: Loss, carry: Carry, batch: object) -> Carry:  # type: ignore[override]
        """w <- w - lr ∇f_i(w),  v <- v - eta (∇f_i(v) + lambda (v - z))"""
        shared, v = carry
        return Carry(
            super().step(loss, shared, batch),
            self.solver.step(loss, v, batch, self.near(shared.z), self.personal_lr, self.momentum),
        )

    def finish(self, carry: Carry) -> Finished:  # type: ignore[override]
        """FedAvg's summand (n_i w, n_i); the device keeps v_i."""
        shared, v = carry
        done = super().finish(shared)
        info = {
            "drift": trees.sqdist(v.w, shared.z),
            "loss": v.loss / shared.steps,
            "weight": done.info["weight"],
            "shared_drift": done.info["drift"],
            "shared_loss": done.info["loss"],
        }
        return Finished(v.w, done.summand, info)
