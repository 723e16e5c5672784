"""What a calibration runs: FedBC over tolerances and seeds, other methods beside it, all on validation data.

FedBC's settings are the tolerances gamma (fixed ones, and the learned rule), each with both starts of local training:
from z, which keeps the models together, and from x_i, which lets them part. Without tolerances from the user, a run
without constraint (gamma = ∞) is made first for each start; the drift ‖x_i - z‖² that it shows is the problem's own
scale, and the tolerances lie on a logarithmic grid from a hundredth of its median to its maximum.

When all runs are done, one z of each method, that of the setting with the best global accuracy, is personalised.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbc import checks
from fedbc.errors import FedBCError
from fedbc.runs import Line, Lines, RunSpec, entry, run_missing
from fedbc.runs.many import run_to_line
from fedbc.selection import measured

FEDBC = "FedBC"
OTHERS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "ditto": "Ditto",
    "pfedme": "pFedMe",
    "perfedbc": "Per-FedBC",
    "localonly": "local only",
}
"""The methods that a calibration runs beside FedBC, and how they are called."""
CONTROLS = ("fedavg", "ditto", "localonly")
"""What FedBC's local models should be seen beside: FedAvg's own, a personal model beside z, no communication."""
WITHOUT_Z = ("localonly",)
"""Methods whose mean over devices is no model that anyone trained."""
TUNING_STEPS = 50
"""Of FedAvg's global model on each device's own data, if fine-tuning is not set."""
STARTS = {"global": "from z", "local": "from xᵢ"}
LOWEST = 0.01
"""The smallest tolerance of the grid, as a share of the median drift without constraint."""

Known = Mapping[str, Line]
Report = Callable[[Line], None]


@dataclass(frozen=True)
class Setting:
    """A run of a method, with its seed left open."""

    method: str
    spec: RunSpec
    start: str = ""
    """of FedBC's local training; other methods have none"""
    tolerance: float | str = math.nan

    @property
    def label(self) -> str:
        """As tables name it."""
        return f"{self.method}, {self.gamma}, {STARTS[self.start]}" if self.start else self.method

    @property
    def gamma(self) -> str:
        """The tolerance in words."""
        if isinstance(self.tolerance, str):
            return "learned gamma"
        return "gamma ∞" if math.isinf(self.tolerance) else f"gamma {self.tolerance:g}"


