"""Federated learning beyond consensus: one global model, and a local model for every device."""

from fedbc import runtime

runtime.configure()  # before anything else starts JAX

from fedbc import algorithms, data, models, privacy  # noqa: E402
from fedbc.algorithms import (  # noqa: E402
    L2GD,
    SCAFFOLD,
    Algorithm,
    Ditto,
    FedAdam,
    FedADMM,
    FedAvg,
    FedAvgM,
    FedBC,
    FedDyn,
    FedPD,
    FedProx,
    FedYogi,
    FineTune,
    LocalOnly,
    PerFedAvg,
    PerFedBC,
    PFedMe,
    QFedAvg,
)
from fedbc.errors import DeviceError, Diverged, FedBCError, InputError, Interrupted  # noqa: E402
from fedbc.simulation import Result, load, simulate  # noqa: E402

from fedbc.reports.comparison import Comparison, compare  # noqa: E402  isort: skip (needs all of the above)

__version__ = "0.1.0"

__all__ = [
    "L2GD",
    "SCAFFOLD",
    "Algorithm",
    "Comparison",
    "DeviceError",
    "Ditto",
    "Diverged",
    "FedADMM",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBC",
    "FedBCError",
    "FedDyn",
    "FedPD",
    "FedProx",
    "FedYogi",
    "FineTune",
    "InputError",
    "Interrupted",
    "LocalOnly",
    "PFedMe",
    "PerFedAvg",
    "PerFedBC",
    "QFedAvg",
    "Result",
    "algorithms",
    "compare",
    "data",
    "load",
    "models",
    "privacy",
    "simulate",
]
