"""Charts over rounds: curves with bands over seeds, and each device's multiplier and tolerance."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from fedbc.reports.charts import Chart
from fedbc.reports.comparison import Comparison, finite, seed_of
from fedbc.reports.marks import DEVICE, by_method, listed, picked, slim, with_parameters

CURVES = (
    ("global_accuracy", "Global accuracy", "z on all test sets, %", 100),
    ("local_accuracy", "Local accuracy", "x_i on its own test set, %", 100),
    ("finetuned_accuracy", "Fine-tuned accuracy", "after fine-tuning, own test set, %", 100),
    ("global_loss", "Training loss", "z on all training sets", 1),
)
DRIFT = ("drift", "Drift", "‖x_i − z‖², mean over the round's devices", 1)
MOST_POINTS = 250
"""Of a curve; longer ones are thinned after smoothing."""


def curves(comparison: Comparison) -> list[Chart]:
    """Accuracy and loss over rounds, as far as they were measured."""
    drawn = [curve(comparison, *each) for each in CURVES]
    return [chart for chart in drawn if chart is not None]


def curve(comparison: Comparison, column: str, title: str, axis: str, factor: float) -> Chart | None:
    """One column of history: measured means faintly, their running mean in bold, its spread over seeds as a band."""
    parts = [_curve_rows(comparison, name, column, factor) for name in comparison.names]
    rows = pd.concat(parts, ignore_index=True)
    if rows.empty:
        return None
    x = alt.X("round:Q", title="round", axis=alt.Axis(format="d", tickMinStep=1))
    scale = alt.Scale(zero=False)
    base = alt.Chart(slim(rows)).encode(x=x, color=by_method(comparison.names))
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=axis, scale=scale), y2="high:Q")
    faint = base.mark_line(opacity=0.3, strokeWidth=0.8).encode(y=alt.Y("measured:Q", title=axis, scale=scale))
    bold = base.mark_line(strokeWidth=2).encode(y=alt.Y("value:Q", title=axis, scale=scale))
    near = alt.selection_point(name="near", on="pointerover", nearest=True, empty=False, clear="pointerout")
    tips = [alt.Tooltip("method:N"), alt.Tooltip("round:Q"), alt.Tooltip("value:Q", title=title, format=".4")]
    tips += [alt.Tooltip("spread:Q", title="± over seeds", format=".2")]
    points = (
        base.mark_point(filled=True, size=70)
        .encode(y="value:Q", opacity=alt.condition(near, alt.value(1), alt.value(0)), tooltip=tips)
        .add_params(near)
    )
    layers = [band, faint, bold, points] if rows["spread"].notna().any() else [faint, bold, points]
    last = rows.groupby("method", sort=False).last()["value"]
    ends = ", ".join(f"{method} ends at {value:.3g}" for method, value in last.items())
    return Chart(
        column.replace("_", "-"),
        title,
        with_parameters(*layers),
        f"{title} ({axis}) over rounds, one curve a method: {ends}.",
    )


def _curve_rows(comparison: Comparison, name: str, column: str, factor: float) -> pd.DataFrame:
    seeds = {}
    for result in comparison.methods[name]:
        if column in result.history:
            seeds[seed_of(result)] = result.history.set_index("round")[column].dropna() * factor
    measured = pd.DataFrame(seeds)
    if measured.empty:
        return pd.DataFrame()
    smooth = measured.apply(running_mean)
    middle, spread = smooth.mean(axis=1), smooth.std(axis=1, ddof=1)
    rows = pd.DataFrame({"value": middle, "measured": measured.mean(axis=1), "spread": spread})
    rows = rows.assign(low=middle - spread, high=middle + spread, method=name).reset_index(names="round")
    every = -(-len(rows) // MOST_POINTS)
    return rows[(rows.index % every == 0) | (rows.index == rows.index[-1])]


def running_mean(values: pd.Series, half: int = 4) -> pd.Series:
    """Over nine neighbours, fewer on both sides near the ends, so that a curve begins and ends where it does."""
    sums = np.concatenate([[0.0], values.to_numpy(float).cumsum()])
    places = np.arange(len(values))
    reach = np.minimum(min(half, len(values) // 10), np.minimum(places, places[::-1]))
    return pd.Series((sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1), values.index)


def duals(comparison: Comparison, shown: np.ndarray) -> list[Chart]:
    """lambda and gamma of each device over rounds, for the methods that have them."""
    parts = []
    for name in comparison.names:
        first = comparison.methods[name][0]
        if "multiplier" in first.devices:
            steps = first.devices[["round", "device", "multiplier", "tolerance"]]
            # What a device has after its last round, it keeps to the end.
            last = steps.drop_duplicates("device", keep="last").assign(round=first.rounds)
            parts.append(pd.concat([steps, last]).drop_duplicates(["round", "device"]).assign(method=name))
    if not parts:
        return []
    rows = pd.concat(parts, ignore_index=True)
    rows = rows[rows["device"].isin(shown)]
    rows = slim(rows.assign(tolerance=finite(rows["tolerance"])))
    charts = []
    for column, title, axis in (
        ("multiplier", "Multipliers lambda over time", "lambda_i"),
        ("tolerance", "Tolerances gamma over time", "gamma_i"),
    ):
        if rows[column].notna().any():
            ends = rows.groupby("method", sort=False)[column].max()
            words = listed(f"up to {value:.3g} with {method}" for method, value in ends.items())
            said = f"{title}, a line a device that steps where the device takes part: {words}."
            charts.append(Chart(column, title, _dual_lines(comparison, rows, column, axis), said))
    return charts


def _dual_lines(comparison: Comparison, rows: pd.DataFrame, column: str, axis: str) -> Any:
    base = alt.Chart(rows).encode(
        x=alt.X("round:Q", title="round", axis=alt.Axis(format="d", tickMinStep=1)),
        y=alt.Y(f"{column}:Q", title=axis),
        color=by_method(comparison.names, list(rows["method"].unique())),
    )
    lines = base.mark_line(interpolate="step-after").encode(
        detail="device:N",
        opacity=picked(0.55, 0.06),
        strokeWidth=alt.condition(f"{DEVICE} != null && datum.device == {DEVICE}", alt.value(2.5), alt.value(1)),
    )
    tips = ["method:N", "device:N", "round:Q", alt.Tooltip(f"{column}:Q", title=axis, format=".4")]
    points = base.mark_point(filled=True, size=40, opacity=0).encode(tooltip=tips)
    return with_parameters(lines, points)
