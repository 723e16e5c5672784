"""Federated methods, one a file, through one contract; `ALGORITHMS` is the registry."""

from fedbc.algorithms.base import Algorithm, Context, Finished, parameter
from fedbc.algorithms.fedavg import FedAvg
from fedbc.algorithms.fedbc import FedBC
from fedbc.algorithms.fedprox import FedProx

ALGORITHMS: dict[str, type[Algorithm]] = {a.name: a for a in (FedBC, FedAvg, FedProx)}

__all__ = ["ALGORITHMS", "Algorithm", "Context", "FedAvg", "FedBC", "FedProx", "Finished", "parameter"]
