"""The paper's tables, cell by cell: its number, ours, the difference and its standard error.

Two cells agree where the difference of their means is at most twice its standard error, of both means over seeds. A
noisy mean agrees with much, so that the difference in points stands beside; a single seed has no error, and is not
judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedbc.paper import printed
from fedbc.paper.catalogue import CLASSES, DRAWS, EPOCHS, EXPERIMENTS, EXPONENTS
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import Dataset, Setting, heading
from fedbc.paper.methods import METHODS, Family, Protocol
from fedbc.paper.specifications import ON_SHAKESPEARE

PAPERS_SEEDS = 5
"""Runs behind each of the paper's standard deviations (its appendix)."""
NEAR, FAR = 1.0, 3.0
"""Points within which a number of ours is near the paper's, and beyond which it is far off."""


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
    def error(self) -> float | None:
        """The difference's standard error; None with fewer than two seeds."""
        if self.difference is None or self.paper_deviation is None or self.deviation is None:
            return None
        return math.hypot(self.paper_deviation / math.sqrt(PAPERS_SEEDS), self.deviation / math.sqrt(self.seeds))

    @property
    def within(self) -> bool | None:
        """Whether the difference is at most twice its standard error; None where that is not known."""
        if self.difference is None or self.error is None:
            return None
        return abs(self.difference) <= 2 * self.error


