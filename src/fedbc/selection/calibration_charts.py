"""The charts of a calibration: the front, the accuracies by tolerance, and how sure the choice is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from fedbc.drawing import GREY
from fedbc.reports import Chart, marks
from fedbc.selection.calibration import FEDBC, OTHERS, STARTS
from fedbc.selection.candidates import Gives, Ranking

MODELS = {
    "its own model": "circle",
    f"its own model, {STARTS['local']}": "square",
    str(Gives.TUNED): "triangle-up",
    str(Gives.PERSONAL): "diamond",
}
"""What a device gets, and the shape of its point."""
CLOSE = 8.0
"""Points to each side of the recommendation that the closer chart shows."""


def charts(outcome: Ranking) -> list[Chart]:
    """The front as a whole and closer, the accuracies by tolerance, and the draws."""
    found = [_front(outcome, closer=False), _front(outcome, closer=True), *_by_tolerance(outcome)]
    return [*found, _draws(outcome)] if outcome.seeds > 1 else found


def algorithms(methods: Sequence[str]) -> dict[str, str]:
    """What each runs: its colour goes by it."""
    labels = {label: name for name, label in OTHERS.items()} | {FEDBC: "fedbc"}
    return {method: labels.get(method, "fedbc") for method in methods}


def _points(outcome: Ranking) -> pd.DataFrame:
    rows = outcome.candidates
    shown = pd.DataFrame({"method": rows["method"], "what": rows["candidate"], "front": rows["front"]})
    own, from_x, _, _ = MODELS
    plain = np.where(rows["start"] == "local", from_x, own)
    shown["model"] = np.where(rows["gives"] == str(Gives.OWN), plain, rows["gives"])
    for kind in ("global", "local"):
        spread = rows[f"{kind}_std"].fillna(0)
        shown[kind] = 100 * rows[kind]
        shown[f"{kind}_low"], shown[f"{kind}_high"] = 100 * (rows[kind] - spread), 100 * (rows[kind] + spread)
    return shown


def _front(outcome: Ranking, *, closer: bool) -> Chart:
    points = _points(outcome)
    best = points.loc[[outcome.at]]
    front = points[points["front"]].sort_values("global")
    scales = {}
    for kind in ("global", "local"):
        at, spread = best[kind].iloc[0], best[f"{kind}_high"].iloc[0] - best[kind].iloc[0]
        reach = max(CLOSE, 1.6 * spread)
        domain = [max(0.0, at - reach), min(100.0, at + reach)]
        scales[kind] = alt.Scale(domain=domain, nice=False) if closer else alt.Scale(zero=False, padding=12)
    x = alt.X("global:Q", title="global accuracy, %", scale=scales["global"])
    y = alt.Y("local:Q", title="local accuracy, %", scale=scales["local"])
    colour = marks.by_method(algorithms(list(dict.fromkeys(points["method"]))))
    shape = alt.Shape(
        "model:N",
        title=None,
        scale=alt.Scale(domain=list(MODELS), range=list(MODELS.values())),
        legend=None,  # beside the methods' there is no room on a phone: the caption says it
    )
    tooltip = [alt.Tooltip("what:N", title="candidate"), *_numbers()]
    base = alt.Chart(marks.slim(points)).transform_filter(f"indexof({marks.HIDDEN}, datum.method) < 0")
    rule = base.mark_rule(opacity=0.35, clip=True)
    across = rule.encode(x=alt.X("global_low:Q", scale=scales["global"]), x2="global_high:Q", y=y, color=colour)
    up = rule.encode(x=x, y=alt.Y("local_low:Q", scale=scales["local"]), y2="local_high:Q", color=colour)
    line = alt.Chart(marks.slim(front)).mark_line(strokeDash=[4, 3], strokeWidth=1.5, clip=True, color=GREY)
    ring = alt.Chart(marks.slim(best)).mark_point(size=330, strokeWidth=2.5, color=GREY, clip=True)
    dots = base.mark_point(filled=True, size=90, opacity=0.95, clip=True)
    layers = alt.layer(
        across,
        up,
        line.encode(x=x, y=y),
        ring.encode(x=x, y=y),
        dots.encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip),
    ).add_params(alt.param(name=marks.HIDDEN, value=[]))
    rows = front.to_dict("records")
    words = "; ".join(f"{r['what']}: global {r['global']:.1f} %, local {r['local']:.1f} %" for r in rows)
    return Chart(
        "front-closer" if closer else "front",
        "Around the recommendation" if closer else "Global against local accuracy",
        layers.properties(width="container", height=340),
        f"Pareto front between global and local accuracy over all methods ({words}); recommended is "
        f"{outcome.best['candidate']}.",
        "The same, closer; what lies outside is cut off."
        if closer
        else "Up and right is better. The colour is the method that trains z, the shape what a device gets: ● its "
        "own model (■ trained from xᵢ), ▲ a fine-tuned one, ◆ z personalised. "
        "Lines through points are one standard deviation over seeds; the ring is the recommendation, the dashed line "
        "joins the Pareto front.",
    )


def _numbers() -> list[Any]:
    return [
        alt.Tooltip("global:Q", title="global accuracy, %", format=".1f"),
        alt.Tooltip("local:Q", title="local accuracy, %", format=".1f"),
    ]


def _by_tolerance(outcome: Ranking) -> list[Chart]:
    """One chart per start: both accuracies over the tolerances in order; the learned rule and ∞ at the right."""
    found = []
    for start, words in STARTS.items():
        own = outcome.candidates["gives"] == str(Gives.OWN)
        rows = outcome.candidates[own & (outcome.candidates["start"] == start)]
        if rows.empty:
            continue
        key = [(math.inf, 1) if isinstance(t, str) else (float(t), 0) for t in rows["tolerance"]]
        order = [_word(rows["gamma"].iloc[i]) for i in sorted(range(len(key)), key=key.__getitem__)]
        long = pd.DataFrame(
            [
                {
                    "gamma": _word(r["gamma"]),
                    "which": f"{kind} accuracy",
                    "mean": 100 * r[kind],
                    "low": 100 * (r[kind] - np.nan_to_num(r[f"{kind}_std"])),
                    "high": 100 * (r[kind] + np.nan_to_num(r[f"{kind}_std"])),
                    "fixed": not isinstance(r["tolerance"], str),
                }
                for _, r in rows.iterrows()
                for kind in ("global", "local")
            ]
        )
        x = alt.X("gamma:N", title="tolerance gamma", sort=order, axis=alt.Axis(labelAngle=-40))
        y = alt.Y("mean:Q", title="accuracy, %", scale=alt.Scale(zero=False))
        scale = alt.Scale(domain=["global accuracy", "local accuracy"])
        colour = alt.Color("which:N", scale=scale, legend=alt.Legend(symbolOpacity=1, title=None))
        base = alt.Chart(long)
        bars = base.mark_rule(opacity=0.5).encode(
            x=x, y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q", color=colour
        )
        line = base.transform_filter("datum.fixed").mark_line(opacity=0.6).encode(x=x, y=y, color=colour)
        shape = alt.Shape("which:N", scale=scale)
        dots = base.mark_point(filled=True, size=70, opacity=1).encode(
            x=x, y=y, color=colour, shape=shape, tooltip=["gamma:N", "which:N", alt.Tooltip("mean:Q", format=".1f")]
        )
        spoken = "; ".join(
            f"{r['gamma']}: {100 * r['global']:.1f} and {100 * r['local']:.1f} %" for _, r in rows.iterrows()
        )
        found.append(
            Chart(
                f"tolerance-{start}",
                f"FedBC by tolerance, local training {words}",
                alt.layer(bars, line, dots).properties(width="container", height=260),
                f"Global and local accuracy of FedBC by tolerance: {spoken}.",
                "Of z, and of FedBC's own xᵢ; lines through points are one standard deviation over seeds.",
            )
        )
    return found


def _word(gamma: str) -> str:
    return gamma.replace("gamma", "").strip()


def _draws(outcome: Ranking) -> Chart:
    frame = outcome.candidates[["candidate", "chosen_share", "front_share"]].copy()
    frame = frame[(frame["front_share"] > 0) | (frame["chosen_share"] > 0)]
    order = frame.sort_values(["chosen_share", "front_share"], ascending=False)["candidate"].tolist()
    names = {"chosen_share": "chosen", "front_share": "on the front"}
    long = frame.rename(columns=names).melt("candidate", var_name="which", value_name="share")
    long["share"] *= 100
    chart = (
        alt.Chart(long)
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="% of draws", scale=alt.Scale(domain=[0, 100])),
            y=alt.Y("candidate:N", sort=order, title=None, axis=alt.Axis(labelLimit=190)),
            yOffset=alt.YOffset("which:N", sort=list(names.values())),
            color=alt.Color("which:N", scale=alt.Scale(domain=list(names.values()))),
            tooltip=["candidate:N", "which:N", alt.Tooltip("share:Q", format=".0f")],
        )
        .properties(width="container", height=40 + 28 * len(frame))
    )
    words = ", ".join(f"{r['candidate']} {r['chosen_share']:.0%}" for _, r in frame.iterrows() if r["chosen_share"] > 0)
    return Chart(
        "draws",
        "How sure the choice is",
        chart,
        f"Share of bootstrap draws of the seeds in which each candidate is chosen: {words}.",
        "The seeds are drawn again with replacement, and the choice is made anew each time.",
    )
