"""What can be recommended, and the choice: each way of giving every device a model, with what it was worth.

A run may give its devices several models: the method's own x_i, a fine-tuned one, and z personalised on the device.
Each is a candidate, with the global accuracy of its z and the mean over devices of its local accuracy.

How far a candidate is behind the chosen one has an error from two sources, as in a comparison of methods. Its standard
deviation over seeds, seed by seed; as each seed also holds other examples out, the choice of validation data is in it.
And the finite validation sets, by device: with the differences g_i of z and l_i of the local models on device i, n_i of
n examples, and D devices with any,

    error² = D/(D - 1) Σ_i (w n_i/n (g_i - g) + (1 - w)/D (l_i - l))²,    g = Σ_i n_i/n g_i,   l = Σ_i l_i/D
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedbc.errors import FedBCError, InputError
from fedbc.runs import Line
from fedbc.selection import choice
from fedbc.selection.calibration import Calibration, Setting

Array = np.ndarray
Known = Mapping[str, Line]
BEYOND = 2.0
"""A candidate within so many times the error of its distance is not clearly behind."""


class Gives(enum.StrEnum):
    """Which model a device gets."""

    OWN = "own"
    TUNED = "fine-tuned"
    PERSONAL = "personalised"


COLUMNS = {Gives.OWN: "local_accuracy", Gives.TUNED: "finetuned_accuracy", Gives.PERSONAL: "local_accuracy"}
"""Of a line's summary; personalisations have lines of their own."""
ROWS = {Gives.OWN: "own", Gives.TUNED: "tuned", Gives.PERSONAL: "personal"}
"""Of a line's devices."""


@dataclass(frozen=True)
class Candidate:
    """A setting, and which of its models a device gets."""

    setting: Setting
    gives: Gives

    @property
    def label(self) -> str:
        """As tables name it."""
        if self.gives is Gives.PERSONAL:  # one of each method
            return f"{self.setting.method}, {self.gives}"
        always = self.gives is Gives.OWN or _is_made_for_tuning(self.setting)
        return self.setting.label if always else f"{self.setting.label}, {self.gives}"


def _is_made_for_tuning(setting: Setting) -> bool:
    """Whether the method itself says that its models are to be adapted, as MAML's do."""
    return setting.spec.build_part("algorithm").fine_tune() is not None


@dataclass(frozen=True)
class Scored:
    """A candidate's scores, seed by seed."""

    candidate: Candidate
    accuracies: Array
    """(seeds, 2): global and local"""
    z: Array
    """(devices,): z on each device's validation examples, mean over seeds; NaN where it has none"""
    own: Array
    """the same of the model that the device gets"""


@dataclass(frozen=True)
class Ranking:
    """The candidates, one row each; the devices under the chosen one, one row each; and the choice."""

    candidates: pd.DataFrame
    devices: pd.DataFrame
    seeds: int
    weight: float
    chosen: Candidate
    at: int
    """the chosen candidate's row"""
    absent: tuple[str, ...] = ()
    """what could not be had, and why"""

    @property
    def best(self) -> Any:
        """The chosen candidate's row."""
        return self.candidates.loc[self.at]


