"""Charts of the balance between devices and server: who counts how much, and who is at the constraint."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from fedbc.reports.charts import Chart
from fedbc.reports.comparison import Comparison
from fedbc.reports.marks import by_method, listed, picked, slim, with_parameters

DASHED: dict[str, Any] = {"strokeDash": [4, 4], "color": "#888888", "strokeWidth": 1}
STATES = {"inside": "circle", "at it": "square", "beyond": "triangle-up"}
"""Where a drift stands to its tolerance, and the point's shape."""

DRIFT = "drift ‖xᵢ − z‖²"


def coefficients(comparison: Comparison, shown: np.ndarray, by: str) -> Chart | None:
    """Each device's share in the server's mean, by "size" (what its examples alone would give it) or by "lambda"."""
    rows = comparison.devices
    column = {"size": "coefficient_by_examples", "lambda": "multiplier_mean"}[by]
    if column not in rows:
        return None
    rows = rows[rows["device"].isin(shown)].dropna(subset=["coefficient", column])
    if rows.empty:
        return None
    keep = ["multiplier_mean", "examples", "coefficient", "coefficient_by_examples"]
    rows = rows.groupby(["method", "device"], sort=False)[[c for c in keep if c in rows]].mean().reset_index()
    by_size = alt.X(f"{column}:Q", title="share by size, nᵢ / Σ n", axis=alt.Axis(format=".0%"))
    x = by_size if by == "size" else alt.X(f"{column}:Q", title="λᵢ, mean over its rounds")
    y = alt.Y("coefficient:Q", title="share in the server's mean", axis=alt.Axis(format=".0%"))
    tips = ["method:N", "device:N", "examples:Q", alt.Tooltip("multiplier_mean:Q", title="λᵢ", format=".4")]
    tips += [alt.Tooltip(f"{c}:Q", format=".1%") for c in ("coefficient", "coefficient_by_examples")]
    colour = by_method(comparison.algorithms, list(rows["method"].unique()))
    points = alt.Chart(slim(rows)).mark_point(filled=True, size=55).encode(x, y, colour)
    points = points.encode(opacity=picked(0.75), tooltip=tips)
    if by == "lambda":
        together = rows.groupby("method", sort=False)[["coefficient", column]].corr().xs("coefficient", level=1)[column]
        words = listed(f"{value:.2f} with {name}" for name, value in together.items())
        said = f"Each device's share in the server's mean against its multiplier lambda; their correlation is {words}."
        caption = "FedBC weighs a device by λᵢ: who strains most at the tolerance counts most."
        return Chart("coefficients-lambda", "Who counts how much: by lambda", with_parameters(points), said, caption)
    top = float(rows[["coefficient", column]].max().max())
    same = pd.DataFrame({column: [0, top], "coefficient": [0, top], "method": [None, None]})
    line = alt.Chart(same).mark_line(**DASHED).encode(x, y)
    off = rows.assign(gap=(rows["coefficient"] - rows[column]).abs()).groupby("method", sort=False)["gap"].mean()
    words = listed(f"{100 * value:.1f} points with {name}" for name, value in off.items())
    said = f"Each device's share in the server's mean against its share by size; they are apart by {words} in the mean."
    caption = "Mean over a device's rounds. On the dashed line it counts as its number of examples says."
    return Chart("coefficients-size", "Who counts how much: by size", with_parameters(line, points), said, caption)


def constraint(comparison: Comparison, shown: np.ndarray) -> Chart | None:
    """Drift against tolerance when each device last took part, for the methods that have tolerances."""
    rows = comparison.devices
    if "tolerance" not in rows:
        return None
    rows = rows[rows["device"].isin(shown) & np.isfinite(rows["tolerance"]) & np.isfinite(rows["drift"])]
    if rows.empty:
        return None
    keep = ["method", "seed", "split", "device", "tolerance", "drift", "multiplier", "constraint"]
    counts = rows.groupby("method", sort=False)["constraint"].value_counts(normalize=True)
    words = listed(
        f"{100 * counts.get((name, 'beyond'), 0):.0f} % of the devices beyond and "
        f"{100 * counts.get((name, 'at it'), 0):.0f} % at it with {name}"
        for name in rows["method"].unique()
    )
    said = f"Drift against tolerance, a point per device and seed, when it last took part: {words}."
    alike = (rows.groupby("method")["tolerance"].nunique() == 1).all()
    drawn = _one_tolerance(comparison, rows[keep]) if alike else _many_tolerances(comparison, rows[keep])
    caption = "On the dashed line a device is at its constraint, above it beyond, below it inside."
    return Chart("constraint", "Drift against tolerance", drawn, said, caption)


def _many_tolerances(comparison: Comparison, rows: pd.DataFrame) -> Any:
    """gamma_i across, drift upwards, and the line on which they are equal."""
    scale = alt.Scale(type="sqrt", nice=True)
    x = alt.X("tolerance:Q", title="tolerance γᵢ", scale=scale)
    y = alt.Y("drift:Q", title=DRIFT, scale=scale)
    top = float(min(rows["tolerance"].max(), rows["drift"].max()))
    # On square-root axes the line is straight, too: its two ends are enough.
    same = pd.DataFrame({"tolerance": [0, top], "drift": [0, top], "method": [None, None]})
    line = alt.Chart(same).mark_line(**DASHED).encode(x, y)
    return with_parameters(line, _constraint_points(comparison, rows, x, y))


def _one_tolerance(comparison: Comparison, rows: pd.DataFrame) -> Any:
    """Where a method has the same gamma for all: devices sorted by drift, and a line at gamma."""
    rows = rows.assign(place=rows.groupby(["method", "seed", "split"])["drift"].rank(method="first").astype(int))
    x = alt.X("place:Q", title="devices, by drift", axis=alt.Axis(format="d", tickMinStep=1))
    y = alt.Y("drift:Q", title=DRIFT, scale=alt.Scale(type="sqrt", nice=True))
    gammas = rows.drop_duplicates("method")[["method", "tolerance"]]
    tips = ["method:N", alt.Tooltip("tolerance:Q", title="tolerance gamma", format=".4")]
    line = alt.Chart(slim(gammas)).mark_rule(strokeDash=[4, 4], strokeWidth=1.5)
    colour = by_method(comparison.algorithms, list(gammas["method"]))
    line = line.encode(y=alt.Y("tolerance:Q", title=DRIFT), color=colour, tooltip=tips)
    return with_parameters(line, _constraint_points(comparison, rows, x, y))


def _constraint_points(comparison: Comparison, rows: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    shape = alt.Shape(
        "constraint:N",
        title=None,
        scale=alt.Scale(domain=list(STATES), range=list(STATES.values())),
        legend=alt.Legend(symbolFillColor="#888888", symbolStrokeColor="#888888"),
    )
    numbers = (alt.Tooltip(f"{c}:Q", format=".4") for c in ("drift", "tolerance", "multiplier"))
    tips = ["method:N", "device:N", "seed:N", "constraint:N", *numbers]
    colour = by_method(comparison.algorithms, list(rows["method"].unique()))
    points = alt.Chart(slim(rows)).mark_point(filled=True, size=55)
    return points.encode(x, y, colour, shape, opacity=picked(0.75), tooltip=tips)
