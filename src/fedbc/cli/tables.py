"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedbc.simulation.result import Result

if TYPE_CHECKING:
    from fedbc.reports import tables as reports

COLUMNS = (
    ("global_accuracy", "global\naccuracy %", 100),
    ("local_accuracy", "local\naccuracy %", 100),
    ("finetuned_accuracy", "fine-tuned\nlocal acc. %", 100),
    ("finetuned_on_test_accuracy", "local acc. %,\nfine-tuned on\nTEST data", 100),
    ("accuracy_variance", "variance over\ndevices %²", 1e4),
    ("worst_accuracy", "worst\ndevice %", 100),
    ("global_loss", "training\nloss", 1),
    ("seconds", "time\ns", 1),
)


def comparison(results: Mapping[str, Result]) -> Table:
    """One row a method."""
    summaries = {name: r.summary() for name, r in results.items()}
    shown = [c for c in COLUMNS if any(_is_number(s.get(c[0])) for s in summaries.values())]
    table = Table(title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True)
    for _, heading, _ in shown:
        table.add_column(heading, justify="right")
    for name, summary in summaries.items():
        table.add_row(name, *[_cell(summary.get(key), key, factor) for key, _, factor in shown])
    return table


def of_report(shown: reports.Table) -> Table:
    """A report's table for the terminal; the first column is never broken."""
    table = Table(title_justify="left", header_style="bold", pad_edge=False)
    for column in shown.columns:
        table.add_column(column.heading, justify="left" if column.digits is None else "right")
    table.columns[0].no_wrap = True
    for row in shown.rows:
        table.add_row(*row)
    return table


def explanation(results: Mapping[str, Result]) -> str:
    """What the table's numbers are."""
    summary = next(iter(results.values())).summary()
    mean = ""
    if "last_rounds" in summary:
        mean = (
            f"Means over the last {summary['last_rounds']} rounds ({summary['evaluated_of_them']} of them evaluated). "
        )
    share = next(iter(results.values())).spec.get("run", {}).get("validation")
    sets = "test" if share is None else "validation"
    held_out = "" if share is None else f" Validation: {share:.0%} of each device's training data; no test data."
    return (
        f"{mean}Global accuracy: the global model z on all devices' {sets} sets. Local accuracy: each device's own "
        f"model x_i on its own {sets} set, mean over devices. Variance and worst device: z on each device's {sets} "
        f"set.{held_out}"
    )


def _cell(value: Any, key: str, factor: float) -> str:
    if not _is_number(value):
        return "–"
    return f"{value * factor:.3f}" if key == "global_loss" else f"{value * factor:.1f}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)
