"""The paper's tables, cell by cell: its number, ours, the difference, and whether two standard deviations cover it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedbc.experiments.workers import Line
from fedbc.paper.catalogue import (
    CLASSES,
    DRAWS,
    EPOCHS,
    EXPERIMENTS,
    EXPONENTS,
    ON_SHAKESPEARE,
    Part,
    Run,
    Setting,
    heading,
)
from fedbc.paper.methods import METHODS
from fedbc.paper.runner import Store
from fedbc.paper.studies import STUDIES


@cache
def printed() -> dict[str, Any]:
    """The paper's numbers."""
    return json.loads((resources.files("fedbc.paper") / "tables.json").read_text())


class Found:
    """Everything a results folder holds, by experiment, method and setting."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, Store(folder)
        self.runs: dict[str, list[tuple[Run, Line | None]]] = {}
        for name, experiment in EXPERIMENTS.items():
            runs = experiment.runs(self.store.choices, Part(full=True))
            self.runs[name] = [(run, self.store.line(run)) for run in runs]
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
        """The results of a method in a setting, one a seed, in the order of seeds."""
        found = self.runs.get(experiment, [])
        return [line for run, line in found if line is not None and run.method == method and run.is_in(**setting)]

    def by_seed(self, experiment: str, method: str, column: str, **setting: Any) -> list[tuple[int, float]]:
        """A column of the summaries with the runs' seeds; runs that diverged have none."""
        runs = [(r, line) for r, line in self.runs.get(experiment, []) if r.method == method and r.is_in(**setting)]
        known = [(r.seed, line["summary"].get(column, math.nan)) for r, line in runs if line and "summary" in line]
        return [(seed, float(value)) for seed, value in known if not math.isnan(float(value))]

    def values(self, experiment: str, method: str, column: str, **setting: Any) -> list[float]:
        """The same without the seeds."""
        return [value for _, value in self.by_seed(experiment, method, column, **setting)]

    def common_seeds(self, experiment: str, methods: Iterable[str], **setting: Any) -> set[int]:
        """The seeds with which all of these methods were run in a setting, if only to diverge."""
        runs = [(run.method, run.seed) for run, line in self.runs.get(experiment, []) if line and run.is_in(**setting)]
        return set.intersection(*({seed for key, seed in runs if key == method} for method in methods))

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
        """The share of devices whose multiplier is above zero at the end, one a seed."""
        lines = self.lines(experiment, method, **setting)
        return [float(np.mean(np.array(line["multipliers"]) > 0)) for line in lines if "multipliers" in line]

    def first(self, experiment: str, method: str, **setting: Any) -> Line | None:
        """The run whose curves are kept."""
        return next((line for line in self.lines(experiment, method, **setting) if "curves" in line), None)


@dataclass(frozen=True)
class Cell:
    """One number of a table and its reproduction."""

    paper: float | None
    paper_deviation: float | None
    mean: float | None
    deviation: float | None
    seeds: int
    diverged: int

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper

    @property
    def within(self) -> bool | None:
        """Whether the difference is at most two standard deviations, the paper's and ours together."""
        if self.difference is None or self.paper_deviation is None:
            return None
        return abs(self.difference) <= 2 * math.hypot(self.paper_deviation, self.deviation or 0)


@dataclass(frozen=True)
class Row:
    """A method in one group of a table."""

    group: str
    label: str
    protocol: str
    cells: tuple[Cell, ...]
    note: str = ""
    control: bool = False

    @property
    def was_run(self) -> bool:
        """Whether any of its cells was."""
        return any(c.seeds or c.diverged for c in self.cells)

    @property
    def paper(self) -> tuple[float | None, ...]:
        """The paper's numbers."""
        return tuple(c.paper for c in self.cells)