def evaluate(
    plan: Calibration, lines: Known, personal: Known, weight: float, names: Sequence[Any], examples: Array
) -> Ranking:
    """Choose from the runs' lines; a setting that failed on a seed is not chosen.

    names, examples: of the devices, for their table; how many validation examples each has.
    """
    settings = plan.settings(lines)
    found, absent = [], []
    for setting in settings:
        own = [lines[plan.spec(setting, seed).identity] for seed in plan.seeds]
        errors = [line["error"] for line in own if "summary" not in line]
        if errors:
            absent.append(f"{setting.label} ({errors[0]})")
            continue
        kinds = [] if _is_made_for_tuning(setting) else [Gives.OWN]
        kinds += [Gives.TUNED] if all(COLUMNS[Gives.TUNED] in line["summary"] for line in own) else []
        found += [_scored(Candidate(setting, kind), own, own) for kind in kinds]
    for setting in plan.to_personalize(lines):
        keys = [plan.spec(setting, seed).identity for seed in plan.seeds]
        errors = [personal[k]["error"] for k in keys if "summary" not in personal[k]]
        if errors:
            absent.append(f"{setting.method}, {Gives.PERSONAL} ({errors[0]})")
            continue
        found.append(_scored(Candidate(setting, Gives.PERSONAL), [lines[k] for k in keys], [personal[k] for k in keys]))
    if not found:
        raise FedBCError(f"every setting failed on some seed, the first: {absent[0]}")
    scores = np.asarray([one.accuracies for one in found])
    if np.isnan(scores).any():
        raise InputError("this model has no accuracy to balance: its answers are neither right nor wrong")
    means = scores.mean(1)
    sure = choice.resampled(scores, weight)
    at = int(choice.best_of(means, weight))
    rows = [_row(one, found[at], weight, examples) for one in found]
    frame = pd.DataFrame(rows).assign(
        score=means @ np.asarray([weight, 1 - weight]),
        front=choice.pareto_front(means),
        front_share=sure.on_front,
        chosen_share=sure.chosen,
    )
    devices = pd.DataFrame(
        {"device": list(names), "examples": examples, "z": found[at].z, "own": found[at].own},
    ).assign(difference=found[at].own - found[at].z)
    return Ranking(frame, devices, len(plan.seeds), weight, found[at].candidate, at, tuple(absent))


def _scored(candidate: Candidate, runs: Sequence[Line], own: Sequence[Line]) -> Scored:
    """`own` are the lines that have the devices' models: the runs', or those of personalisations."""
    column, row = COLUMNS[candidate.gives], ROWS[candidate.gives]
    accuracies = [
        [_number(run["summary"].get("global_accuracy")), _number(line["summary"].get(column))]
        for run, line in zip(runs, own, strict=True)
    ]
    by_device = (
        np.asarray([[_number(v) for v in line["devices"][name]] for line in several]).mean(0)
        for several, name in ((runs, "global"), (own, row))
    )
    return Scored(candidate, np.asarray(accuracies, float), *by_device)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _row(one: Scored, best: Scored, weight: float, examples: Array) -> dict[str, Any]:
    setting, spread = one.candidate.setting, np.full(2, math.nan)
    if len(one.accuracies) > 1:
        spread = one.accuracies.std(0, ddof=1)
    mean = one.accuracies.mean(0)
    behind, error = distance(best, one, weight, examples)
    return {
        "candidate": one.candidate.label,
        "method": setting.method,
        "gives": str(one.candidate.gives),
        "start": setting.start,
        "tolerance": setting.tolerance,
        "gamma": setting.gamma if setting.start else "",
        "global": mean[0],
        "global_std": spread[0],
        "local": mean[1],
        "local_std": spread[1],
        "behind": behind,
        "behind_error": error,
        "verdict": "" if one is best else verdict(behind, error),
    }


def distance(best: Scored, other: Scored, weight: float, examples: Array) -> tuple[float, float]:
    """How far a candidate is behind by the weighted accuracy, and the error of that; NaN with one seed."""
    parts = np.asarray([weight, 1 - weight])
    by_seed = (best.accuracies - other.accuracies) @ parts
    deviation = by_seed.std(ddof=1) if len(by_seed) > 1 else math.nan
    known = ~np.isnan(best.z + other.z + best.own + other.own)
    count = int(known.sum())
    by_device = 0.0
    if count > 1:
        share = examples[known] / examples[known].sum()
        g, own = (best.z - other.z)[known], (best.own - other.own)[known]
        away = weight * share * (g - share @ g) + (1 - weight) / count * (own - own.mean())
        by_device = float(np.sqrt(count / (count - 1) * np.sum(away**2)))
    return float(by_seed.mean()), float(np.hypot(deviation, by_device))


def verdict(behind: float, error: float) -> str:
    """Whether that is beyond its error."""
    if math.isnan(error):
        return "one seed: cannot be told"
    return "clearly behind" if behind > BEYOND * error else "no clear difference"
