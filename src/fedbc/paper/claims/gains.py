"""What FedBC gains, over what: contests of methods in a setting, and one table of them for all data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedbc.paper.catalogue import CLASSES, DRAWS, EPOCHS, EXPERIMENTS, EXPONENTS
from fedbc.paper.claims.verdict import REFERENCE, RIVALS, is_clear, means
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import Setting
from fedbc.paper.methods import Protocol

VARIANTS = ("qfedavg-reference", "scaffold-reference")
CONTROLS = ("fedavg-uniform", "fedprox-uniform")
ROOT = "fedavg-root"


def _variants(experiment: str) -> dict[str, str]:
    """What stands for a method in an experiment, where that is not the method itself."""
    return REFERENCE if EXPERIMENTS[experiment].protocol is Protocol.REFERENCE else {}


def contest(found: Evidence, experiment: str, **setting: Any) -> dict[str, float]:
    """The methods' means in a setting over the seeds that FedBC and all rivals were run with; a seed draws devices and
    batches for all of them alike. Of a method that diverged there is none.

    Under the reference protocol its variants of methods stand for these.
    """
    variants = _variants(experiment)
    taking_part = {variants.get(key, key): key for key in ("fedbc", *RIVALS)}
    seeds = found.common_seeds(experiment, taking_part, **setting)
    known = means(found, experiment, (*taking_part, *VARIANTS, *CONTROLS, ROOT), seeds=seeds, **setting)
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


def opponents(m: dict[str, float]) -> Mapping[str, tuple[str, str]]:
    """The two methods that each of the `Margins` compares, given all methods' means in a setting."""
    return {
        "over_fedavg": ("fedbc", "fedavg"),
        "by_weights": ("fedavg-uniform", "fedavg"),
        "over_controls": ("fedbc", max(CONTROLS, key=lambda k: m[k])),
        "over_rivals": ("fedbc", max((k for k in m if k in (*RIVALS, *VARIANTS)), key=lambda k: m[k])),
        "over_root": ("fedbc", ROOT),
    }


def margins(found: Evidence, experiment: str, **setting: Any) -> Margins | None:
    """FedBC's in a setting; None unless FedBC, the rivals and the controls were run there."""
    m = contest(found, experiment, **setting)
    if not {"fedbc", "fedavg", *CONTROLS} <= set(m):
        return None
    return Margins(**{name: m[a] - m.get(b, math.nan) for name, (a, b) in opponents(m).items()})


def margins_by_seed(found: Evidence, experiment: str, **setting: Any) -> dict[str, dict[int, float]]:
    """The same margins seed by seed, over the seeds that both methods ran and ended with."""
    variants = _variants(experiment)

    def accuracies(key: str) -> dict[int, float]:
        return dict(found.by_seed(experiment, variants.get(key, key), "global_accuracy", **setting))

    different = {}
    for name, (a, b) in opponents(contest(found, experiment, **setting)).items():
        ours, theirs = accuracies(a), accuracies(b)
        different[name] = {seed: 100 * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs}
    return different


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
OF_PAPER = tuple(where for where, (name, _) in PLACES.items() if EXPERIMENTS[name].protocol is Protocol.PAPER)
"""Those under the paper protocol."""
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
    by_seed: tuple[dict[str, dict[int, float]], ...]
    """the same, seed by seed"""

    def column(self, name: str) -> np.ndarray:
        """One kind of margin over the settings where it is known."""
        values = np.array([getattr(m, name) for m in self.margins])
        return values[~np.isnan(values)]

    @property
    def seeds(self) -> int:
        """How many seeds were run in all of the settings."""
        return len(self._means("over_fedavg"))

    def error(self, name: str) -> float | None:
        """The standard error, over seeds, of a margin's mean over settings; None with fewer than two seeds in all.

        Runs of one seed draw the same devices and batches, so that methods are compared seed by seed.
        """
        means = self._means(name)
        return float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None

    def is_clear(self, name: str) -> bool:
        """Whether a margin's mean over settings is off 0 by a t-test over seeds at 5 %."""
        return is_clear(self._means(name))

    def _means(self, name: str) -> list[float]:
        """A margin's mean over settings for each seed that was run in all of them."""
        known = [seeds[name] for seeds in self.by_seed if seeds[name]]
        common = set.intersection(*map(set, known)) if known else set()
        return [float(np.mean([seeds[seed] for seeds in known])) for seed in sorted(common)]


def gain(found: Evidence, where: str) -> Gain:
    """A row of the table, as far as it was run."""
    experiment, settings = PLACES[where]
    known = {i: m for i, s in enumerate(settings) if (m := margins(found, experiment, **s)) is not None}
    by_seed = tuple(margins_by_seed(found, experiment, **settings[i]) for i in known)
    return Gain(where, len(settings), tuple(known.values()), by_seed)


def summary(found: Evidence) -> list[Gain]:
    """Every data set's gains."""
    return [gain(found, where) for where in PLACES]
