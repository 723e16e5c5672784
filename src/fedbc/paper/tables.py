"""The paper's tables, cell by cell: its number, ours, the difference, and whether two standard deviations cover it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbc.paper import printed
from fedbc.paper.catalogue import (
    CLASSES,
    DRAWS,
    EPOCHS,
    EXPERIMENTS,
    EXPONENTS,
    ON_SHAKESPEARE,
    Setting,
    heading,
)
from fedbc.paper.found import Found
from fedbc.paper.methods import METHODS


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
        paper = printed.cell(self.source, line.printed, setting)
        return Cell(
            paper[self.paper_keys[0]] if paper else None,
            paper[self.paper_keys[1]] if paper else None,
            float(np.mean(values)) if values else None,
            float(np.std(values, ddof=1)) if len(values) > 1 else None,
            len(values),
            sum("diverged" in r for r in lines),
        )


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
    for row in printed.tables()["class_partition"]["rows"]:
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
    for row in printed.tables()["size_range"]["rows"]:
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
