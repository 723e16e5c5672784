"""The page of a comparison, and its files."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

import fedbc
from fedbc import storage
from fedbc.personalization import MODELS, sentence
from fedbc.reports import constraint_and_weights, curves_over_rounds, spread_over_devices
from fedbc.reports.advice_page import HEADINGS, advice_chart, advice_table, models_chart
from fedbc.reports.charts import Chart
from fedbc.reports.comparable import seed_of, split_of
from fedbc.reports.comparison import Comparison
from fedbc.reports.marks import DEVICE, HIDDEN, colour_places, listed
from fedbc.reports.page import Page, Pick, Prose, Section, Toggles
from fedbc.reports.tables import Column, Table
from fedbc.runs import data_name

Part = Prose | Table | Chart
NO_DATA = (
    "The runs' specifications do not say how to build their data and model, so there are no scores of single "
    "devices and no picture of the partition; fedbc.compare(..., federation=..., model=...) takes them."
)
RUNS = "bold: a running mean over rounds, and over {0}; the band: one standard deviation over {0}."


def page(comparison: Comparison) -> Page:
    """All of it."""
    shown = spread_over_devices.shown_devices(comparison)
    sections = [
        Section("summary", "In numbers", [comparison.summary, *_metrics(comparison), *_failures(comparison)]),
        Section("curves", "Over the rounds", _curves(comparison)),
        Section("devices", "Device by device", _devices(comparison)),
        Section("advice", "Which model for which device", _advice(comparison)),
        Section("balance", "Multipliers, tolerances, drift", _balance(comparison, shown)),
        Section("partition", "The federation", _partition(comparison, shown)),
        Section("specification", "Specifications", _specifications(comparison)),
    ]
    controls: list[Toggles | Pick] = [
        Toggles(HIDDEN, "Methods", comparison.names, colour_places(comparison.algorithms)),
        Pick(DEVICE, "Device", [(d, d if isinstance(d, str) else f"device {d}") for d in shown.tolist()]),
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
    page = whole.write_all(folder, "index.html")
    with storage.explained(folder):
        for name, frame in (("runs", comparison.runs), ("devices", comparison.devices), *_more(comparison)):
            storage.write_atomically(folder / "tables" / f"{name}.csv", frame.to_csv(index=False))
    return page


def _more(comparison: Comparison) -> list[tuple[str, pd.DataFrame]]:
    found = [("differences", comparison.differences)]
    return [*found, ("advice", comparison.advice)] if comparison.personal else found


def notebook_html(comparison: Comparison) -> str:
    """The table and the words, for a cell's output."""
    table = comparison.summary
    head = "".join(f"<th>{html.escape(c.heading)}</th>" for c in table.columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    words = "".join(f"<p>{html.escape(w)}</p>" for w in comparison.words)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{words}"


def _data_name(comparison: Comparison) -> str:
    first = next(iter(comparison.methods.values()))[0]
    return data_name(first.spec.get("data", {}))


def _what(comparison: Comparison) -> str:
    counts = sorted(set(comparison.table["seeds"]))
    splits = f", {comparison.table['splits'].max()} splits of the data" if "splits" in comparison.over else ""
    seeds = "one seed" if counts == [1] else f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} or more seeds"
    devices = f"{comparison.federation.devices} devices, " if comparison.federation is not None else ""
    return f"{devices}{comparison.runs['rounds'].max()} rounds, {seeds} a method{splits}."


def _advice(comparison: Comparison) -> list[Part]:
    """What each method's z leads to; nothing where personalisation was not asked for."""
    if not comparison.personal:
        return []
    parts: list[Part] = [_personal_table(comparison)]
    for name in comparison.personal:
        own = comparison.advice[comparison.advice["method"] == name].reset_index(drop=True)
        suffix = re.sub(r"[^a-z0-9]+", "-", name.lower())
        parts.append(Prose(f"From the global model of {name}: {sentence(own)}"))
        charts = [chart for chart in (advice_chart(own), models_chart(own)) if chart is not None]
        parts += [replace(c, name=f"{c.name}-{suffix}", title=f"{c.title}: {name}") for c in charts]
        table = advice_table(own)
        parts.append(replace(table, name=f"advice-{suffix}", title=f"{table.title}: {name}"))
    return parts


