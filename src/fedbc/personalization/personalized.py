"""What a personalisation gives back: a model for each device, how it was found, and what it is worth."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbc import storage
from fedbc.errors import InputError
from fedbc.personalization import evidence

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "fedbc-personalized-1"
FILE = "personalized.safetensors"
Array = np.ndarray

MODELS = {
    "global": "the global model z",
    "trained": "the method's own local model xᵢ",
    "alone": "a model trained on the device's own examples alone",
    "personal": "the personalised model",
}
"""The models that a device could use."""


@dataclass(frozen=True)
class Personalized:
    """A model for each device, from a global one and the device's own examples.

    local_models: the personalised models, with a leading device axis.
    alone_models: the best models that know nothing of z, chosen and trained likewise.
    tolerances: gamma_i, how far ‖x_i - z‖² may be; 0 is z itself, infinite a model that knows nothing of z.
    multipliers: lambda_i that belongs to it by the KKT conditions; infinite for z itself, NaN for walks of networks.
    residuals: ‖∇f_i(x_i) + 2 lambda_i (x_i - z)‖, the accuracy that was reached; NaN for walks.
    epochs: of the walks of networks; NaN where the problem was solved.
    right: for each of `MODELS` whether it answers each test example rightly, in the order of the test split; for
        regression minus its loss.
    """

    local_models: Any = field(repr=False)
    alone_models: Any = field(repr=False)
    tolerances: Array
    multipliers: Array
    residuals: Array
    epochs: Array
    right: Mapping[str, Array] = field(repr=False)
    train_examples: Array = field(repr=False)
    test_examples: Array = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    """the devices' names"""
    unseen: Array = field(repr=False)
    """whether a device was kept out of training"""
    how: Mapping[str, Any]

    @property
    def devices(self) -> int:
        """How many there are."""
        return len(self.tolerances)

    def accuracy(self, of: str) -> Array:
        """The accuracy of one of `MODELS` on each device's own test set; NaN where it has no examples."""
        if of not in self.right:
            raise InputError(f"of={of!r} is not accepted: give one of {', '.join(self.right)}")
        rows = self.by_device(of)
        return np.asarray([own.mean() if len(own) else np.nan for own in rows])

    def by_device(self, of: str) -> list[Array]:
        """`right`, cut into devices."""
        return np.split(np.asarray(self.right[of], float), np.cumsum(self.test_examples)[:-1])

    @property
    def has_accuracy(self) -> bool:
        """Whether answers are right or wrong; if not, minus the loss stands for it."""
        return bool(self.how.get("classes", True))

    @property
    def local_accuracy(self) -> Array:
        """Of the personalised models, one number per device, on its own test set."""
        return self.accuracy("personal")

    @property
    def global_accuracy(self) -> Array:
        """Of z, one number per device, on its own test set."""
        return self.accuracy("global")

    @functools.cached_property
    def advice(self) -> pd.DataFrame:
        """One row per device: what each model gets right, the paired difference, and what to use."""
        return advice_table([self])

    @property
    def words(self) -> str:
        """How many devices gain, how many lose, and how much."""
        return sentence(self.advice)

    def save(self, folder: str | Path, *, private: bool = False) -> Path:
        """Write everything into a folder; the file's path is returned. What is private is for its owner only."""
        target = Path(folder)
        with storage.explained(target):
            target.mkdir(parents=True, exist_ok=True)
        arrays = {
            **storage.named(self.local_models, "local"),
            **storage.named(self.alone_models, "alone"),
            **{f"right.{name}": np.asarray(rows) for name, rows in self.right.items()},
            "tolerances": self.tolerances,
            "multipliers": self.multipliers,
            "residuals": self.residuals,
            "epochs": self.epochs,
            "train_examples": self.train_examples,
            "test_examples": self.test_examples,
            "unseen": self.unseen,
        }
        facts = {"format": FORMAT, "how": dict(self.how), "names": self.names}
        storage.write_arrays(target / FILE, arrays, facts, private=private)
        storage.write_atomically(target / "advice.csv", self.advice.to_csv(index=False), private=private)
        return target / FILE