@dataclass(frozen=True)
class Table:
    """A table as it stands."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    unit: str = "%"
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[Row, ...]:
        """The rows with a number of ours, or with numbers of the paper that no row before them has."""
        seen: set[tuple[float | None, ...]] = {(None,) * len(self.columns)}
        kept = []
        for row in self.rows:
            if row.was_run or row.paper not in seen:
                kept.append(row)
            seen.add(row.paper)
        return tuple(kept)

    @property
    def left_out(self) -> str:
        """The other rows, of which nothing was run, in words."""
        shown = self.shown
        where: dict[str, list[str]] = {}
        for group, protocol in dict.fromkeys((row.group, row.protocol) for row in self.rows):
            rows = [row for row in self.rows if (row.group, row.protocol) == (group, protocol)]
            missing = [row.label for row in rows if row not in shown]
            if missing:
                what = "all rows" if len(missing) == len(rows) else "; ".join(missing)
                where.setdefault(f"{protocol} protocol: {what}", []).append(group)
        parts = [f"{', '.join(groups)}, {what}" if any(groups) else what for what, groups in where.items()]
        return f"Left out, as nothing of them was run: {'. '.join(parts)}." if parts else ""

    def compared(self, protocol: str) -> tuple[int, int]:
        """Of the paper's cells: how many were run under a protocol, and how many of those agree."""
        cells = [c for r in self.rows if r.protocol == protocol for c in r.cells if c.paper is not None]
        return sum(c.mean is not None for c in cells), sum(bool(c.within) for c in cells)


@dataclass(frozen=True)
class RowPlan:
    """How a row is made: which runs, which column, which of the paper's rows."""

    experiment: str
    method: str
    column: str
    printed: str | None
    label: str


@dataclass(frozen=True)
class Plan:
    """How a table is made."""

    name: str
    title: str
    source: str
    lines: tuple[RowPlan, ...]
    columns: tuple[Setting, ...]
    groups: tuple[Setting, ...] = ({},)
    paper_keys: tuple[str, str] = ("mean", "std")
    factor: float = 100
    unit: str = "%"
    notes: tuple[str, ...] = field(default=())

    @property
    def needs(self) -> tuple[str, ...]:
        """The experiments whose runs it shows."""
        return tuple(dict.fromkeys(line.experiment for line in self.lines))

    def build(self, found: Found) -> Table:
        """The table from what has been run."""
        rows = tuple(self._row(found, group, line) for group in self.groups for line in self.lines)
        columns = tuple(heading(c) for c in self.columns)
        return Table(self.name, self.title, columns, rows, self.unit, self.notes)

    def _row(self, found: Found, group: Setting, line: RowPlan) -> Row:
        method = METHODS[line.method]
        cells = tuple(self._cell(found, {**group, **column}, line) for column in self.columns)
        protocol = "reference" if "reference" in f"{line.experiment} {line.method}" else "paper"
        return Row(heading(group), line.label, protocol, cells, method.note, line.printed is None)

    def _cell(self, found: Found, setting: dict[str, Any], line: RowPlan) -> Cell:
        values = [self.factor * v for v in found.values(line.experiment, line.method, line.column, **setting)]
        lines = found.lines(line.experiment, line.method, **setting)
        paper = printed_cell(self.source, line.printed, setting) if line.printed is not None else None
        return Cell(
            paper[self.paper_keys[0]] if paper else None,
            paper[self.paper_keys[1]] if paper else None,
            float(np.mean(values)) if values else None,
            float(np.std(values, ddof=1)) if len(values) > 1 else None,
            len(values),
            sum("diverged" in r for r in lines),
        )


def printed_cell(source: str, name: str, setting: dict[str, Any]) -> dict[str, Any] | None:
    """The paper's cell of a method in a setting, if it has one."""
    for row in printed()[source]["rows"]:
        if row["algorithm"] == name and all(row.get(k, v) == v for k, v in setting.items()):
            return row
    return None


def _lines(experiments: Iterable[str]) -> tuple[RowPlan, ...]:
    return tuple(
        RowPlan(name, key, "global_accuracy", METHODS[key].printed, METHODS[key].label)
        for name in experiments
        for key in EXPERIMENTS[name].methods
        if not key.startswith("perfedbc")
    )


def _local_lines() -> tuple[RowPlan, ...]:
    lines = []
    for name, tuned in (
        ("cifar10-local-e5", "finetuned_accuracy"),
        ("cifar10-rates", ""),
        ("cifar10-local-e5-reference", "finetuned_on_test_accuracy_weighted"),
    ):
        for key in EXPERIMENTS[name].methods:
            method = METHODS[key]
            lines.append(RowPlan(name, key, method.local, method.printed, method.label))
            if key.startswith("fedbc"):
                label = "FedBC-FineTune" + (", reference" if "reference" in key else "")
                lines.append(RowPlan(name, key, tuned, "FedBC-FineTune", label))
    return tuple(lines)


def _image_plan(data: str, epochs: int) -> Plan:
    shown = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[data]
    paper = f"{data}-e{epochs}"
    rates = {"cifar10-e5": ("cifar10-rates",), "mnist-e5": ("mnist-weights",)}.get(paper, ())
    return Plan(
        f"{data}-global-e{epochs}",
        f"{shown}: global accuracy, E = {epochs}",
        f"{data}_global_e{epochs}",
        _lines((paper, *rates, f"{paper}-reference")),
        tuple({"exponent": e} for e in EXPONENTS),
        tuple({"classes": c} for c in CLASSES),
    )


