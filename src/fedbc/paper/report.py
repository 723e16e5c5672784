"""The report: one self-contained HTML page, and Markdown with its pictures beside it, from whatever has been run."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from fedbc import storage
from fedbc.errors import InputError
from fedbc.paper import drawing, printed, short, suspicions, tables
from fedbc.paper.catalogue import DRAWS, EXPERIMENTS, SEEDS
from fedbc.paper.claims import CLAIMS, SUPPOSITIONS, judge_all
from fedbc.paper.claims.gains import COLUMNS, summary
from fedbc.paper.claims.verdict import VERDICTS, Verdict, middle, reach, spread
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import heading
from fedbc.paper.gallery import FIGURES
from fedbc.paper.hyperparameters import Basis
from fedbc.paper.methods import APPENDIX, METHODS, Protocol
from fedbc.paper.specifications import BELOW
from fedbc.paper.tables import PAPERS_SEEDS, Cell, Compared, Table
from fedbc.reports.page import chart_words, environment

NOT_RUN = "not run"


@dataclass(frozen=True)
class Report:
    """Everything that the report shows."""

    found: Evidence
    tables: Mapping[str, Table]
    claims: list[Verdict]
    """the paper's"""
    suppositions: list[Verdict]
    """ours"""

    @classmethod
    def of(cls, folder: Path) -> Report:
        """From a results folder, as far as it has come."""
        found = Evidence(folder)
        return cls(found, tables.build_tables(found), judge_all(found, CLAIMS), judge_all(found, SUPPOSITIONS))

    @property
    def totals(self) -> dict[str, Any]:
        """The paper's cells that were run under either protocol, and those that agree."""
        every = sum(len(printed.tables()[p.source]["rows"]) for p in _accuracy_plans())
        return {"cells": every} | {
            protocol: sum((t.compared(protocol) for t in self._accuracy_tables), Compared(())) for protocol in Protocol
        }

    @property
    def _accuracy_tables(self) -> list[Table]:
        return [self.tables[plan.name] for plan in _accuracy_plans()]

    @property
    def in_short(self) -> list[str]:
        """What the results say, in five sentences."""
        totals = self.totals
        return short.sentences(self.found, self.claims, totals[Protocol.PAPER], totals["cells"])

    @property
    def basis_in_words(self) -> str:
        """The data that hyper-parameters were chosen on."""
        return short.basis_in_words(self.found)

    @property
    def computed(self) -> dict[str, Any]:
        """How many runs the report rests on, their workers' hours, and the software that computed them."""
        lines = list(self.found.store.lines.values())
        hours = sum(line["seconds"] + line.get("seconds_before", 0) for line in lines) / 3600
        software = sorted({f"{n} {v}" for line in lines for n, v in line["versions"].items() if n != "platform"})
        return {"runs": len(lines), "hours": hours, "software": software}

    @property
    def experiments(self) -> list[dict[str, Any]]:
        """Runs done and wanted, for each experiment's budget."""
        rows = []
        for name, experiment in EXPERIMENTS.items():
            runs = {r.identity: r for r in experiment.runs(self.found.store.choices)}
            done = sum(self.found.store.line(r) is not None for r in runs.values())
            rows.append({"name": name, "title": experiment.title, "done": done, "of": len(runs)})
        return rows

    @property
    def choices(self) -> list[dict[str, str]]:
        """The hyper-parameters chosen, group by group."""
        rows = []
        for group, bases in short.bases(self.found).items():
            for key, basis in bases.items():
                method, arguments = METHODS[key], self.found.store.choices[group][key]
                values = ", ".join(f"{k} {arguments[k]:g}" for k in method.grid)
                # An old choice is of the grid of its time.
                grid = method.grid if basis is Basis.VALIDATION else APPENDIX.get(key, method.grid)
                points = str(math.prod(map(len, grid.values())))
                rows.append(
                    {"group": group, "method": method.label, "chosen": values, "points": points, "basis": basis}
                )
        return rows

    def words(self) -> dict[str, Any]:
        """What the templates use."""
        suspected = suspicions.suspicions(self.found)
        return {
            "report": self,
            "tables": self.tables,
            "remarks": short.remarks(self.found),
            "counted": counted,
            "gains": {"columns": COLUMNS, "rows": summary(self.found)},
            "spread": spread,
            "middle": middle,
            "reach": reach,
            "figures": FIGURES,
            "suspicions": suspected,
            "why_below": suspicions.verdict(suspected, suspicions.noise(self.found)),
            "below": heading(BELOW),
            "partitions": tables.partition_rows(self.found),
            "sizes": tables.size_rows(self.found),
            "draws": {"columns": DRAWS, "rows": tables.draws_table(self.found)},
            "seeds": SEEDS,
            "papers_seeds": PAPERS_SEEDS,
            "shown": shown,
            "pairs": pairs,
            "place": place,
        }

    @functools.cached_property
    def drawn(self) -> dict[str, drawing.Drawn]:
        """The figures that have data."""
        every = {name: drawing.draw(figure, self.found) for name, figure in FIGURES.items()}
        return {name: drawn for name, drawn in every.items() if drawn is not None}

    def html(self) -> str:
        """One page that needs nothing else."""
        pictures = {name: drawn.inline for name, drawn in self.drawn.items()}
        return _template("report.html").render(**self.words(), pictures=pictures, **chart_words([]))

    def write_markdown(self, path: Path) -> None:
        """The Markdown page, and its pictures in a folder of the same name."""
        folder = path.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        pictures = {}
        for name, drawn in self.drawn.items():
            storage.write_atomically(folder / f"{name}.svg", drawn.alone)
            pictures[name] = f"{folder.name}/{name}.svg"
        storage.write_atomically(path, _template("report.md").render(**self.words(), pictures=pictures))


