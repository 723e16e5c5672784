"""Charts over devices: the trade-off, fairness, the partition."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from fedbc.data.federation import Federation
from fedbc.data.picture import class_counts
from fedbc.reports.charts import Chart
from fedbc.reports.comparison import Comparison
from fedbc.reports.curves_over_rounds import hidden_words
from fedbc.reports.marks import DEVICE, by_method, listed, picked, shape_by_method, slim, with_parameters
from fedbc.simulation.metrics import TEST_LOSSES

MOST_DEVICES = 60
"""Of a chart with a line or a point per device; of more devices these are drawn evenly by size."""

CLOSE = alt.Scale(zero=False, padding=12)
FEW = alt.Axis(tickCount=6)


def shown_devices(comparison: Comparison) -> np.ndarray:
    """The devices that charts show, by name or number: all, or of many some, evenly by size."""
    rows = comparison.devices.drop_duplicates("device").reset_index(drop=True)
    if len(rows) <= MOST_DEVICES:
        return rows["device"].to_numpy()
    by_size = rows.sort_values("examples" if "examples" in rows else "device", kind="stable").index.to_numpy()
    chosen = np.sort(by_size[np.linspace(0, len(by_size) - 1, MOST_DEVICES).round().astype(int)])
    return rows["device"].to_numpy()[chosen]


def tradeoff(comparison: Comparison) -> Chart | None:
    """Global against local accuracy, or loss: a small point per seed, a large one for their mean."""
    scored = comparison.has_accuracy
    columns = ["global_accuracy", "local_accuracy"] if scored else list(TEST_LOSSES)
    factor, unit, better = (100, " %", ("to the right", "above")) if scored else (1, "", ("to the left", "below"))
    what, digits = ("accuracy", ".2f") if scored else ("test loss", ".4")
    table = comparison.table
    if not set(columns) <= set(table.columns) or table[columns].isna().all().any():
        return None
    runs = comparison.runs[["method", "seed", "split", *columns]].copy()
    runs[columns] *= factor
    means = table[["method", "seeds", *columns, *(f"{c}_std" for c in columns)]].copy()
    means[[c for c in means.columns if c not in ("method", "seeds")]] *= factor
    for c in columns:
        spread = means[f"{c}_std"].fillna(0)
        means = means.assign(**{f"{c}_low": means[c] - spread, f"{c}_high": means[c] + spread})
    percent = ", %" if scored else ""
    across, up = columns
    x = alt.X(f"{across}:Q", title=f"global {what}{percent} (better {better[0]})", scale=CLOSE, axis=FEW)
    y = alt.Y(f"{up}:Q", title=f"local {what}{percent} (better {better[1]})", scale=CLOSE, axis=FEW)
    colour = by_method(comparison.algorithms)
    tips = ["method:N", "seed:N", "split:N", *(alt.Tooltip(f"{c}:Q", format=digits) for c in columns)]
    seeds = alt.Chart(slim(runs)).mark_point(filled=True, size=35, opacity=0.5)
    tips_of_mean = ["method:N", "seeds:Q", *(alt.Tooltip(f"{c}:Q", format=digits) for c in columns)]
    base = alt.Chart(slim(means))
    wide = base.mark_rule().encode(x=alt.X(f"{across}_low:Q"), x2=f"{across}_high:Q", y=y, color=colour)
    upright = base.mark_rule().encode(y=alt.Y(f"{up}_low:Q"), y2=f"{up}_high:Q", x=x, color=colour)
    shape = shape_by_method(comparison.algorithms)
    middle = base.mark_point(filled=True, size=170, opacity=1).encode(x, y, colour, shape, tooltip=tips_of_mean)
    seeds = seeds.encode(x, y, colour, shape, tooltip=tips)
    chart = with_parameters(seeds, wide, upright, middle)
    rows = means.to_dict("records")
    words = listed(f"{r['method']} at {r[across]:.3g}{unit} global and {r[up]:.3g}{unit} local" for r in rows)
    said = f"Methods by global and local {what}: {words}."
    caption = "Small: a run. Large: their mean, with lines of one standard deviation."
    return Chart("tradeoff", "The trade-off", chart, said, caption)


def fairness(comparison: Comparison) -> list[Chart]:
    """Accuracy on each device, or loss, sorted, of the global model and of the devices' own."""
    titles = (("global", "The global model on each device", "z"), ("local", "Each device's own model", "xᵢ"))
    charts = [_by_device(comparison, *each) for each in titles]
    return [chart for chart in charts if chart is not None]