_SHAKESPEARE_NOTE = (
    f"The budget runs 138 devices with every {ON_SHAKESPEARE[0]['stride']}th of their examples, "
    + ", ".join(f"{s['rounds']} rounds with E = {s['epochs']}" for s in ON_SHAKESPEARE)
    + "; the paper's have all of theirs."
)

PLANS = {
    p.name: p
    for p in (
        Plan(
            "synthetic-global",
            "Synthetic data: global accuracy, 30 devices",
            "synthetic_global",
            _lines(("synthetic",)),
            tuple({"epochs": e} for e in EPOCHS),
            notes=(
                "Our draw 1 of the data is not the paper's, so levels may differ; see the table of five draws.",
                "FedAvg, FedProx and FedBC are alike in both protocols here but for FedBC's dual rate.",
            ),
        ),
        _image_plan("cifar10", 5),
        Plan(
            "cifar10-local-e5",
            "CIFAR-10: local accuracy, E = 5",
            "cifar10_local_e5",
            _local_lines(),
            tuple({"exponent": e} for e in EXPONENTS),
            tuple({"classes": c} for c in CLASSES),
            notes=("Under the reference protocol, adapted models have seen TEST data, and accuracy is by examples.",),
        ),
        _image_plan("cifar10", 1),
        _image_plan("mnist", 1),
        _image_plan("mnist", 5),
        *(
            Plan(
                f"shakespeare-{name}",
                f"Shakespeare: {title}",
                "shakespeare_global",
                tuple(
                    RowPlan("shakespeare", key, column, METHODS[key].printed, METHODS[key].label)
                    for key in EXPERIMENTS["shakespeare"].methods
                ),
                ({"epochs": 1}, {"epochs": 5}),
                ({"stride": ON_SHAKESPEARE[0]["stride"]}, {"stride": 1}),
                keys,
                factor,
                unit,
                (_SHAKESPEARE_NOTE,),
            )
            for name, title, column, keys, factor, unit in (
                ("global", "global accuracy", "global_accuracy", ("mean", "std"), 100, "%"),
                (
                    *("variance", "variance of accuracy over devices", "accuracy_variance"),
                    *(("variance_mean", "variance_std"), 1e4, "%²"),
                ),
            )
        ),
    )
}


def build_tables(found: Found) -> dict[str, Table]:
    """Every table of accuracies."""
    return {name: plan.build(found) for name, plan in PLANS.items()}


def partition_rows(found: Found) -> list[dict[str, Any]]:
    """The class partitions beside the paper's; `ours` is None before the study was run."""
    ours = found.studies["partitions"]
    rows = []
    for row in printed()["class_partition"]["rows"]:
        setting = {k: row[k] for k in ("dataset", "classes", "exponent")}
        same = [r for r in ours["classes"] if all(r[k] == v for k, v in setting.items())] if ours else []
        rows.append({**setting, "paper": row["devices_by_class_count"], "ours": _pairs(same)})
    return rows


def _pairs(rows: list[dict[str, Any]]) -> list[list[int]] | None:
    return rows[0]["devices_by_class_count"] if rows else None


def size_rows(found: Found) -> list[dict[str, Any]]:
    """The smallest and largest device beside the paper's."""
    ours = found.studies["partitions"]
    rows = []
    for row in printed()["size_range"]["rows"]:
        sizes = [
            r["sizes"]
            for r in (ours["sizes"] if ours else [])
            if r["dataset"] == row["dataset"] and r["exponent"] == row["exponent"]
        ]
        mine = [min(sizes[0]), max(sizes[0])] if sizes else None
        rows.append(
            {"dataset": row["dataset"], "exponent": row["exponent"], "paper": [row["smallest"], row["largest"]]}
            | {"ours": mine}
        )
    return rows


def draws_table(found: Found) -> list[dict[str, Any]]:
    """Five draws of the synthetic data, E = 5: how levels and gains depend on the draw."""
    rows = []
    for key in EXPERIMENTS["synthetic-draws"].methods:
        means = [found.mean("synthetic-draws", key, draw=d) for d in DRAWS]
        rows.append({"label": METHODS[key].label, "means": [None if m is None else 100 * m for m in means]})
    return rows