def shown(cell: Cell, digits: int = 1) -> dict[str, str]:
    """A cell's parts as words."""
    ours = NOT_RUN
    if cell.mean is not None:
        spread = f" ± {cell.deviation:.{digits}f}" if cell.deviation is not None else ""
        ours = f"{cell.mean:.{digits}f}{spread} ({cell.seeds})"
    if cell.diverged:
        ours = "diverged" if cell.mean is None else f"{ours}, {cell.diverged} diverged"
    paper = "" if cell.paper is None else f"{cell.paper:.{digits}f} ± {cell.paper_deviation:.{digits}f}"
    difference = "" if cell.difference is None else f"{cell.difference:+z.{digits}f}"
    difference += "" if cell.error is None else f" ± {cell.error:.{digits}f}"
    mark = {None: "", True: "✓", False: "✗"}[cell.within]
    kind = {None: "unjudged", True: "agrees", False: "differs"}[cell.within] if cell.mean is not None else "missing"
    return {"ours": ours, "paper": paper, "difference": difference, "mark": mark, "kind": kind}


def counted(verdicts: list[Verdict]) -> str:
    """How many verdicts there are of each kind."""
    return ", ".join(f"{sum(v.verdict == name for v in verdicts)} {name}" for name in VERDICTS)


def pairs(counts: list[list[int]] | None) -> str:
    """A class partition as the paper writes it: devices × classes."""
    return NOT_RUN if counts is None else ", ".join(f"{n} × {c}" for n, c in counts)


def place(name: str) -> str:
    """The anchor of a table or figure."""
    return f"{'figure' if name in FIGURES else 'table'}-{name}"


def _accuracy_plans() -> list[tables.TablePlan]:
    """The tables of accuracies: every source of the paper's cells once, for Shakespeare's table of variances shares
    its own with that of accuracies, which comes first."""
    return list({p.source: p for p in reversed(tables.PLANS.values())}.values())


def _template(name: str) -> jinja2.Template:
    return environment("fedbc.paper").get_template(name)


def write_report(
    results: str | Path = "results", *, html: Path | None = None, markdown: Path | None = None
) -> tuple[Path, Path]:
    """Write the report of what has been run: a page that needs no other file, and Markdown with its pictures beside it.

    html, markdown: the files; report.html and paper.md in the results folder if not given.
    """
    folder = Path(results)
    report = Report.of(folder)
    if not report.found.anything:
        raise InputError(f"nothing was run in {folder}: fedbc paper run NAME comes first (fedbc paper list has names)")
    html, markdown = html or folder / "report.html", markdown or folder / "paper.md"
    for path in (html, markdown):
        path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(html, report.html())
    report.write_markdown(markdown)
    return html, markdown