@dataclass(frozen=True)
class Calibration:
    """What is to be run: one FedBC specification to vary, and other methods as they are."""

    base: RunSpec
    methods: Mapping[str, RunSpec]
    seeds: tuple[int, ...]
    validation: float = 0.2
    tolerances: tuple[float | str, ...] | None = None
    """None derives them from the drift of a run without constraint"""
    points: int = 6
    starts: tuple[str, ...] = tuple(STARTS)
    personalize: bool = True

    def __post_init__(self) -> None:
        checks.number("validation", self.validation, above=0, below=1)
        checks.integer("points", self.points, at_least=2)
        for start in self.starts:
            checks.choice("starts", start, STARTS)
        for tolerance in self.tolerances or ():
            checks.tolerance(tolerance)

    def setting(self, start: str, tolerance: float | str) -> Setting:
        """One of FedBC's."""
        algorithm = {**self.base.algorithm, "start": start, "tolerance": tolerance}
        return Setting(FEDBC, replace(self.base, algorithm=algorithm), start, tolerance)

    def spec(self, setting: Setting, seed: int) -> RunSpec:
        """The run of a setting and a seed: on validation data, measured as far as the choice needs it."""
        run = measured_sparely(setting.spec.run) | {"validation": self.validation, "seed": seed}
        return replace(setting.spec, run=run)

    def probe(self, start: str) -> RunSpec:
        """The run without constraint."""
        return self.spec(self.setting(start, math.inf), self.seeds[0])

    def others(self) -> list[Setting]:
        """The methods beside FedBC."""
        return [Setting(label, with_tuning(spec)) for label, spec in self.methods.items()]

    def settings(self, lines: Known) -> list[Setting]:
        """All that is run; needs the probes' lines where the tolerances are not given."""
        found = []
        for start in self.starts:
            if self.tolerances is not None:
                found += [self.setting(start, t) for t in self.tolerances]
                continue
            grid = tolerance_grid(_drift(lines[self.probe(start).identity], start), self.points)
            swept: list[float | str] = [*grid, math.inf, "learned"]
            found += [self.setting(start, t) for t in swept]
        return found + self.others()

    def specs(self, lines: Known) -> list[RunSpec]:
        """All runs."""
        return [self.spec(setting, seed) for setting in self.settings(lines) for seed in self.seeds]

    def to_personalize(self, lines: Known) -> list[Setting]:
        """Of each method that trains a z the setting whose z is the most accurate, over all seeds."""
        best: dict[str, tuple[float, Setting]] = {}
        for setting in self.settings(lines) if self.personalize else ():
            own = [lines[self.spec(setting, seed).identity] for seed in self.seeds]
            if setting.spec.algorithm["name"] in WITHOUT_Z or not all("summary" in line for line in own):
                continue
            score = float(np.mean([line["summary"]["global_accuracy"] for line in own]))
            if setting.method not in best or score > best[setting.method][0]:
                best[setting.method] = score, setting
        return [setting for _, setting in best.values()]

    def run(self, folder: Path, *, workers: int | None, ray: str | None, on_line: Report) -> tuple[Known, Known]:
        """Run what is missing in the folder; the lines of runs and of personalisations, by what they are of."""
        results, personal = folder / "results.jsonl", folder / "personal.jsonl"
        # A cluster's machines have no folder in common: a z is trained again there.
        models = folder / "models" if self.personalize and ray is None else None
        _forget_older(Lines(results))
        go = functools.partial(run_missing, workers=workers, ray=ray, on_line=on_line)
        train = functools.partial(go, results=results, work=work(models))
        if self.tolerances is None:
            train([self.probe(start) for start in self.starts])
        train(self.specs(Lines(results).read()))
        lines = Lines(results).read()
        best = [self.spec(setting, seed) for setting in self.to_personalize(lines) for seed in self.seeds]
        if best:
            go(best, personal, work=measured.personal_work(models), name="personalisations")
        return lines, Lines(personal).read()


def _forget_older(results: Lines) -> None:
    """Lines from before devices were kept say too little: their runs are run again."""
    stale = {key for key, line in results.read().items() if "summary" in line and "devices" not in line}
    if stale:
        with results.reserve():
            results.forget(stale)


def work(models: Path | None = None) -> Callable[[RunSpec], Line]:
    """What a worker does with a run; `models` is the folder for its z."""
    return functools.partial(run_to_line, keep=functools.partial(measured.kept, models=models))


def default_methods(base: RunSpec) -> dict[str, RunSpec]:
    """The methods beside FedBC, with its hyper-parameters where they have the same ones."""
    found = {}
    for name, label in OTHERS.items():
        shared = {k: v for k, v in base.algorithm.items() if k in entry("algorithm", name).options and k != "start"}
        found[label] = replace(base, algorithm={**shared, "name": name})
    return found


def with_tuning(spec: RunSpec) -> RunSpec:
    """FedAvg's z is fine-tuned on the devices, too, as it is or as its run says."""
    if spec.algorithm["name"] != "fedavg" or spec.run.get("fine_tune") is not None:
        return spec
    lr = spec.to_dict()["algorithm"]["lr"]
    return replace(spec, run={**spec.run, "fine_tune": {"steps": TUNING_STEPS, "lr": lr, "of": "global"}})


def measured_sparely(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's table with global and local accuracy only, every few rounds, unless it says otherwise."""
    rounds = run.get("rounds", 100)
    every = max(1, min(5, rounds // 20)) if isinstance(rounds, int) else 1
    return {"evaluate": ["global", "local"], "evaluate_every": every, **run}


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
