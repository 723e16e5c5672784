"""Charts over rounds: curves with bands over seeds, and each device's multiplier and tolerance."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from fedbc.drawing import running_mean
from fedbc.reports.charts import Chart
from fedbc.reports.comparable import seed_of, split_of
from fedbc.reports.comparison import Comparison
from fedbc.reports.marks import DEVICE, by_method, listed, picked, slim, with_parameters
from fedbc.simulation.metrics import TEST_LOSSES

CURVES = (
    ("global_accuracy", "Global accuracy", "z on all {sets} sets, %", 100),
    ("local_accuracy", "Local accuracy", "xᵢ on its own {sets} set, %", 100),
    ("finetuned_accuracy", "Fine-tuned accuracy", "after fine-tuning, own {sets} set, %", 100),
    ("global_test_loss", "Loss of the global model", "z on all {sets} sets", 1),
    ("local_test_loss", "Loss of the local models", "xᵢ on its own {sets} set", 1),
    ("global_loss", "Training loss", "z on all training sets", 1),
)
DRIFT = ("drift", "Drift", "‖xᵢ − z‖², mean over the round's devices", 1)
MOST_POINTS = 250
"""Of a curve; longer ones are thinned after smoothing."""


Curve = tuple[str, str, str, float]
"""Column of history, title, axis, factor."""


def shown_curves(sets: str, accuracy: bool) -> list[Curve]:
    """The curves that are of interest, with the sets that were measured on in words."""
    found = [c for c in CURVES if not (accuracy and c[0] in TEST_LOSSES)]
    return [(column, title, axis.format(sets=sets), factor) for column, title, axis, factor in found]


def curves(comparison: Comparison) -> list[Chart]:
    """Accuracy and loss over rounds, as far as they were measured."""
    drawn = [curve(comparison, *each) for each in shown_curves(comparison.sets, comparison.has_accuracy)]
    return [chart for chart in drawn if chart is not None]


def curve(comparison: Comparison, column: str, title: str, axis: str, factor: float) -> Chart | None:
    """One column of history: measured means faintly, their running mean in bold, its spread over seeds as a band."""
    parts = [_curve_rows(comparison, name, column, factor) for name in comparison.names]
    rows = pd.concat(parts, ignore_index=True)
    if rows.empty:
        return None
    x = alt.X("round:Q", title="round", axis=alt.Axis(format="d", tickMinStep=1))
    scale = alt.Scale(zero=False)
    base = alt.Chart(slim(rows)).encode(x=x, color=by_method(comparison.algorithms))
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=axis, scale=scale), y2="high:Q")
    faint = base.mark_line(opacity=0.3, strokeWidth=0.8).encode(y=alt.Y("measured:Q", title=axis, scale=scale))
    bold = base.mark_line(strokeWidth=2).encode(y=alt.Y("value:Q", title=axis, scale=scale))
    near = alt.selection_point(name="near", on="pointerover", nearest=True, empty=False, clear="pointerout")
    tips = [alt.Tooltip("method:N"), alt.Tooltip("round:Q"), alt.Tooltip("value:Q", title=title, format=".4")]
    tips += [alt.Tooltip("spread:Q", title=f"± over {comparison.over}", format=".2")]
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
        f"{title} ({axis}) over rounds, one curve per method: {ends}.",
        hidden_words(rows),
    )


MOST_NAMED = 3
"""Of the lines that hide under one; more are counted."""
SAME = 0.01
"""Lines that are nowhere further apart than this share of the chart's height are one line to the eye."""


def hidden_lines(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """The methods whose line is hidden, and which later one hides each; `rows` have round, method and value."""
    lines = rows.pivot_table(index="round", columns="method", values="value", sort=False)
    lines = lines[list(dict.fromkeys(rows["method"]))]
    height = float(lines.max().max() - lines.min().min())
    found = []
    for place, under in enumerate(lines.columns):
        for over in lines.columns[place + 1 :]:
            apart = (lines[under] - lines[over]).abs()
            if (
                apart.notna().any()
                and float(apart.max()) <= SAME * height
                and apart.notna().sum() >= lines[under].count()
            ):
                found.append((str(under), str(over)))
                break
    return found


def hidden_words(rows: pd.DataFrame) -> str:
    """In a sentence for each line that hides others; of many it only counts them."""
    over = dict(hidden_lines(rows))
    beneath: dict[str, list[str]] = {}
    for under in over:
        top = over[under]
        while top in over:  # it may be hidden itself
            top = over[top]
        beneath.setdefault(top, []).append(under)
    few = {
        top: listed(unders) if len(unders) <= MOST_NAMED else f"{len(unders)} lines" for top, unders in beneath.items()
    }
    return " ".join(f"{few[top]} {'lies' if len(beneath[top]) == 1 else 'lie'} under {top}." for top in beneath)


def _curve_rows(comparison: Comparison, name: str, column: str, factor: float) -> pd.DataFrame:
    seeds = {}
    for result in comparison.methods[name]:
        if column in result.history:
            seeds[seed_of(result), split_of(result)] = result.history.set_index("round")[column].dropna() * factor
    measured = pd.DataFrame(seeds)
    if measured.empty:
        return pd.DataFrame()
    smooth = measured.apply(lambda column: pd.Series(running_mean(column), column.index))
    middle, spread = smooth.mean(axis=1), smooth.std(axis=1, ddof=1)
    rows = pd.DataFrame({"value": middle, "measured": measured.mean(axis=1), "spread": spread})
    rows = rows.assign(low=middle - spread, high=middle + spread, method=name).reset_index(names="round")
    every = -(-len(rows) // MOST_POINTS)
    return rows[(rows.index % every == 0) | (rows.index == rows.index[-1])]


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
    rows = slim(rows.assign(tolerance=rows["tolerance"].where(np.isfinite(rows["tolerance"]))))
    charts = []
    for column, title, axis in (
        ("multiplier", "Multipliers lambda over time", "λᵢ"),
        ("tolerance", "Tolerances gamma over time", "γᵢ"),
    ):
        if rows[column].notna().any():
            ends = rows.groupby("method", sort=False)[column].max()
            words = listed(f"up to {value:.3g} with {method}" for method, value in ends.items())
            said = f"{title}, a line per device that steps where the device takes part: {words}."
            charts.append(Chart(column, title, _dual_lines(comparison, rows, column, axis), said))
    return charts


def _dual_lines(comparison: Comparison, rows: pd.DataFrame, column: str, axis: str) -> Any:
    base = alt.Chart(rows).encode(
        x=alt.X("round:Q", title="round", axis=alt.Axis(format="d", tickMinStep=1)),
        y=alt.Y(f"{column}:Q", title=axis),
        color=by_method(comparison.algorithms, list(rows["method"].unique())),
    )
    lines = base.mark_line(interpolate="step-after").encode(
        detail="device:N",
        opacity=picked(0.55, 0.06),
        strokeWidth=alt.condition(f"{DEVICE} != null && datum.device == {DEVICE}", alt.value(2.5), alt.value(1)),
    )
    tips = ["method:N", "device:N", "round:Q", alt.Tooltip(f"{column}:Q", title=axis, format=".4")]
    points = base.mark_point(filled=True, size=40, opacity=0).encode(tooltip=tips)
    return with_parameters(lines, points)
