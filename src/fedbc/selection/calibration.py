"""The balance between global and local accuracy: FedBC over tolerances and seeds, on validation data.

Settings are the tolerances gamma (fixed ones, and the learned rule), each with both starts of local training: from z,
which keeps the models together, and from x_i, which lets them part. Without tolerances from the user, a run without
constraint (gamma = ∞) is made first for each start; the drift ‖x_i - z‖² that it shows is the problem's own scale, and
the tolerances lie on a logarithmic grid from a hundredth of its median to its maximum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedbc import checks
from fedbc.errors import FedBCError, InputError
from fedbc.runs import Line, Lines, RunSpec, run_missing
from fedbc.runs.many import run_to_line
from fedbc.selection import choice

REFERENCES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "ditto": "Ditto",
    "pfedme": "pFedMe",
    "localonly": "local only",
}
"""The methods that a calibration may run beside FedBC, and how they are called."""
STARTS = {"global": "from z", "local": "from xᵢ"}
LOWEST = 0.01
"""The smallest tolerance of the grid, as a share of the median drift without constraint."""

Known = Mapping[str, Line]
Report = Callable[[Line], None]


@dataclass(frozen=True)
class Setting:
    """A point of the sweep."""

    start: str
    tolerance: float | str

    @property
    def label(self) -> str:
        """As tables name it."""
        return f"{self.gamma}, {STARTS[self.start]}"

    @property
    def gamma(self) -> str:
        """The tolerance in words."""
        if isinstance(self.tolerance, str):
            return "learned gamma"
        return "gamma ∞" if math.isinf(self.tolerance) else f"gamma {self.tolerance:g}"


@dataclass(frozen=True)
class Calibration:
    """What is to be run: one FedBC specification to vary, and reference methods as they are."""

    base: RunSpec
    references: Mapping[str, RunSpec]
    seeds: tuple[int, ...]
    validation: float = 0.2
    tolerances: tuple[float | str, ...] | None = None
    """None derives them from the drift of a run without constraint"""
    points: int = 6
    starts: tuple[str, ...] = tuple(STARTS)

    def __post_init__(self) -> None:
        checks.number("validation", self.validation, above=0, below=1)
        checks.integer("points", self.points, at_least=2)
        for start in self.starts:
            checks.choice("starts", start, STARTS)
        for tolerance in self.tolerances or ():
            checks.tolerance(tolerance)

    def spec(self, setting: Setting, seed: int) -> RunSpec:
        """The run of a setting and a seed."""
        algorithm = {**self.base.algorithm, "start": setting.start, "tolerance": setting.tolerance}
        return self.selecting(replace(self.base, algorithm=algorithm), seed)

    def selecting(self, spec: RunSpec, seed: int) -> RunSpec:
        """A specification on validation data, measured as far as the choice needs it."""
        return replace(spec, run=measured_sparely(spec.run) | {"validation": self.validation, "seed": seed})

    def probe(self, start: str) -> RunSpec:
        """The run without constraint."""
        return self.spec(Setting(start, math.inf), self.seeds[0])

    def settings(self, lines: Known) -> list[Setting]:
        """All points of the sweep; needs the probes' lines where the tolerances are not given."""
        found = []
        for start in self.starts:
            if self.tolerances is not None:
                found += [Setting(start, t) for t in self.tolerances]
                continue
            grid = tolerance_grid(_drift(lines[self.probe(start).identity], start), self.points)
            swept: list[float | str] = [*grid, math.inf, "learned"]
            found += [Setting(start, t) for t in swept]
        return found

    def run(self, results: Path, *, workers: int | None, ray: str | None, on_line: Report) -> dict[str, Line]:
        """Run what is missing; the lines by the hash of their specification."""
        go = functools.partial(run_missing, results=results, workers=workers, ray=ray, on_line=on_line, work=WORK)
        if self.tolerances is None:
            go([self.probe(start) for start in self.starts])
        go(self.specs(Lines(results).read()))
        return Lines(results).read()

    def specs(self, lines: Known) -> list[RunSpec]:
        """All runs."""
        ours = [self.spec(setting, seed) for setting in self.settings(lines) for seed in self.seeds]
        return ours + [self.selecting(spec, seed) for spec in self.references.values() for seed in self.seeds]


