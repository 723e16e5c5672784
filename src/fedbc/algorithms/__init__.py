"""Federated methods, one per file, through one contract; `ALGORITHMS` is the registry."""

from fedbc.algorithms.base import Algorithm, Context, Finished, parameter
from fedbc.algorithms.besidefedbc import BesideFedBC
from fedbc.algorithms.ditto import Ditto
from fedbc.algorithms.fedadmm import FedADMM
from fedbc.algorithms.fedavg import FedAvg
from fedbc.algorithms.fedbc import FedBC
from fedbc.algorithms.feddyn import FedDyn
from fedbc.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedYogi
from fedbc.algorithms.fedpd import FedPD
from fedbc.algorithms.fedprox import FedProx
from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.l2gd import L2GD
from fedbc.algorithms.localonly import LocalOnly
from fedbc.algorithms.perfedavg import PerFedAvg
from fedbc.algorithms.perfedbc import PerFedBC
from fedbc.algorithms.pfedme import PFedMe
from fedbc.algorithms.qfedavg import QFedAvg
from fedbc.algorithms.scaffold import SCAFFOLD

_METHODS: tuple[type[Algorithm], ...] = (
    FedBC,
    PerFedBC,
    BesideFedBC,
    FedAvg,
    FedProx,
    QFedAvg,
    SCAFFOLD,
    FedPD,
    FedADMM,
    FedDyn,
    FedAvgM,
    FedAdagrad,
    FedAdam,
    FedYogi,
    PerFedAvg,
    PFedMe,
    L2GD,
    Ditto,
    LocalOnly,
)

ALGORITHMS: dict[str, type[Algorithm]] = {method.name: method for method in _METHODS}
"""Every method by its name on the command line."""

__all__ = [
    "ALGORITHMS",
    "L2GD",
    "SCAFFOLD",
    "Algorithm",
    "BesideFedBC",
    "Context",
    "Ditto",
    "FedADMM",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBC",
    "FedDyn",
    "FedOpt",
    "FedPD",
    "FedProx",
    "FedYogi",
    "FineTune",
    "Finished",
    "LocalOnly",
    "PFedMe",
    "PerFedAvg",
    "PerFedBC",
    "QFedAvg",
    "parameter",
]
