"""The page of `fedbc watch`, and the data by which it goes on: tables, curves, devices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

import fedbc
from fedbc import progress
from fedbc.drawing import running_mean
from fedbc.reports import Chart, Column, Page, Pick, Prose, Section, Table, Toggles
from fedbc.reports.curves_over_rounds import DRIFT, MOST_POINTS, Curve, hidden_words, shown_curves
from fedbc.reports.marks import DEVICE, HIDDEN, by_method, colour_places, picked, slim, with_parameters
from fedbc.reports.page import chart_words, environment
from fedbc.reports.tables import ABSENT, has_accuracy
from fedbc.runs import State
from fedbc.runs.deployed import SUMS_ONLY, has_sums_only
from fedbc.trackers.base import flat
from fedbc.watch.runs import View

MOST_DEVICES = 40
"""Devices that the charts show, evenly over their numbers."""
MOST_STEPS = 60
"""Points of a device's line."""
LOCAL_LOSS = ("local_loss", "Loss on the devices", "along the round's local steps", 1)
HEADINGS = ("run", "state", "round", "global accuracy %", "local accuracy %", "training loss", "left", "pace", "time")

Rows = dict[str, list[dict[str, Any]]]


def curve_rows(views: Sequence[View], column: str, factor: float) -> list[dict[str, Any]]:
    """A column of history for all runs: measured, and as a running mean; long ones are thinned."""
    parts = []
    for view in views:
        if column not in view.history:
            continue
        measured = pd.to_numeric(view.history.set_index("round")[column], errors="coerce").dropna() * factor
        rows = pd.DataFrame({"measured": measured, "value": running_mean(measured), "method": view.name})
        every = max(1, -(-len(rows) // MOST_POINTS))
        places = np.arange(len(rows))
        parts.append(rows.reset_index(names="round")[(places % every == 0) | (places == len(rows) - 1)])
    return _records(pd.concat(parts)) if parts else []


def multiplier_rows(views: Sequence[View]) -> list[dict[str, Any]]:
    """lambda of the shown devices over rounds, thinned."""
    parts = []
    for view in views:
        rows = view.devices
        if "multiplier" in rows and rows["multiplier"].notna().any():
            rows = rows.loc[rows["device"].isin(_shown(rows)), ["round", "device", "multiplier"]]
            count, size = rows.groupby("device").cumcount(), rows.groupby("device")["round"].transform("size")
            every = -(-size // MOST_STEPS)
            parts.append(rows[(count % every == 0) | (count == size - 1)].assign(method=view.name))
    return _records(pd.concat(parts)) if parts else []


def drift_rows(views: Sequence[View]) -> list[dict[str, Any]]:
    """Each shown device's drift and tolerance when it last took part."""
    parts = []
    for view in views:
        if "drift" in view.devices:
            last = view.devices.drop_duplicates("device", keep="last")
            kept = [c for c in ("device", "drift", "tolerance") if c in last]
            parts.append(last.loc[last["device"].isin(_shown(last)), kept].assign(method=view.name))
    return _records(pd.concat(parts)) if parts else []


def _shown(rows: pd.DataFrame) -> np.ndarray:
    devices = np.unique(rows["device"])
    return devices[np.linspace(0, len(devices) - 1, min(MOST_DEVICES, len(devices))).round().astype(int)]


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """For JSON: five digits, and null for what is not a finite number."""
    found = slim(rows.replace([np.inf, -np.inf], np.nan)).to_dict("records")
    return [{str(k): None if isinstance(v, float) and v != v else v for k, v in row.items()} for row in found]


def chart_rows(views: Sequence[View]) -> Rows:
    """The rows of every chart that has some."""
    rows: Rows = {column: curve_rows(views, column, factor) for column, _, _, factor in _curves(views)}
    rows |= {"multipliers": multiplier_rows(views), "drifts": drift_rows(views)}
    return {name: found for name, found in rows.items() if found}


def charts(views: Sequence[View], rows: Rows) -> tuple[list[Chart], list[Chart]]:
    """The charts over rounds, and those of devices; they are drawn with the rows of now and then follow the data."""
    names = _algorithms(views)
    curves = [
        Chart(
            _anchor(column),
            title,
            _following(_curve(names, column, title, axis), rows, column),
            f"{title} ({axis}) over rounds, a curve per run; the table of runs has the last values.",
            _hidden(rows[column]),
        )
        for column, title, axis, _ in _curves(views)
        if column in rows
    ]
    devices = []
    if "multipliers" in rows:
        said = "Multiplier lambda of each device over rounds, a line per device that steps where the device takes part."
        chart = _following(_multipliers(names), rows, "multipliers")
        devices.append(Chart("multipliers", "Multipliers lambda over time", chart, said))
    if "drifts" in rows:
        said = "Drift of each device when it last took part, a point per device; a bar is its tolerance, if it has one."
        chart = _following(_drifts(names, rows["drifts"]), rows, "drifts")
        devices.append(Chart("drifts", "Drift and tolerance of each device", chart, said, "Bars: tolerance γᵢ."))
    return curves, devices


def _curves(views: Sequence[View]) -> list[Curve]:
    validated = [v.spec.get("run", {}).get("validation") is not None for v in views]
    sets = "validation" if all(validated) else "test or validation" if any(validated) else "test"
    return [*shown_curves(sets, any(has_accuracy(v.history) for v in views)), LOCAL_LOSS, DRIFT]


def _hidden(rows: list[dict[str, Any]]) -> str:
    """Which lines are not to be seen because another one lies on them, as of when the page was made."""
    return hidden_words(pd.DataFrame(rows))


def _algorithms(views: Sequence[View]) -> dict[str, str]:
    """What each run runs: its colour goes by it."""
    return {v.name: str(v.spec.get("algorithm", {}).get("name", v.name)) for v in views}


def _anchor(column: str) -> str:
    return column.replace("_", "-")


def _following(chart: Any, rows: Rows, name: str) -> dict[str, Any]:
    spec = chart.to_dict()
    spec.pop("config", None)
    return {**spec, "datasets": {name: rows[name]}}


def _round_axis() -> alt.X:
    return alt.X("round:Q", title="round", scale=alt.Scale(nice=False), axis=alt.Axis(format="d", tickMinStep=1))


def _curve(names: Mapping[str, str], column: str, title: str, axis: str) -> Any:
    base = alt.Chart(alt.NamedData(name=column)).encode(x=_round_axis(), color=by_method(names))
    scale = alt.Scale(zero=False)
    faint = base.mark_line(opacity=0.3, strokeWidth=0.8).encode(y=alt.Y("measured:Q", title=axis, scale=scale))
    bold = base.mark_line(strokeWidth=2).encode(y=alt.Y("value:Q", title=axis, scale=scale))
    tips = ["method:N", "round:Q", alt.Tooltip("measured:Q", title=title, format=".4")]
    points = base.mark_point(filled=True, size=60, opacity=0).encode(y="value:Q", tooltip=tips)
    return with_parameters(faint, bold, points)


def _multipliers(names: Mapping[str, str]) -> Any:
    base = alt.Chart(alt.NamedData(name="multipliers")).encode(
        x=_round_axis(), y=alt.Y("multiplier:Q", title="λᵢ"), color=by_method(names)
    )
    lines = base.mark_line(interpolate="step-after", strokeWidth=1).encode(detail="device:N", opacity=picked(0.6, 0.08))
    tips = ["method:N", "device:N", "round:Q", alt.Tooltip("multiplier:Q", title="λᵢ", format=".4")]
    return with_parameters(lines, base.mark_point(filled=True, size=40, opacity=0).encode(tooltip=tips))


def _drifts(names: Mapping[str, str], rows: Sequence[dict[str, Any]]) -> Any:
    tolerances = any(r.get("tolerance") is not None for r in rows)
    if any(isinstance(r["device"], str) for r in rows):
        x = alt.X("device:O", title="device", sort=None, axis=alt.Axis(labelAngle=-40, labelOverlap="greedy"))
    else:
        x = alt.X("device:Q", title="device", axis=alt.Axis(format="d", tickMinStep=1))
    base = alt.Chart(alt.NamedData(name="drifts")).encode(x=x, color=by_method(names))
    tips = ["method:N", "device:N", alt.Tooltip("drift:Q", format=".4"), alt.Tooltip("tolerance:Q", format=".4")]
    points = base.mark_point(filled=True, size=50).encode(
        y=alt.Y("drift:Q", title="‖xᵢ − z‖²"), opacity=picked(), tooltip=tips if tolerances else tips[:3]
    )
    bars = base.mark_tick(thickness=2, size=10, orient="horizontal").encode(
        y=alt.Y("tolerance:Q", title="‖xᵢ − z‖²"), opacity=picked()
    )
    return with_parameters(points, bars) if tolerances else with_parameters(points)


def table(views: Sequence[View]) -> Table:
    """How far each run is."""
    frame = pd.DataFrame([_cells(view) for view in views], columns=list(HEADINGS))
    return Table("runs", "Runs", frame, [Column(h, h) for h in HEADINGS])


def _cells(view: View) -> list[str]:
    why = f": {view.why}" if view.why else ""
    of = f"{view.round} of {view.rounds}" if view.rounds else str(view.round)
    pace = progress.speed(1 / view.seconds_a_round, "round") if view.seconds_a_round else ABSENT
    left = progress.duration(view.seconds_left) if view.seconds_left is not None else ABSENT
    scores = [_last(view, c, f, d) for c, f, d in (("global_accuracy", 100, 1), ("local_accuracy", 100, 1))]
    return [
        *(view.name, f"{view.state}{why}", of, *scores, _last(view, "global_loss", 1, 3)),
        *(left, pace, progress.duration(view.seconds)),
    ]


def _last(view: View, column: str, factor: float, digits: int) -> str:
    if column not in view.history:
        return ABSENT
    values = pd.to_numeric(view.history[column], errors="coerce").dropna()
    return f"{factor * values.iloc[-1]:.{digits}f}" if len(values) else ABSENT


def data(views: Sequence[View]) -> dict[str, Any]:
    """What the page asks for again and again; `layout` changes when the page itself must be made anew."""
    rows = chart_rows(views)
    states = [v.state for v in views]
    shown = State.RUNNING if State.RUNNING in states else states[0] if len(set(states)) == 1 else "over"
    done, wanted = sum(v.round for v in views), sum(v.rounds or v.round for v in views)
    return {
        "layout": _digest([[v.name, v.spec] for v in views], list(rows)),
        "drawn": _digest(rows),
        "state": shown,
        "share": done / wanted if wanted else 0,
        "cells": table(views).rows,
        "shares": [v.round / v.rounds if v.rounds else None for v in views],
        "rows": rows,
    }


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()[:16]


def html(title: str, views: Sequence[View], now: dict[str, Any], note: str = "") -> str:
    """The page with the data of now."""
    curves, devices = charts(views, now["rows"])
    seen = sorted({d for v in views if "device" in v.devices for d in _shown(v.devices).tolist()})
    sections = [
        Section("progress", "Progress", [table(views), *([Prose(note, soft=True)] if note else [])]),
        Section("curves", "Over the rounds", curves),
        Section("devices", "Device by device", [*_device_words(views, devices), *devices]),
        Section("specification", "Specification", [_specification(views)]),
    ]
    controls: list[Toggles | Pick] = []
    if len(views) > 1:
        controls.append(Toggles(HIDDEN, "Runs", [v.name for v in views], colour_places(_algorithms(views))))
    if devices:
        controls.append(Pick(DEVICE, "Device", [(d, d if isinstance(d, str) else f"device {d}") for d in seen]))
    page = Page(
        title, [], [s for s in sections if s.parts], controls, f"fedbc {fedbc.__version__}. This page follows the run."
    )
    template = environment("fedbc.watch").get_template("watch.html")
    first = {key: now[key] for key in ("layout", "state", "share", "cells", "shares")}
    return template.render(page=page, first=first, **chart_words(page.charts))


def _device_words(views: Sequence[View], devices: list[Chart]) -> list[Prose]:
    if any(has_sums_only(view.devices) for view in views) and not devices:
        return [Prose(f"{SUMS_ONLY[0].upper()}{SUMS_ONLY[1:]}.", soft=True)]
    if not devices:
        return []
    most = max(v.devices["device"].nunique() for v in views if "device" in v.devices)
    some = f" {MOST_DEVICES} of {most} devices are shown." if most > MOST_DEVICES else ""
    return [Prose(f"As of the last checkpoint, when each device last took part.{some}", soft=True)]


def _specification(views: Sequence[View]) -> Table:
    """A row per argument, a column per run."""
    flats = {v.name: {k: str(x) for k, x in flat(v.spec).items()} for v in views}
    keys = list(dict.fromkeys(k for values in flats.values() for k in values))
    parts = list(dict.fromkeys(k.split(".")[0] for k in keys))
    keys.sort(key=lambda k: parts.index(k.split(".")[0]))  # a method's own arguments stand beside the others'
    rows = [[k, *(values.get(k) for values in flats.values())] for k in keys]
    frame = pd.DataFrame(rows, columns=["argument", *flats])
    columns = [Column("argument", "argument"), *(Column(name, name) for name in flats)]
    return Table("specification", "What is run", frame, columns)
