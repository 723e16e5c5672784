"""Federated learning beyond consensus: one global model, and a local model for every device."""

from typing import TYPE_CHECKING, Any

from fedbc import runtime

runtime.configure()  # before anything else starts JAX

from fedbc import algorithms, data, models, privacy, progress, trackers  # noqa: E402
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

if TYPE_CHECKING:
    from fedbc.reports.comparison import Comparison, compare

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
    "progress",
    "simulate",
    "trackers",
]


def __getattr__(name: str) -> Any:
    """Comparisons are imported when they are asked for: a quarter of the time to import all of this would be theirs,
    and a deployed device, which starts anew for each message, has no use for them."""
    if name not in ("Comparison", "compare"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedbc.reports import comparison

    return getattr(comparison, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
