"""Tables: one description, written as HTML by the page, and as CSV and LaTeX here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedbc import storage
from fedbc.simulation.metrics import TEST_LOSSES
from fedbc.simulation.metrics import has_accuracy as has_accuracy

ABSENT = "–"


@dataclass(frozen=True)
class Column:
    """A column as it is shown: which one of the frame, its heading, how many digits, and which one is its spread."""

    key: str
    heading: str
    digits: int | None = None
    """after the point; None is for words"""
    spread: str | None = None
    """the frame's column with the standard deviation, shown behind ±"""
    factor: float = 1

    def shown(self, row: Any) -> str:
        """The cell's words."""
        value = row[self.key]
        if self.digits is None:
            return ABSENT if value is None or value != value else str(value)
        number = self._number(value)
        spread = self._number(row[self.spread]) if self.spread is not None else ""
        return ABSENT if not number else f"{number} ± {spread}" if spread else number

    def _number(self, value: Any) -> str:
        if value is None or not math.isfinite(value):
            return ""
        return f"{value * self.factor:.{self.digits}f}"


SCORES = (
    Column("global_accuracy", "global\naccuracy %", 1, factor=100),
    Column("local_accuracy", "local\naccuracy %", 1, factor=100),
    Column("finetuned_accuracy", "fine-tuned\nlocal acc. %", 1, factor=100),
    Column("finetuned_on_test_accuracy", "local acc. %,\nfine-tuned on\nTEST data", 1, factor=100),
    Column("accuracy_variance", "variance over\ndevices %²", 1, factor=1e4),
    Column("worst_accuracy", "worst\ndevice %", 1, factor=100),
    Column("global_test_loss", "global\ntest loss", 3),
    Column("local_test_loss", "local\ntest loss", 3),
    Column("global_loss", "training\nloss", 3),
    Column("seconds", "time\ns", 1),
)
"""The columns of a run's summary that tables show; `fedbc.simulation.metrics` defines them."""


def shown_scores(frame: pd.DataFrame) -> list[Column]:
    """The scores that a table of these summaries shows: those that there are, and losses on the test sets where there
    are no accuracies."""
    passed_over = TEST_LOSSES if has_accuracy(frame) else ()
    return [c for c in SCORES if c.key in frame and frame[c.key].notna().any() and c.key not in passed_over]


@dataclass(frozen=True)
class Table:
    """A frame with the columns to show; the CSV file holds the whole frame as it is."""

    name: str
    title: str
    frame: pd.DataFrame
    columns: Sequence[Column]
    caption: str = ""

    @property
    def rows(self) -> list[list[str]]:
        """The cells as words, row by row."""
        return [[column.shown(row) for column in self.columns] for row in self.frame.to_dict("records")]

    def latex(self) -> str:
        """For a paper; needs the package booktabs."""
        spelled = "".join("l" if c.digits is None else "r" for c in self.columns)
        lines = [" & ".join(latex_text(c.heading) for c in self.columns), *(_latex_row(row) for row in self.rows)]
        head, *body = (f"{line} \\\\" for line in lines)
        above = [f"\\begin{{tabular}}{{{spelled}}}", "\\toprule", head, "\\midrule"]
        return "\n".join([*above, *body, "\\bottomrule", "\\end{tabular}", ""])


def _latex_row(row: list[str]) -> str:
    return " & ".join(latex_text(cell).replace("±", "$\\pm$") for cell in row)


def latex_text(text: str) -> str:
    """Text with LaTeX's own characters escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", ABSENT: "--"}
    special |= {"ᵢ": "$_i$", "λ": r"$\lambda$", "γ": r"$\gamma$", "−": "--"}
    special |= {c: f"\\{c}" for c in "&%$#_{}"} | {"²": "$^2$", "‖": r"$\|$", "\n": " "}
    return "".join(special.get(c, c) for c in text)


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write a table as a CSV and a LaTeX file, named after it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{table.name}.csv", folder / f"{table.name}.tex"]
    storage.write_atomically(files[0], table.frame.to_csv(index=False))
    storage.write_atomically(files[1], table.latex())
    return files
