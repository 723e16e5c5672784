"""Charts over devices: the trade-off, fairness, the partition."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from fedbc.data.federation import Federation
from fedbc.data.picture import class_counts
from fedbc.reports.charts import Chart
from fedbc.reports.comparison import Comparison
from fedbc.reports.marks import DEVICE, by_method, listed, picked, slim, with_parameters

MOST_DEVICES = 60
"""Of a chart with a line or a point a device; of more devices these are drawn evenly by size."""

CLOSE = alt.Scale(zero=False, padding=12)
FEW = alt.Axis(tickCount=6)


def shown_devices(comparison: Comparison) -> np.ndarray:
    """The devices that charts show: all, or of many some, evenly from the smallest to the largest."""
    rows = comparison.devices.drop_duplicates("device")
    if len(rows) <= MOST_DEVICES:
        return np.sort(rows["device"].to_numpy())
    by_size = rows.sort_values("examples" if "examples" in rows else "device", kind="stable")["device"].to_numpy()
    return np.sort(by_size[np.linspace(0, len(by_size) - 1, MOST_DEVICES).round().astype(int)])


def tradeoff(comparison: Comparison) -> Chart | None:
    """Global against local accuracy: a small point a seed, a large one for their mean."""
    table, columns = comparison.table, ["global_accuracy", "local_accuracy"]
    if not set(columns) <= set(table.columns) or table[columns].isna().all().any():
        return None
    runs = comparison.runs[["method", "seed", *columns]].copy()
    runs[columns] *= 100
    x = alt.X("global_accuracy:Q", title="global accuracy, % (better to the right)", scale=CLOSE, axis=FEW)
    y = alt.Y("local_accuracy:Q", title="local accuracy, % (better above)", scale=CLOSE, axis=FEW)
    colour = by_method(comparison.names)
    tips = ["method:N", "seed:N", *(alt.Tooltip(f"{c}:Q", format=".2f") for c in columns)]
    seeds = alt.Chart(slim(runs)).mark_point(filled=True, size=35, opacity=0.5)
    means = table[["method", "seeds", *columns, *(f"{c}_std" for c in columns)]].copy()
    means[[c for c in means.columns if "accuracy" in c]] *= 100
    for c in columns:
        spread = means[f"{c}_std"].fillna(0)
        means = means.assign(**{f"{c}_low": means[c] - spread, f"{c}_high": means[c] + spread})
    tips_of_mean = ["method:N", "seeds:Q", *(alt.Tooltip(f"{c}:Q", format=".2f") for c in columns)]
    base = alt.Chart(slim(means))
    across = base.mark_rule().encode(x=alt.X("global_accuracy_low:Q"), x2="global_accuracy_high:Q", y=y, color=colour)
    upright = base.mark_rule().encode(y=alt.Y("local_accuracy_low:Q"), y2="local_accuracy_high:Q", x=x, color=colour)
    legend = alt.Legend(symbolOpacity=1)
    shape = alt.Shape("method:N", title=None, scale=alt.Scale(domain=comparison.names), legend=legend)
    middle = base.mark_point(filled=True, size=170, opacity=1).encode(x, y, colour, shape, tooltip=tips_of_mean)
    seeds = seeds.encode(x, y, colour, shape, tooltip=tips)
    chart = with_parameters(seeds, across, upright, middle)
    rows = means.to_dict("records")
    words = listed(
        f"{r['method']} at {r['global_accuracy']:.1f} % global and {r['local_accuracy']:.1f} % local" for r in rows
    )
    said = f"Methods by global and local accuracy: {words}."
    caption = "Small: a seed. Large: their mean, with lines of one standard deviation."
    return Chart("tradeoff", "The trade-off", chart, said, caption)


def fairness(comparison: Comparison) -> list[Chart]:
    """Accuracy on each device, sorted, of the global model and of the devices' own."""
    charts = []
    for column, title, who in (
        ("global_accuracy", "The global model on each device", "z"),
        ("local_accuracy", "Each device's own model", "x_i"),
    ):
        means = comparison.devices.groupby(["method", "device"], sort=False)[column].mean().mul(100).reset_index()
        means = means.dropna(subset=[column])
        if means.empty:
            continue
        means["place"] = means.groupby("method")[column].rank(method="first").astype(int)
        x = alt.X("place:Q", title="devices, from the one served worst", axis=alt.Axis(format="d", tickMinStep=1))
        y = alt.Y(f"{column}:Q", title=f"accuracy of {who} on its test set, %", scale=alt.Scale(domain=[0, 100]))
        base = alt.Chart(slim(means)).encode(x, y, by_method(comparison.names))
        tips = ["method:N", "device:N", alt.Tooltip(f"{column}:Q", format=".1f"), "place:Q"]
        size = 45 if means["device"].nunique() <= MOST_DEVICES else 14
        points = base.mark_point(filled=True, size=size).encode(opacity=picked(), tooltip=tips)
        lowest = means.groupby("method", sort=False)[column].quantile(0.1)
        words = listed(f"{value:.0f} % with {name}" for name, value in lowest.items())
        said = f"{title}: accuracy by device, sorted for each method. A tenth of the devices has at most {words}."
        chart = with_parameters(base.mark_line(strokeWidth=1.2, opacity=0.6), points)
        charts.append(Chart(f"fairness-{column.split('_')[0]}", title, chart, said))
    return charts


def partition(federation: Federation, shown: np.ndarray) -> list[Chart]:
    """How many examples each device has, and of which classes."""
    sizes = pd.DataFrame(
        [
            {"device": int(d), "set": name, "examples": int(split.sizes[d])}
            for name, split in (("training", federation.train), ("test", federation.test))
            for d in shown
        ]
    )
    x = alt.X("device:O", title="device", axis=alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=4))
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
    labels = [str(v) for v in federation.facts.get("labels", range(federation.classes))]
    cells = pd.DataFrame(
        [
            {
                "device": int(d),
                "class": labels[c],
                "examples": int(counts[d, c]),
                "share": shares[d, c],
            }
            for d in shown
            for c in np.flatnonzero(counts[d])
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