def _personal_table(comparison: Comparison) -> Table:
    """The models of each method on the devices' own test sets, mean over devices."""
    means = [f"{name}_accuracy" for name in MODELS if f"{name}_accuracy" in comparison.advice]
    frame = comparison.advice.groupby("method", sort=False)[means].mean().reset_index()
    headings = {name: f"{heading} %" for name, heading in HEADINGS.items()}
    columns = [Column("method", "method")]
    columns += [Column(mean, headings[mean.removesuffix("_accuracy")], 1, factor=100) for mean in means]
    caption = (
        "Mean over devices of the accuracy on their own test sets, after the last round; z: the global model; xᵢ: the "
        "method's own local model; alone: trained on the device's examples only; own: personalised from this z."
    )
    return Table("personal", "Models for devices, by method", frame, columns, caption)


def _metrics(comparison: Comparison) -> list[Part]:
    return [] if comparison.metrics_table is None else [comparison.metrics_table]


def _failures(comparison: Comparison) -> list[Part]:
    return [Prose(f"Missing: {words}") for words in comparison.failures]


def _curves(comparison: Comparison) -> list[Part]:
    trade = spread_over_devices.tradeoff(comparison)
    return [
        Prose(f"Faint: the measured rounds; {RUNS.format(comparison.over)}", soft=True),
        *([trade] if trade is not None else []),
        *curves_over_rounds.curves(comparison),
    ]


def _devices(comparison: Comparison) -> list[Part]:
    charts = spread_over_devices.fairness(comparison)
    if not charts:
        known = comparison.federation is not None and comparison.model is not None
        return [Prose("No device has test data." if known else NO_DATA, soft=True)]
    said = (
        f"After the last round, mean over {comparison.over}; a flatter curve is a fairer method. Devices are sorted "
        "for each method."
    )
    return [Prose(said, soft=True), *charts]


def _balance(comparison: Comparison, shown: Any) -> list[Part]:
    charts = curves_over_rounds.duals(comparison, shown)
    drift = curves_over_rounds.curve(comparison, *curves_over_rounds.DRIFT)
    others = [constraint_and_weights.constraint(comparison, shown), drift]
    others += [constraint_and_weights.coefficients(comparison, shown, by) for by in ("lambda", "size")]
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
        runs = len(own[["seed", "split"]].drop_duplicates())
        states = {s: (own["constraint"] == s).sum() / runs for s in ("inside", "at it", "beyond")}
        violation = (own["drift"] - own["tolerance"]).clip(lower=0).mean()
        out.append({"method": name, **states, "violation": violation})
    columns = [Column("method", "method"), *(Column(s, f"devices {s}", 1) for s in ("inside", "at it", "beyond"))]
    columns.append(Column("violation", "violation max(0, ‖xᵢ − z‖² − γᵢ), mean", 4))
    caption = f"When each device last took part, mean over {comparison.over}; at it: within 5 % of the tolerance."
    return Table("constraint", "Who is at the constraint", pd.DataFrame(out), columns, caption)


def _partition(comparison: Comparison, shown: Any) -> list[Part]:
    if comparison.federation is None:
        return []
    said = _some_of(comparison, shown)
    charts = spread_over_devices.partition(comparison.federation, shown)
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
    kept = {name: sorted({of(r) for r in results}) for name, of in (("seed", seed_of), ("resplit", split_of))}
    return flat | {f"run {name}": _words(values) for name, values in kept.items()}


def _words(value: Any) -> str:
    return ", ".join(str(v) for v in value) if isinstance(value, list | tuple) else str(value)
