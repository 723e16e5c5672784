"""What a results folder holds, by experiment, method and setting."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedbc.paper.catalogue import EXPERIMENTS
from fedbc.paper.experiment import Part, Run
from fedbc.paper.runner import Store
from fedbc.paper.studies import STUDIES
from fedbc.runs import Line


class Evidence:
    """Everything a results folder holds; what was not run is None, or missing from lists."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, Store(folder)
        self.runs: dict[str, list[tuple[Run, Line | None]]] = {}
        for name, experiment in EXPERIMENTS.items():
            runs = experiment.runs(self.store.choices, Part(full=True))
            self.runs[name] = [(run, self.store.line(run)) for run in runs]
        self._of_method: dict[tuple[str, str], list[tuple[Run, Line]]] = {}
        for name, runs_there in self.runs.items():
            for run, line in runs_there:
                if line is not None:
                    self._of_method.setdefault((name, run.method), []).append((run, line))
        self.studies = {name: study.read(folder) for name, study in STUDIES.items()}

    @property
    def anything(self) -> bool:
        """Whether the folder holds any result at all."""
        return bool(self.store.lines) or any(self.studies.values())

    def complete(self, experiment: str) -> bool:
        """Whether all runs are there that the budget covers, and some of every setting that the paper has."""
        budget, runs = EXPERIMENTS[experiment], self.runs[experiment]
        covered = (line for run, line in runs if run.setting in budget.settings and run.seed in budget.seeds)
        left_out = (any(line for run, line in runs if run.setting == setting) for setting in budget.rest)
        return all(line is not None for line in covered) and all(left_out)

    def lines(self, experiment: str, method: str, **setting: Any) -> list[Line]:
        """The results of a method in a setting, one per seed, in the order of seeds."""
        return [line for run, line in self.of_method(experiment, method) if run.is_in(**setting)]

    def of_method(self, experiment: str, method: str) -> list[tuple[Run, Line]]:
        """The runs of a method that have a result."""
        return self._of_method.get((experiment, method), [])

    def by_seed(self, experiment: str, method: str, column: str, **setting: Any) -> list[tuple[int, float]]:
        """A column of the summaries with the runs' seeds; runs that diverged have none."""
        runs = [(r, line) for r, line in self.of_method(experiment, method) if r.is_in(**setting)]
        known = [(r.seed, line["summary"].get(column, math.nan)) for r, line in runs if "summary" in line]
        return [(seed, float(value)) for seed, value in known if not math.isnan(float(value))]

    def values(self, experiment: str, method: str, column: str, **setting: Any) -> list[float]:
        """The same without the seeds."""
        return [value for _, value in self.by_seed(experiment, method, column, **setting)]

    def common_seeds(self, experiment: str, methods: Iterable[str], **setting: Any) -> set[int]:
        """The seeds with which all of these methods were run in a setting, if only to diverge."""
        runs = {key: self.of_method(experiment, key) for key in methods}
        return set.intersection(*({run.seed for run, _ in own if run.is_in(**setting)} for own in runs.values()))

    def mean(
        self,
        experiment: str,
        method: str,
        column: str = "global_accuracy",
        *,
        seeds: set[int] | None = None,
        **setting: Any,
    ) -> float | None:
        """The mean over seeds, all or some; None where nothing was run."""
        found = self.by_seed(experiment, method, column, **setting)
        values = [value for seed, value in found if seeds is None or seed in seeds]
        return float(np.mean(values)) if values else None

    def constrained(self, experiment: str, method: str, **setting: Any) -> list[float]:
        """The share of devices whose multiplier is above zero at the end, one per seed."""
        lines = self.lines(experiment, method, **setting)
        return [float(np.mean(np.array(line["multipliers"]) > 0)) for line in lines if "multipliers" in line]

    def first(self, experiment: str, method: str, **setting: Any) -> Line | None:
        """The run whose curves are kept."""
        return next((line for line in self.lines(experiment, method, **setting) if "curves" in line), None)
