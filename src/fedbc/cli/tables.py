"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from fedbc import Result
from fedbc.runs import what_counts
from fedbc.simulation import has_accuracy

if TYPE_CHECKING:
    import pandas as pd

    from fedbc import reports

ABSENT = "–"


def comparison(results: Mapping[str, Result]) -> Table:
    """One row per method."""
    import pandas as pd  # not at the top: a run need not wait for it before it begins

    from fedbc import reports

    summaries = {name: r.summary() for name, r in results.items()}
    frame = pd.DataFrame([{"method": name, **summary} for name, summary in summaries.items()])
    shown = reports.shown_scores(frame)
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


def of_runs(found: pd.DataFrame) -> Table:
    """One row per run; where it is, to be copied, is never broken."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for heading in ("run", "state", "method", "data", "rounds", "global %", "local %", "changed"):
        justify: Literal["left", "right"] = "right" if heading in ("rounds", "global %", "local %") else "left"
        table.add_column(heading, justify=justify, no_wrap=True)
    for row in found.to_dict("records"):
        scores = (float(row[f"{kind}_accuracy"]) for kind in ("global", "local"))
        cells = (ABSENT if s != s else f"{100 * s:.1f}" for s in scores)
        table.add_row(*(str(row[c]) for c in ("run", "state", "method", "data", "rounds")), *cells, row["changed"])
    return table


def explanation(results: Mapping[str, Result]) -> str:
    """What the table's numbers are, and whether they may be compared."""
    summaries = [r.summary() for r in results.values()]
    evaluated = [s["evaluated_of_them"] for s in summaries if "last_rounds" in s]
    mean = ""
    if evaluated:
        few, many = min(evaluated), max(evaluated)
        counted = str(few) if few == many else f"{few} to {many}"
        mean = f"Means over the last {summaries[0].get('last_rounds', 20)} rounds ({counted} of them evaluated). "
    shares = {r.spec.get("run", {}).get("validation") for r in results.values()}
    sets = "test" if shares == {None} else "validation" if None not in shares else "test or validation"
    share = next(iter(shares))
    held_out = ""
    if len(shares) == 1 and share is not None:
        held_out = f" Validation: {share:.0%} of each device's training data; no test data."
    if any(has_accuracy(r.history) for r in results.values()):
        scores = (
            f"Global accuracy: the global model z on all devices' {sets} sets. Local accuracy: each device's own model "
            f"xᵢ on its own {sets} set, mean over devices. Variance and worst device: z on each device's {sets} set."
        )
    else:
        scores = (
            f"Global test loss: the global model z on all devices' {sets} sets. Local test loss: each device's own "
            f"model xᵢ on its own {sets} set, mean over the same examples."
        )
    return f"{mean}{scores}{held_out}{_not_alike(results)}"


def _not_alike(results: Mapping[str, Result]) -> str:
    """A warning of what makes the runs' numbers no comparison."""

    def data(result: Result) -> str:
        return repr(what_counts("data", result.spec.get("data", {})))

    differ: dict[str, set[Any]] = {
        "data": {data(r) for r in results.values()},
        "rounds": {r.rounds for r in results.values()},
        "held-out examples": {r.spec.get("run", {}).get("validation") for r in results.values()},
    }
    words = [name for name, values in differ.items() if len(values) > 1]
    return f" The runs differ in {' and '.join(words)}: their numbers are no comparison." if words else ""
