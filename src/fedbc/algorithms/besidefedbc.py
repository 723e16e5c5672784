"""FedBC with a personal model beside z: what a device can use at every moment of training, and not only at its end.

    T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
    has the personal part; the rest is FedBC's (`fedbc.algorithms.fedbc`).

    global:    as FedBC: x_i by steps on f_i(w) + lambda_i ‖w - z‖², lambda_i, gamma_i, z = Σ lambda_i x_i / Σ lambda_i
    personal:  v_i = about argmin f_i(v) + mu/2 ‖v - z‖², by the steps v <- v - eta (∇f_i(v) + mu (v - z))

    symbol   argument        symbol          argument
    mu       penalty         eta             personal_lr

The other hyper-parameters (`lr`, `momentum`, `dual_lr`, `tolerance`, `server`, `absent`, `start`, `lambda_min`,
`lambda_max`, `multiplier`, `bounds`) are FedBC's, and so is the global model, to the bit: the personal models do not
act on it.

v_i is kept from round to round, and is what the device uses: `local_model`, whose distance to z is the diagnostic
`drift`. FedBC's own x_i, a briefly trained copy of z, serves the dual step and the server. Both take their steps on the
same batches, with the same momentum, z being the global model that the device received. A device's v_i starts from the
one that it receives when it first takes part.

Departure from Ditto: its global model is FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fedbc import checks, trees
from fedbc.algorithms import fedbc, multiplied, solver
from fedbc.algorithms.base import Context, Duals, Finished, Loss, Params, Scalar, parameter
from fedbc.algorithms.fedbc import FedBC
from fedbc.algorithms.personal import BesidePersonal
from fedbc.algorithms.solver import Rate


class Device(NamedTuple):
    """What a device keeps: FedBC's part, and its personal model."""

    shared: multiplied.Device
    personal: Params


class Carry(NamedTuple):
    """FedBC's local training, and the personal model's."""

    shared: fedbc.Carry
    personal: solver.Descent


@dataclass(frozen=True)
class BesideFedBC(BesidePersonal, FedBC):
    """FedBC's global model, and beside it a personal model for each device with a pull towards the global one."""

    name: ClassVar[str] = "besidefedbc"
    reference: ClassVar[str] = "Bedi et al., FedBC; its personal models as in Li et al., Ditto, ICML 2021"

    penalty: float = parameter(0.1, "strength of the pull of the personal models towards the global one (mu)")
    personal_lr: float = parameter(0.01, "rate of the personal models' steps (eta)", rate=Rate.LOCAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("penalty", self.penalty, at_least=0)
        checks.number("personal_lr", self.personal_lr, above=0)

    def init_device(self, params: Params, context: Context) -> Device:  # type: ignore[override]
        """FedBC's state, and v_i = z."""
        return Device(super().init_device(params, context), params)

    def local_model(self, device: Device) -> Params:  # type: ignore[override]
        """v_i"""
        return device.personal

    def duals(self, device: Device) -> Duals:  # type: ignore[override]
        """lambda_i and gamma_i"""
        return super().duals(device.shared)

    def begin(self, message: Params, device: Device, context: Context) -> Carry:  # type: ignore[override]
        """w^0 as FedBC has it, v^0 = v_i"""
        return Carry(super().begin(message, device.shared, context), self.solver.start(device.personal))

    def step(self, loss: Loss, carry: Carry, batch: object) -> Carry:  # type: ignore[override]
        """w <- w - beta (∇f_i(w) + 2 lambda_i (w - z)),  v <- v - eta (∇f_i(v) + mu (v - z))"""
        shared, v = carry
        return Carry(
            super().step(loss, shared, batch),  # type: ignore[arg-type]
            self.solver.step(loss, v, batch, self.near(shared.z), self.personal_lr, self.momentum),
        )

    def finish(self, carry: Carry) -> Finished:  # type: ignore[override]
        """FedBC's summand; the device keeps v_i beside what it keeps there."""
        shared, v = carry
        done = super().finish(shared)  # type: ignore[arg-type]
        info: dict[str, Scalar | Any] = {
            **done.info,
            "drift": trees.sqdist(v.w, shared.z),
            "loss": v.loss / shared.steps,
            "shared_drift": done.info["drift"],
            "shared_loss": done.info["loss"],
        }
        return Finished(Device(done.device, v.w), done.summand, info)
