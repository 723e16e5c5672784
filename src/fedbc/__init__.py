"""Federated learning beyond consensus: one global model, and a local model for every device."""

from typing import TYPE_CHECKING

from fedbc import starting

starting.begin()

from fedbc import lazy, runtime  # noqa: E402

runtime.configure()  # before anything else starts JAX

from fedbc import algorithms, data, machines, models, privacy, progress, trackers  # noqa: E402
from fedbc.algorithms import (  # noqa: E402
    L2GD,
    SCAFFOLD,
    Algorithm,
    BesideFedBC,
    Ditto,
    FedAdagrad,
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
from fedbc.simulation import Result, simulate  # noqa: E402

if TYPE_CHECKING:
    from fedbc.personalization import Personalized, load_personalized, personalize
    from fedbc.reports.comparison import Comparison, compare, run_comparison
    from fedbc.runs import RunFolder, RunSpec, Sweep, load, resume, run, run_methods, sweep
    from fedbc.selection import Calibrated, Tuned, calibrate, tune

starting.end()

__version__ = "0.1.0"

__all__ = [
    "L2GD",
    "SCAFFOLD",
    "Algorithm",
    "BesideFedBC",
    "Calibrated",
    "Comparison",
    "DeviceError",
    "Ditto",
    "Diverged",
    "FedADMM",
    "FedAdagrad",
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
    "Personalized",
    "QFedAvg",
    "Result",
    "RunFolder",
    "RunSpec",
    "Sweep",
    "Tuned",
    "algorithms",
    "calibrate",
    "compare",
    "data",
    "load",
    "load_personalized",
    "machines",
    "models",
    "personalize",
    "privacy",
    "progress",
    "resume",
    "run",
    "run_comparison",
    "run_methods",
    "simulate",
    "sweep",
    "trackers",
    "tune",
]


LATER = {
    "Calibrated": "selection",
    "Comparison": "reports.comparison",
    "Personalized": "personalization",
    "RunFolder": "runs",
    "RunSpec": "runs",
    "Sweep": "runs",
    "Tuned": "selection",
    "calibrate": "selection",
    "compare": "reports.comparison",
    "load": "runs",
    "load_personalized": "personalization",
    "personalize": "personalization",
    "resume": "runs",
    "run": "runs",
    "run_comparison": "reports.comparison",
    "run_methods": "runs",
    "sweep": "runs",
    "torch": "",
    "tune": "selection",
}
"""Names that are imported when they are asked for, and where they are: a deployed device, which starts anew for each
message, has no use for them."""


__getattr__ = lazy.attributes("fedbc", LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
