"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from fedbc.simulation.result import Result

if TYPE_CHECKING:
    from fedbc.reports import tables as reports


def comparison(results: Mapping[str, Result]) -> Table:
    """One row a method."""
    import pandas as pd  # not at the top: a run need not wait for it before it begins

    from fedbc.reports import tables as reports

    summaries = {name: r.summary() for name, r in results.items()}
    frame = pd.DataFrame([{"method": name, **summary} for name, summary in summaries.items()])
    shown = [c for c in reports.SCORES if c.key in frame and frame[c.key].notna().any()]
    return of_report(reports.Table("methods", "", frame, [reports.Column("method", "method"), *shown]))


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