def load_personalized(folder: str | Path) -> Personalized:
    """Read what `Personalized.save` or `fedbc personalize` wrote; parameters come back as nested dicts of arrays."""
    path = Path(folder) / FILE if Path(folder).is_dir() else Path(folder)
    arrays, facts = storage.read_arrays(path)
    if facts.get("format") != FORMAT:
        raise InputError(f"{path} has format {facts.get('format')!r}; this version reads {FORMAT}")
    columns = ("tolerances", "multipliers", "residuals", "epochs", "train_examples", "test_examples", "unseen")
    return Personalized(
        local_models=storage.nested(arrays, "local"),
        alone_models=storage.nested(arrays, "alone"),
        right={name: arrays[f"right.{name}"] for name in MODELS if f"right.{name}" in arrays},
        names=tuple(facts["names"]),
        how=facts["how"],
        **{name: arrays[name] for name in columns},
    )


def advice_table(runs: Sequence[Personalized], examples: Sequence[Array] | None = None) -> pd.DataFrame:
    """One row per device, from one run or from several on the same federation.

    examples: for each run a number for each row of its test sets, where runs were tested on different examples.
    """
    import pandas as pd

    first = runs[0]
    columns: dict[str, Any] = {
        "device": np.arange(first.devices),
        "name": list(first.names),
        "examples": first.train_examples,
        "test_examples": first.test_examples,
    }
    if first.unseen.any():
        columns["unseen"] = first.unseen
    for name in MODELS:
        if all(name in run.right for run in runs):
            mean = np.mean([run.accuracy(name) for run in runs], axis=0)
            columns |= {f"{name}_accuracy": mean} if first.has_accuracy else {f"{name}_loss": -mean}
    columns["tolerance"] = np.median([run.tolerances for run in runs], axis=0)
    tested = examples if examples is not None else [np.arange(first.test_examples.sum())] * len(runs)
    rows = [np.split(numbers, np.cumsum(first.test_examples)[:-1]) for numbers in tested]
    personal, z = ([run.by_device(name) for run in runs] for name in ("personal", "global"))
    found, verdicts, counts = [], [], []
    for device in range(first.devices):
        which = [own[device] for own in rows]
        own = evidence.paired([run[device] for run in personal], [run[device] for run in z], which)
        counts.append(len(np.unique(np.concatenate(which))))
        is_z = all(run.tolerances[device] == 0 for run in runs)
        found.append(own)
        verdicts.append(evidence.advise(own, is_z=is_z))
    columns |= {
        "difference": [d.mean for d in found],
        "low": [d.low for d in found],
        "high": [d.high for d in found],
        "verdict": [str(v) for v in verdicts],
        "advice": [v.words(n) for v, n in zip(verdicts, counts, strict=True)],
    }
    return pd.DataFrame(columns)


def sentence(advice: pd.DataFrame) -> str:
    """The advice's sum, in words."""
    tested = advice[advice["test_examples"] > 0]
    if tested.empty:
        return "No device has test examples, so nothing can be said of the models."
    gain, lose = (tested["low"] > 0).sum(), (tested["high"] < 0).sum()
    mean = evidence.bootstrapped(tested["difference"].to_numpy())
    factor, unit, digits = (100, " points", 1) if "personal_accuracy" in tested else (1, " of its loss", 4)
    clear = "" if mean.is_clear else ", no clear difference"
    return (
        f"Of {len(tested)} devices, {gain} gain by a model of their own over the global one beyond the noise of their "
        f"test sets, {lose} lose, and for {len(tested) - gain - lose} it cannot be told; on the mean over devices "
        f"{factor * mean.mean:+.{digits}f}{unit} (95 % interval {factor * mean.low:+.{digits}f} to "
        f"{factor * mean.high:+.{digits}f}{clear})."
    )
