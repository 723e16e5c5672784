"""The page of a comparison, and its files."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pandas as pd

import fedbc
from fedbc import storage
from fedbc.reports import acrossdevices, balance, overtime
from fedbc.reports.charts import Chart, write_figure
from fedbc.reports.comparison import Comparison, seed_of
from fedbc.reports.marks import DEVICE, HIDDEN, listed
from fedbc.reports.page import Page, Pick, Prose, Section, Toggles
from fedbc.reports.tables import Column, Table, write_table

Part = Prose | Table | Chart
NO_DATA = (
    "The runs' specifications do not say how to build their data and model, so there are no accuracies of single "
    "devices and no picture of the partition; fedbc.compare(..., federation=..., model=...) takes them."
)
SEEDS = "bold: a running mean over rounds, and over seeds; the band: one standard deviation over seeds."


def page(comparison: Comparison) -> Page:
    """All of it."""
    shown = acrossdevices.shown_devices(comparison)
    sections = [
        Section("summary", "In numbers", [comparison.summary, *_failures(comparison)]),
        Section("curves", "Over the rounds", _curves(comparison)),
        Section("devices", "Device by device", _devices(comparison)),
        Section("balance", "Multipliers, tolerances, drift", _balance(comparison, shown)),
        Section("partition", "The federation", _partition(comparison, shown)),
        Section("specification", "Specifications", _specifications(comparison)),
    ]
    controls: list[Toggles | Pick] = [
        Toggles(HIDDEN, "Methods", comparison.names),
        Pick(DEVICE, "Device", [(int(d), f"device {d}") for d in shown]),
    ]
    return Page(
        title=f"{listed(comparison.names)} on {_data_name(comparison)}",
        lead=[Prose(_what(comparison)), *(Prose(words) for words in comparison.words)],
        sections=[s for s in sections if s.parts],
        controls=controls,
        footer=f"Made by fedbc {fedbc.__version__}. A click on a device's point picks it in all charts.",
    )


def write(comparison: Comparison, folder: Path) -> Path:
    """index.html, figures/ and tables/."""
    whole = comparison.page()
    with storage.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for chart in whole.charts:
            write_figure(chart, folder / "figures")
        for table in whole.tables:
            write_table(table, folder / "tables")
        for name, frame in (("runs", comparison.runs), ("devices", comparison.devices)):
            storage.write_atomically(folder / "tables" / f"{name}.csv", frame.to_csv(index=False))
        return whole.write(folder / "index.html")


def notebook_html(comparison: Comparison) -> str:
    """The table and the words, for a cell's output."""
    table = comparison.summary
    head = "".join(f"<th>{html.escape(c.heading)}</th>" for c in table.columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    words = "".join(f"<p>{html.escape(w)}</p>" for w in comparison.words)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{words}"


def _data_name(comparison: Comparison) -> str:
    first = next(iter(comparison.methods.values()))[0]
    return str(first.spec.get("data", {}).get("name", "one federation"))


def _what(comparison: Comparison) -> str:
    counts = sorted({len(rs) for rs in comparison.methods.values()})
    seeds = "one seed" if counts == [1] else f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} or more seeds"
    devices = f"{comparison.federation.devices} devices, " if comparison.federation is not None else ""
    return f"{devices}{comparison.runs['rounds'].max()} rounds, {seeds} a method."


def _failures(comparison: Comparison) -> list[Part]:
    return [Prose(f"Missing: {words}") for words in comparison.failures]


def _curves(comparison: Comparison) -> list[Part]:
    trade = acrossdevices.tradeoff(comparison)
    return [
        Prose(f"Faint: the measured rounds; {SEEDS}", soft=True),
        *([trade] if trade is not None else []),
        *overtime.curves(comparison),
    ]


def _devices(comparison: Comparison) -> list[Part]:
    charts = acrossdevices.fairness(comparison)
    if not charts:
        return [Prose(NO_DATA, soft=True)]
    said = (
        "After the last round, mean over seeds; a flatter curve is a fairer method. Devices are sorted for each method."
    )
    return [Prose(said, soft=True), *charts]


def _balance(comparison: Comparison, shown: Any) -> list[Part]:
    charts = overtime.duals(comparison, shown)
    drift = overtime.curve(comparison, *overtime.DRIFT)
    others = [balance.constraint(comparison, shown), drift]
    others += [balance.coefficients(comparison, shown, by) for by in ("lambda", "size")]
    parts: list[Part] = [*charts, *(c for c in others if c is not None)]
    said = "Lambda and gamma: the first seed. " if charts else "None of these methods has multipliers or tolerances. "
    said += _some_of(comparison, shown)
    table = _constraint_table(comparison)
    return [Prose(said, soft=True), *parts, *([table] if table is not None else [])]


def _constraint_table(comparison: Comparison) -> Table | None:
    rows = comparison.devices
    rows = rows[rows["constraint"].fillna("") != ""] if "constraint" in rows else rows.iloc[:0]
    if rows.empty:
        return None
    out = []
    for name in rows["method"].unique():
        own = rows[rows["method"] == name]
        seeds = own["seed"].nunique()
        states = {s: (own["constraint"] == s).sum() / seeds for s in ("inside", "at it", "beyond")}
        violation = (own["drift"] - own["tolerance"]).clip(lower=0).mean()
        out.append({"method": name, **states, "violation": violation})
    columns = [Column("method", "method"), *(Column(s, f"devices {s}", 1) for s in ("inside", "at it", "beyond"))]
    columns.append(Column("violation", "violation max(0, ‖x_i − z‖² − gamma_i), mean", 4))
    caption = "When each device last took part, mean over seeds; at it: within 5 % of the tolerance."
    return Table("constraint", "Who is at the constraint", pd.DataFrame(out), columns, caption)


def _partition(comparison: Comparison, shown: Any) -> list[Part]:
    if comparison.federation is None:
        return []
    said = _some_of(comparison, shown)
    charts = acrossdevices.partition(comparison.federation, shown)
    return [Prose(said, soft=True), *charts] if said else [*charts]


def _some_of(comparison: Comparison, shown: Any) -> str:
    total = comparison.devices["device"].nunique()
    return f"Of {total} devices {len(shown)} are shown, evenly by size." if len(shown) < total else ""


def _specifications(comparison: Comparison) -> list[Part]:
    """What the methods share, and what each has of its own."""
    flat = {name: _flat(comparison, name) for name in comparison.names}
    keys = dict.fromkeys(key for table in flat.values() for key in table)
    rows = [{"setting": key, **{n: t.get(key, "–") for n, t in flat.items()}} for key in keys]
    differ = [r for r in rows if len({r[n] for n in flat}) > 1]
    same = [{"setting": r["setting"], "value": r[comparison.names[0]]} for r in rows if r not in differ]
    out: list[Part] = []
    if differ:
        columns = [Column("setting", "setting"), *(Column(n, n) for n in flat)]
        out.append(Table("specification-differs", "What differs", pd.DataFrame(differ), columns))
    if same:
        columns = [Column("setting", "setting"), Column("value", "value")]
        out.append(Table("specification-same", "What all runs share", pd.DataFrame(same), columns))
    return out


def _flat(comparison: Comparison, name: str) -> dict[str, str]:
    results = comparison.methods[name]
    first = results[0].spec
    flat = {f"{part} {key}": _words(value) for part, table in first.items() for key, value in table.items()}
    return flat | {"run seed": _words(sorted(seed_of(r) for r in results))}


def _words(value: Any) -> str:
    return ", ".join(str(v) for v in value) if isinstance(value, list | tuple) else str(value)