@dataclass(frozen=True)
class Compared:
    """The paper's cells of some tables under one protocol, and ours."""

    cells: tuple[Cell, ...]
    """those with a number of both"""

    @property
    def judged(self) -> int:
        """How many have a standard error."""
        return sum(c.within is not None for c in self.cells)

    @property
    def agree(self) -> int:
        """How many of these agree."""
        return sum(bool(c.within) for c in self.cells)

    @property
    def points(self) -> np.ndarray:
        """How far off ours are, in the table's unit."""
        return np.array([abs(c.difference) for c in self.cells if c.difference is not None])

    def __add__(self, other: Compared) -> Compared:
        return Compared(self.cells + other.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def in_words(self) -> str:
        """How many there are, how many agree, and how far off they are."""
        if not self.cells:
            return "none"
        seeds = [c.seeds for c in self.cells if c.within is not None]
        agreeing = [c.difference for c in self.cells if c.within and c.difference is not None]
        loose = sum(abs(d) > FAR for d in agreeing)
        text = f"{len(self)} cells"
        if seeds:
            several = f"{min(seeds)}" + (f" to {max(seeds)}" if max(seeds) > min(seeds) else "")
            text += (
                f"; of the {self.judged} with several seeds ({several}, the paper {PAPERS_SEEDS}) "
                f"{self.agree} agree within two standard errors"
            )
            text += f", {loose} of these though more than {FAR:g} points off" if loose else ""
        return text + (
            f"; all in all {(self.points <= NEAR).sum()} lie within {NEAR:g} point of the paper's number, "
            f"{(self.points > FAR).sum()} more than {FAR:g} points off; in the median it is "
            f"{np.median(self.points):.1f} points"
        )


@dataclass(frozen=True)
class Row:
    """A method in one group of a table."""

    group: str
    label: str
    protocol: Protocol
    cells: tuple[Cell, ...]
    note: str = ""
    printed: str | None = None
    """the paper's name for it; None for controls and variants, which the paper does not have"""

    @property
    def control(self) -> bool:
        """Whether it is ours alone."""
        return self.printed is None

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

    def compared(self, protocol: Protocol) -> Compared:
        """The paper's cells that were run under a protocol."""
        rows = [r for r in self.rows if r.protocol == protocol]
        return Compared(tuple(c for r in rows for c in r.cells if c.difference is not None))


@dataclass(frozen=True)
class RowPlan:
    """How a row is made: which runs, which column, which of the paper's rows."""

    experiment: str
    method: str
    column: str
    printed: str | None
    label: str

    @property
    def protocol(self) -> Protocol:
        """The experiment's, but a variant of the reference's belongs to its own wherever it is run."""
        own = METHODS[self.method].protocol
        return own if own is Protocol.REFERENCE else EXPERIMENTS[self.experiment].protocol


@dataclass(frozen=True)
class TablePlan:
    """How a table is made."""

    kind: ClassVar[str] = "Table"
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

    def build(self, found: Evidence) -> Table:
        """The table from what has been run."""
        rows = tuple(self._row(found, group, line) for group in self.groups for line in self.lines)
        columns = tuple(heading(c) for c in self.columns)
        return Table(self.name, self.title, columns, rows, self.unit, self.notes)

    def _row(self, found: Evidence, group: Setting, line: RowPlan) -> Row:
        method = METHODS[line.method]
        cells = tuple(self._cell(found, {**group, **column}, line) for column in self.columns)
        return Row(heading(group), line.label, line.protocol, cells, method.note, line.printed)

    def _cell(self, found: Evidence, setting: dict[str, Any], line: RowPlan) -> Cell:
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


FINE_TUNED = "FedBC-FineTune"
"""The paper's name for FedBC's own models after one more step."""


def _lines(experiments: Iterable[str]) -> tuple[RowPlan, ...]:
    return tuple(
        RowPlan(name, key, "global_accuracy", METHODS[key].printed, METHODS[key].label)
        for name in experiments
        for key in EXPERIMENTS[name].methods
        if METHODS[key].family is not Family.PERFEDBC
    )


def _local_lines() -> tuple[RowPlan, ...]:
    lines = []
    for name, tuned in (
        ("cifar10-local-e5", "finetuned_accuracy"),
        ("cifar10-rates", ""),
        ("cifar10-local-controls", "finetuned_accuracy"),
        ("cifar10-local-e5-reference", "finetuned_on_test_accuracy_weighted"),
    ):
        for key in EXPERIMENTS[name].methods:
            method = METHODS[key]
            lines.append(RowPlan(name, key, method.local, method.printed, method.label))
            if method.family is Family.FEDBC:
                lines.append(RowPlan(name, key, tuned, FINE_TUNED, method.label.replace("FedBC", FINE_TUNED)))
            if method.family is Family.FEDAVG:
                lines[-1] = RowPlan(name, key, method.local, None, "FedAvg's own x_i")
                lines.append(RowPlan(name, key, tuned, None, "FedAvg-FineTune"))
    return tuple(lines)


def _image_table(data: Dataset, epochs: int) -> TablePlan:
    paper = f"{data}-e{epochs}"
    rates = {Dataset.CIFAR10: ("cifar10-rates",), Dataset.MNIST: ("mnist-weights",)}[data] if epochs == 5 else ()
    rates = (f"{data}-plain-e{epochs}", *rates)
    return TablePlan(
        f"{data}-global-e{epochs}",
        f"{data.shown}: global accuracy, E = {epochs}",
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
        TablePlan(
            "synthetic-global",
            "Synthetic data: global accuracy, 30 devices",
            "synthetic_global",
            _lines(("synthetic", "synthetic-consensus", "synthetic-plain")),
            tuple({"epochs": e} for e in EPOCHS),
            notes=(
                "Our draw 1 of the data is not the paper's, so levels may differ; see the table of five draws.",
                "FedAvg, FedProx and FedBC are alike in both protocols here but for FedBC's dual rate.",
            ),
        ),
        _image_table(Dataset.CIFAR10, 5),
        TablePlan(
            "cifar10-local-e5",
            "CIFAR-10: local accuracy, E = 5",
            "cifar10_local_e5",
            _local_lines(),
            tuple({"exponent": e} for e in EXPONENTS),
            tuple({"classes": c} for c in CLASSES),
            notes=("Under the reference protocol, adapted models have seen TEST data, and accuracy is by examples.",),
        ),
        _image_table(Dataset.CIFAR10, 1),
        _image_table(Dataset.MNIST, 1),
        _image_table(Dataset.MNIST, 5),
        *(
            TablePlan(
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


def build_tables(found: Evidence) -> dict[str, Table]:
    """Every table of accuracies."""
    return {name: plan.build(found) for name, plan in PLANS.items()}


def partition_rows(found: Evidence) -> list[dict[str, Any]]:
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


def size_rows(found: Evidence) -> list[dict[str, Any]]:
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


def draws_table(found: Evidence) -> list[dict[str, Any]]:
    """Five draws of the synthetic data, E = 5: how levels and gains depend on the draw."""
    rows = []
    for key in EXPERIMENTS["synthetic-draws"].methods:
        means = [found.mean("synthetic-draws", key, draw=d) for d in DRAWS]
        rows.append({"label": METHODS[key].label, "means": [None if m is None else 100 * m for m in means]})
    return rows
