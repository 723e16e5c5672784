"""What FedBC gains, over what: contests of methods in a setting, and one table of them for all data sets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedbc.paper.catalogue import CLASSES, DRAWS, EPOCHS, EXPONENTS, Setting
from fedbc.paper.claims.verdict import REFERENCE, RIVALS, means
from fedbc.paper.tables import Found

VARIANTS = ("qfedavg-reference", "scaffold-reference")
CONTROLS = ("fedavg-uniform", "fedprox-uniform")
ROOT = "fedavg-root"


def contest(found: Found, experiment: str, **setting: Any) -> dict[str, float]:
    """The methods' means in a setting where FedBC and all rivals were run; of a method that diverged there is none.

    Under the reference protocol its variants of methods stand for these.
    """
    variants = REFERENCE if experiment.endswith("-reference") else {}
    taking_part = {variants.get(key, key): key for key in ("fedbc", *RIVALS)}
    if not all(found.lines(experiment, key, **setting) for key in taking_part):
        return {}
    known = means(found, experiment, (*taking_part, *VARIANTS, *CONTROLS, ROOT), **setting)
    return {taking_part.get(key, key): mean for key, mean in known.items()}


class Margins(NamedTuple):
    """Differences of accuracies in a setting, in points."""

    over_fedavg: float
    """FedBC less FedAvg weighted by size"""
    by_weights: float
    """FedAvg with uniform weights less FedAvg weighted by size: what the weights alone gain"""
    over_controls: float
    """FedBC less the better of the two controls with uniform weights"""
    over_rivals: float
    """FedBC less the best of the paper's other methods, variants counted"""
    over_root: float
    """FedBC less FedAvg with weights √n_i; not a number where that was not run"""


def margins(found: Found, experiment: str, **setting: Any) -> Margins | None:
    """FedBC's in a setting; None unless FedBC, the rivals and the controls were run there."""
    m = contest(found, experiment, **setting)
    if not {"fedbc", "fedavg", *CONTROLS} <= set(m):
        return None
    return Margins(
        m["fedbc"] - m["fedavg"],
        m["fedavg-uniform"] - m["fedavg"],
        m["fedbc"] - max(m[k] for k in CONTROLS),
        m["fedbc"] - max(v for k, v in m.items() if k in (*RIVALS, *VARIANTS)),
        m["fedbc"] - m.get(ROOT, math.nan),
    )


IMAGES: tuple[Setting, ...] = tuple({"classes": c, "exponent": e} for c in CLASSES for e in EXPONENTS)
PAPERS_DRAW, OTHER_DRAWS = "Synthetic data, E = 1 to 50", "Synthetic data, draws 2 to 5"
PLACES: dict[str, tuple[str, tuple[Setting, ...]]] = {
    PAPERS_DRAW: ("synthetic", tuple({"epochs": e} for e in EPOCHS)),
    OTHER_DRAWS: ("synthetic-draws", tuple({"draw": d} for d in DRAWS[1:])),
    "Synthetic data, 70 and 100 devices": ("synthetic-devices", tuple({"devices": d} for d in (70, 100))),
    "MNIST, E = 1": ("mnist-e1", IMAGES),
    "MNIST, E = 5": ("mnist-e5", IMAGES),
    "CIFAR-10, E = 1": ("cifar10-e1", IMAGES),
    "CIFAR-10, E = 5": ("cifar10-e5", IMAGES),
    "Shakespeare, E = 1 and 5": ("shakespeare", tuple({"epochs": e} for e in (1, 5))),
    **{
        f"{title}, E = {e}, reference protocol": (f"{data}-e{e}-reference", IMAGES)
        for data, title in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"))
        for e in (1, 5)
    },
}
"""The rows of the table: an experiment and its settings."""
COLUMNS = {
    "over_fedavg": "FedBC over FedAvg by size",
    "by_weights": "FedAvg, uniform, over FedAvg by size",
    "over_controls": "FedBC over the better of FedAvg and FedProx, uniform",
    "over_root": "FedBC over FedAvg, √n_i",
    "over_rivals": "FedBC over the best other method of the paper",
}
"""Its columns: a field of `Margins` and its heading."""


@dataclass(frozen=True)
class Gain:
    """A row of the table: the margins in the settings that were run."""

    where: str
    of: int
    """settings that the paper has"""
    margins: tuple[Margins, ...]

    def column(self, name: str) -> np.ndarray:
        """One kind of margin over the settings where it is known."""
        values = np.array([getattr(m, name) for m in self.margins])
        return values[~np.isnan(values)]


def gain(found: Found, where: str) -> Gain:
    """A row of the table, as far as it was run."""
    experiment, settings = PLACES[where]
    known = (margins(found, experiment, **s) for s in settings)
    return Gain(where, len(settings), tuple(m for m in known if m is not None))


def summary(found: Found) -> list[Gain]:
    """Every data set's gains."""
    return [gain(found, where) for where in PLACES]