def measured_sparely(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's table with global and local accuracy only, every few rounds, unless it says otherwise."""
    rounds = run.get("rounds", 100)
    every = max(1, min(5, rounds // 20)) if isinstance(rounds, int) else 1
    return {"evaluate": ["global", "local"], "evaluate_every": every, **run}


def drift_scale(result: Any) -> dict[str, Any]:
    """What a line keeps beside the summary: the drift of the devices in their rounds."""
    drift = result.devices["drift"]
    return {"drift_median": float(drift.median()), "drift_max": float(drift.max())}


WORK = functools.partial(run_to_line, keep=drift_scale)


def tolerance_grid(drift: tuple[float, float], points: int) -> list[float]:
    """Tolerances at equal ratios from a hundredth of the median drift to the largest, to two digits."""
    median, largest = drift
    return [float(f"{gamma:.1e}") for gamma in np.geomspace(LOWEST * median, largest, points)]


def _drift(line: Line, start: str) -> tuple[float, float]:
    if "summary" not in line:
        raise FedBCError(
            f"the run without constraint ({STARTS[start]}) failed, so there is no scale for the tolerances: "
            f"{line['error']}; give --tolerances, or other hyper-parameters"
        )
    if not line["drift_median"] > 0:
        raise FedBCError("the devices' models do not move: the drift is 0; give --tolerances or a larger --lr")
    return line["drift_median"], line["drift_max"]


@dataclass(frozen=True)
class Outcome:
    """What came out: one row a setting, one a reference method, and the choice."""

    settings: pd.DataFrame
    references: pd.DataFrame
    seeds: int
    weight: float
    chosen: Setting
    at: int
    """the chosen setting's row"""

    @property
    def best(self) -> Any:
        """The chosen setting's row."""
        return self.settings.loc[self.at]


def evaluate(calibration: Calibration, lines: Known, weight: float) -> Outcome:
    """Choose a setting from the runs' lines; one that diverged on a seed is not chosen."""
    settings = calibration.settings(lines)
    rows = [
        {"setting": s.label, "start": s.start, "gamma": s.gamma, "tolerance": s.tolerance}
        | _row([lines[calibration.spec(s, seed).identity] for seed in calibration.seeds])
        for s in settings
    ]
    frame = pd.DataFrame(rows).assign(score=0.0, front=False, front_share=0.0, chosen_share=0.0)
    good = np.flatnonzero(frame["failed"] == 0)
    if not len(good):
        raise FedBCError(f"every setting failed on some seed, the first with: {frame['error'].iloc[0]}")
    scores = np.asarray([frame["scores"].iloc[i] for i in good])
    if np.isnan(scores).any():
        raise InputError("this model has no accuracy to balance: its answers are neither right nor wrong")
    means = scores.mean(1)
    sure = choice.resampled(scores, weight)
    for column, values in {
        "score": means @ np.asarray([weight, 1 - weight]),
        "front": choice.pareto_front(means),
        "front_share": sure.on_front,
        "chosen_share": sure.chosen,
    }.items():
        frame.loc[good, column] = values
    frame.loc[frame["failed"] > 0, "score"] = math.nan
    at = int(good[int(choice.best_of(means, weight))])
    references = pd.DataFrame(
        [
            {"method": name} | _row([lines[calibration.selecting(spec, s).identity] for s in calibration.seeds])
            for name, spec in calibration.references.items()
        ]
    )
    return Outcome(frame, references, len(calibration.seeds), weight, settings[at], at)


def _row(lines: Sequence[Line]) -> dict[str, Any]:
    good = [line for line in lines if "summary" in line]
    scores = [[line["summary"].get(f"{kind}_accuracy", math.nan) for kind in ("global", "local")] for line in good]
    table = np.asarray(scores, float) if good else np.full((1, 2), math.nan)
    spread = table.std(0, ddof=1) if len(good) > 1 else np.full(2, math.nan)
    return {
        "global": table[:, 0].mean(),
        "global_std": spread[0],
        "local": table[:, 1].mean(),
        "local_std": spread[1],
        "drift": float(np.mean([line["drift_median"] for line in good])) if good else math.nan,
        "failed": len(lines) - len(good),
        "error": next((line["error"] for line in lines if "error" in line), ""),
        "scores": scores,
    }
