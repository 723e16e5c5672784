"""FedProx: FedAvg with a proximal term in the devices' objective.

    T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in Heterogeneous
    Networks", MLSys 2020.

    device:  min_w f_i(w) + mu/2 ‖w - z‖²,  so  w^{k+1} = w^k - lr (∇f_i(w^k) + mu (w^k - z));  server: as FedAvg

mu is the argument `mu`; `lr`, `momentum` and `weights` are FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbc import checks
from fedbc.algorithms.base import parameter
from fedbc.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal pull of the local steps towards the global model."""

    name: ClassVar[str] = "fedprox"
    reference: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    mu: float = parameter(0.1, "strength of the pull towards the global model (mu)")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("mu", self.mu, at_least=0)

    @property
    def pull(self) -> float:
        """w <- w - lr (∇f_i(w) + mu (w - z))"""
        return self.mu