def _by_device(comparison: Comparison, whose: str, title: str, who: str) -> Chart | None:
    scored, sets = comparison.has_accuracy, comparison.sets
    column, factor = (f"{whose}_accuracy", 100) if scored else (f"{whose}_test_loss", 1)
    means = comparison.devices.groupby(["method", "device"], sort=False)[column].mean().mul(factor).reset_index()
    means = means.dropna(subset=[column])
    if means.empty:
        return None
    means["place"] = means.groupby("method")[column].rank(method="first", ascending=scored).astype(int)
    x = alt.X("place:Q", title="devices, from the one served worst", axis=alt.Axis(format="d", tickMinStep=1))
    if scored:
        axis, scale = f"accuracy of {who} on its {sets} set, %", alt.Scale(domain=[0, 100])
    else:
        axis, scale = f"loss of {who} on its {sets} set", alt.Scale(zero=True)
    y = alt.Y(f"{column}:Q", title=axis, scale=scale)
    base = alt.Chart(slim(means)).encode(x, y, by_method(comparison.algorithms))
    tips = ["method:N", "device:N", alt.Tooltip(f"{column}:Q", format=".1f" if scored else ".4"), "place:Q"]
    size = 45 if means["device"].nunique() <= MOST_DEVICES else 14
    points = base.mark_point(filled=True, size=size).encode(opacity=picked(), tooltip=tips)
    tenth = means.groupby("method", sort=False)[column].quantile(0.1 if scored else 0.9)
    if scored:
        words = listed(f"{value:.0f} % with {name}" for name, value in tenth.items())
        said = f"{title}: accuracy by device, sorted for each method. A tenth of the devices has at most {words}."
    else:
        words = listed(f"{value:.3g} with {name}" for name, value in tenth.items())
        said = f"{title}: loss by device, sorted for each method. A tenth of the devices has at least {words}."
    lines = with_parameters(base.mark_line(strokeWidth=1.2, opacity=0.6), points)
    under = hidden_words(means.rename(columns={"place": "round", column: "value"}))
    return Chart(f"fairness-{whose}", title, lines, said, under)


def partition(federation: Federation, shown: np.ndarray) -> list[Chart]:
    """How many examples each device has, and of which classes."""
    number = {label: i for i, label in enumerate(federation.device_labels)}
    sizes = pd.DataFrame(
        [
            {"device": d, "set": name, "examples": int(split.sizes[number[d]])}
            for name, split in (("training", federation.train), ("test", federation.test))
            for d in shown.tolist()
        ]
    )
    axis = alt.Axis(labelAngle=-40 if federation.device_names else 0, labelOverlap="greedy", labelSeparation=4)
    x = alt.X("device:O", title="device", axis=axis, sort=shown.tolist())
    bars = (
        alt.Chart(sizes)
        .mark_bar()
        .encode(
            x=x,
            y=alt.Y("examples:Q", title="examples"),
            color=alt.Color("set:N", title=None, scale=alt.Scale(domain=["training", "test"])),
            opacity=picked(1, 0.3),
            order=alt.Order("set:N", sort="descending"),
            tooltip=["device:N", "set:N", "examples:Q"],
        )
    )
    train = federation.train.sizes
    said = f"Examples of each device: from {train.min()} to {train.max()} for training, {train.sum():,} in all."
    device = alt.param(name=DEVICE, value=None)
    bars = bars.add_params(device).properties(width="container", height=180)
    charts = [Chart("partition-sizes", "Examples of each device", bars, said, wide=True)]
    if federation.classes is None:
        return charts
    counts = class_counts(federation.train, federation.classes) + class_counts(federation.test, federation.classes)
    shares = counts / counts.sum(axis=1, keepdims=True)
    labels = federation.class_labels
    cells = pd.DataFrame(
        [
            {
                "device": d,
                "class": labels[c],
                "examples": int(counts[number[d], c]),
                "share": shares[number[d], c],
            }
            for d in shown.tolist()
            for c in np.flatnonzero(counts[number[d]])
        ]
    )
    rects = (
        alt.Chart(slim(cells))
        .mark_rect()
        .encode(
            x=x,
            y=alt.Y("class:O", title="class", sort=labels, scale=alt.Scale(domain=labels)),
            color=alt.Color(
                "share:Q", title="share of the device's examples", legend=alt.Legend(format=".0%", titleLimit=300)
            ),
            opacity=picked(1, 0.3),
            tooltip=["device:N", "class:N", "examples:Q", alt.Tooltip("share:Q", format=".0%")],
        )
    )
    rects = rects.add_params(device).properties(width="container", height=min(600, max(160, 20 * len(labels))))
    several = int(np.median((counts > 0).sum(axis=1)))
    said = f"Classes of each device, of {federation.classes} in all: half of the devices have {several} or fewer."
    return [*charts, Chart("partition-classes", "Classes of each device", rects, said, wide=True)]
