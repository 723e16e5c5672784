"""Federated learning beyond consensus: one global model, and a local model for every device."""

from fedbc import runtime

runtime.configure()  # before anything else starts JAX

from fedbc import algorithms, data, models  # noqa: E402
from fedbc.algorithms import Algorithm, FedAvg, FedBC, FedProx  # noqa: E402
from fedbc.errors import DeviceError, Diverged, FedBCError, InputError, Interrupted  # noqa: E402
from fedbc.simulation import Result, load, simulate  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "DeviceError",
    "Diverged",
    "FedAvg",
    "FedBC",
    "FedBCError",
    "FedProx",
    "InputError",
    "Interrupted",
    "Result",
    "algorithms",
    "data",
    "load",
    "models",
    "simulate",
]
