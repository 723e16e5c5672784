"""Which model for which device: the table, the chart and the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedbc import drawing
from fedbc.personalization import MODELS, Verdict, sentence
from fedbc.reports.charts import Chart
from fedbc.reports.page import Page, Prose, Section
from fedbc.reports.tables import Column, Table

HEADINGS = {
    "global": "z",
    "trained": "xᵢ",
    "alone": "alone",
    "personal": "own",
}
SAID = {
    "global": "z",
    "trained": "the method's own xᵢ",
    "alone": "trained alone",
    "personal": "personalised",
}
EVERY_NAME = {"labelOverlap": False, "labelLimit": 130}
"""No device's name is left out of a chart."""
ROW = 18
"""The height of a device's row, in pixels."""
MOST_ROWS = 60
"""Of the chart; of more devices these are drawn evenly by their difference."""


def advice_table(advice: pd.DataFrame, *, brief: bool = False) -> Table:
    """One row per device; brief for the width of a terminal."""
    columns = [Column("name", "device")]
    columns += [] if brief else [Column("examples", "train", 0)]
    columns += [Column("test_examples", "test", 0)]
    columns += [
        Column(f"{name}_accuracy", f"{HEADINGS[name]}\n%", 1, factor=100)
        for name in MODELS
        if f"{name}_accuracy" in advice
    ]
    columns += [Column(f"{name}_loss", f"{HEADINGS[name]}\nloss", 4) for name in MODELS if f"{name}_loss" in advice]
    rows = advice.to_dict("records")
    unit = 100 if "personal_accuracy" in advice else 1
    shown = advice.assign(
        gain=[_points(row["difference"], unit) for row in rows],
        interval=[f"{_points(row['low'], unit)} to {_points(row['high'], unit)}".strip(" to") for row in rows],
    )
    if brief:
        shown["gain"] = [
            f"{gain} ({interval})" if gain else "" for gain, interval in shown[["gain", "interval"]].values
        ]
        columns += [Column("gain", "own − z\n(95 % interval)")]
    else:
        columns += [Column("gain", "own − z"), Column("interval", "95 % interval")]
    columns.append(Column("advice", "advice"))
    caption = (
        "On the device's own test set; z: the global model; xᵢ: the method's own local model; alone: trained on the "
        "device's examples only; own: the personalised model. The interval is that of the difference on the same "
        "examples: exact for one run; for several a bootstrap over examples, with the spread over runs. One in twenty "
        "seems clear by chance."
    )
    return Table("advice", "Which model for which device", shown, columns, caption)


def _points(value: float, unit: int) -> str:
    """In points of accuracy, or as it is."""
    if not np.isfinite(value):
        return ""
    return f"{100 * value:+.1f}" if unit == 100 else f"{value:+.4f}"


def advice_chart(advice: pd.DataFrame) -> Chart | None:
    """The difference between a model of one's own and the global one, device by device."""
    alt = drawing.need("altair")
    rows = advice[np.isfinite(advice["difference"])].sort_values("difference", kind="stable").reset_index(drop=True)
    if rows.empty:
        return None
    if len(rows) > MOST_ROWS:
        rows = rows.iloc[np.linspace(0, len(rows) - 1, MOST_ROWS).round().astype(int)].reset_index(drop=True)
    unit = 100 if "personal_accuracy" in advice else 1
    shown = pd.DataFrame(
        {
            "name": rows["name"].astype(str),
            **{name: [float(f"{unit * value:.4g}") for value in rows[name]] for name in ("difference", "low", "high")},
            "advice": rows["verdict"],
        }
    )
    order = shown["name"].tolist()
    y = alt.Y("name:N", sort=order, title=None, axis=alt.Axis(**EVERY_NAME))
    title = "accuracy of the personalised model minus that of z, points" if unit == 100 else "loss of z minus one's own"
    colour = alt.Color("advice:N", title=None, scale=alt.Scale(domain=[str(v) for v in Verdict]))
    base = alt.Chart(shown)
    tips = ["name:N", "difference:Q", "low:Q", "high:Q", "advice:N"]
    lines = base.mark_rule().encode(x=alt.X("low:Q", title=title), x2="high:Q", y=y, color=colour)
    points = base.mark_point(filled=True, size=60, opacity=1).encode(x="difference:Q", y=y, color=colour, tooltip=tips)
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(strokeDash=[4, 4]).encode(x="zero:Q")
    chart = alt.layer(zero, lines, points).properties(width="container", height=max(120, ROW * len(shown)))
    caption = "A point: the difference on the device's test set; a line: its 95 % interval."
    return Chart("advice", "A model of one's own, or the global one", chart, sentence(advice), caption, wide=True)


def models_chart(advice: pd.DataFrame) -> Chart | None:
    """What each model gets right on each device's test set; a row per device, sorted by z."""
    alt = drawing.need("altair")
    shown = [name for name in MODELS if f"{name}_accuracy" in advice]
    rows = advice[advice["test_examples"] > 0].sort_values("global_accuracy", kind="stable") if shown else advice[:0]
    if rows.empty:
        return None
    if len(rows) > MOST_ROWS:
        rows = rows.iloc[np.linspace(0, len(rows) - 1, MOST_ROWS).round().astype(int)]
    long = pd.DataFrame(
        [
            {
                "name": str(row["name"]),
                "model": SAID[name],
                "accuracy": round(100 * row[f"{name}_accuracy"], 2),
                "examples": int(row["test_examples"]),
            }
            for row in rows.to_dict("records")
            for name in shown
        ]
    )
    words = [SAID[name] for name in shown]
    y = alt.Y("name:N", sort=[str(name) for name in rows["name"]], title=None, axis=alt.Axis(**EVERY_NAME))
    x = alt.X("accuracy:Q", title="accuracy on the device's own test set, %", scale=alt.Scale(zero=False))
    scale = alt.Scale(domain=words)
    colour = alt.Color("model:N", title=None, scale=scale, legend=alt.Legend(symbolOpacity=1, columns=2))
    shape = alt.Shape("model:N", title=None, scale=scale)
    tips = ["name:N", "model:N", alt.Tooltip("accuracy:Q", format=".1f"), "examples:Q"]
    points = alt.Chart(long).mark_point(filled=True, size=60, opacity=0.85)
    chart = points.encode(x=x, y=y, color=colour, shape=shape, tooltip=tips)
    chart = chart.properties(width="container", height=max(120, ROW * len(rows)))
    means = "; ".join(f"{SAID[name]} {100 * rows[f'{name}_accuracy'].mean():.1f} %" for name in shown)
    said = f"Accuracy of each model on each device's test set; mean over devices: {means}."
    return Chart("models", "What each model gets right", chart, said, "A row per device, sorted by z.", wide=True)


def advice_page(advices: dict[str, pd.DataFrame], words: Sequence[str] = ()) -> Page:
    """A page with the advice that follows from each run."""
    sections = []
    for number, (name, advice) in enumerate(advices.items()):
        charts = [chart for chart in (advice_chart(advice), models_chart(advice)) if chart is not None]
        parts: list[Any] = [Prose(sentence(advice)), *charts, advice_table(advice)]
        sections.append(Section(f"advice-{number}", name, parts))
    return Page("Which model for which device", [Prose(w) for w in words], sections)
