"""What `fedbc tune` shows: the best setting in words, the trials as a table, and a page with their history."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from fedbc.experiments.spec import RunSpec
from fedbc.reports import Chart, Column, Page, Prose, Section, Table
from fedbc.selection.calibration_report import write
from fedbc.selection.spaces import Dimension
from fedbc.selection.study import GRID, Plan
from fedbc.selection.tuning import Outcome

__all__ = ["page", "sentences", "trials_table", "write"]

DOMAIN = ["complete", "pruned", "diverged", "failed"]


def what(plan: Plan) -> str:
    """The objective in words."""
    parts = [f"{name.replace('_', ' ')}" + (f" × {w:g}" if w < 1 else "") for name, w in plan.score.items()]
    return " + ".join(parts)


def said(point: dict[str, Any]) -> str:
    """A point in words."""
    return ", ".join(f"{k} = {v:.3g}" if isinstance(v, float) else f"{k} = {v}" for k, v in point.items())


def sentences(plan: Plan, outcome: Outcome) -> list[str]:
    """The best setting, how the trials ended, and whether it lies at an edge."""
    counts = outcome.trials["state"].value_counts()
    how = "of the grid" if plan.sampler == GRID else f"drawn by {plan.sampler}"
    seeds = f", mean of {len(plan.seeds)} seeds" if len(plan.seeds) > 1 else ""
    ended = ", ".join(f"{counts[state]} {state}" for state in DOMAIN if state in counts)
    found = [
        f"Best for {plan.base.algorithm['name']}: {said(outcome.best)}, with {what(plan)} {100 * outcome.value:.2f} % "
        f"(mean over the last 20 rounds{seeds}, on validation data).",
        f"{len(outcome.trials)} trials {how}: {ended}.",
    ]
    edge = [name for name, d in plan.space.items() if _at_edge(d, outcome.best[name])]
    if edge:
        found.append(f"At the edge of what was searched: {', '.join(edge)}. A wider --search may find better.")
    return found


def _at_edge(d: Dimension, value: Any) -> bool:
    if d.values:
        numbers = [v for v in d.values if isinstance(v, float | int)]
        return len(numbers) == len(d.values) > 2 and value in (min(numbers), max(numbers))
    low, high, at = (math.log(v) if d.log else v for v in (d.low, d.high, value))
    return min(at - low, high - at) < 0.02 * (high - low)


def trials_table(plan: Plan, outcome: Outcome, count: int | None = None) -> Table:
    """The trials, best first; those without a value after them."""
    frame = outcome.trials.sort_values(["value", "last_report"], ascending=False, na_position="last")
    frame = frame.head(len(frame) if count is None else count)
    frame = frame.assign(
        **{
            name: [f"{v:.3g}" if isinstance(v, float) else str(v) for v in frame[name]]
            for name in plan.space
            if name in frame
        }
    )
    columns = [
        Column("trial", "trial", 0),
        *(Column(name, name) for name in plan.space),
        Column("value", f"{what(plan)} %", 2, factor=100),
        Column("state", "state"),
        Column("reached", "rounds", 0),
        Column("seconds", "seconds", 1),
    ]
    caption = "Best first, on validation data. A pruned trial has no value; rounds say how far it came, over all seeds."
    return Table("trials", "Trials", frame, columns, caption)


def charts(plan: Plan, outcome: Outcome) -> list[Chart]:
    """History, learning curves, one chart a hyper-parameter, parallel coordinates and importance."""
    found = [_history(plan, outcome), _curves(plan, outcome)]
    found += [_slice(plan, outcome, name) for name in plan.space]
    if len(plan.space) > 1:
        found.append(_parallel(plan, outcome))
    return [*found, _importance(outcome)] if outcome.importance else found


def _colour() -> Any:
    import altair as alt

    return alt.Color("state:N", scale=alt.Scale(domain=DOMAIN))


def _shown(plan: Plan, outcome: Outcome) -> pd.DataFrame:
    """Values in percent; a trial without one shows where it was when it ended."""
    frame = outcome.trials.copy()
    frame["shown"] = 100 * frame["value"].fillna(frame["last_report"])
    frame["best"] = 100 * frame["value"].cummax().ffill()
    for name, d in plan.space.items():
        if d.values:
            frame[name] = [f"{v:g}" if isinstance(v, float) else str(v) for v in frame[name]]
    return frame[frame["shown"].notna()]


def _tooltip(plan: Plan) -> list[Any]:
    import altair as alt

    return [
        "trial:Q",
        "state:N",
        alt.Tooltip("shown:Q", title="accuracy, %", format=".2f"),
        *(alt.Tooltip(name, format=".3g") if not d.values else f"{name}:N" for name, d in _quantities(plan).items()),
    ]


def _quantities(plan: Plan) -> dict[str, Dimension]:
    return {f"{name}:Q" if not d.values else name: d for name, d in plan.space.items()}


def _history(plan: Plan, outcome: Outcome) -> Chart:
    import altair as alt

    frame = _shown(plan, outcome)
    x = alt.X("trial:Q", title="trial", axis=alt.Axis(tickMinStep=1, format="d"))
    y = alt.Y("shown:Q", title=f"{what(plan)}, %", scale=alt.Scale(zero=False))
    dots = alt.Chart(frame).mark_point(filled=True, size=60, opacity=0.9)
    line = alt.Chart(frame[frame["best"].notna()]).mark_line(interpolate="step-after", opacity=0.6, color="#8a94a0")
    layers = alt.layer(
        line.encode(x=x, y=alt.Y("best:Q", scale=alt.Scale(zero=False))),
        dots.encode(
            x=x,
            y=y,
            color=_colour(),
            shape=alt.Shape("state:N", scale=alt.Scale(domain=DOMAIN)),
            tooltip=_tooltip(plan),
        ),
    )
    return Chart(
        "history",
        "History of trials",
        layers.properties(width="container", height=280),
        f"{len(frame)} trials in order; the best reached {100 * outcome.value:.2f} %.",
        "The line is the best so far; a pruned trial stands where it was when it ended.",
    )


def _curves(plan: Plan, outcome: Outcome) -> Chart:
    import altair as alt

    frame = outcome.curves.merge(outcome.trials[["trial", "state"]], on="trial")
    frame = frame.assign(value=100 * frame["value"])
    chart = (
        alt.Chart(frame)
        .mark_line(opacity=0.6, strokeWidth=1.3, point=alt.OverlayMarkDef(size=10))
        .encode(
            x=alt.X("step:Q", title="round" if len(plan.seeds) == 1 else "round, seed after seed"),
            y=alt.Y("value:Q", title=f"{what(plan)}, %", scale=alt.Scale(zero=False)),
            color=_colour(),
            detail="trial:N",
            tooltip=["trial:N", "state:N", "step:Q", alt.Tooltip("value:Q", format=".2f")],
        )
        .properties(width="container", height=280)
    )
    pruned = int((outcome.trials["state"] == "pruned").sum())
    return Chart(
        "curves",
        "Accuracy on the way",
        chart,
        f"The mean of the last rounds so far, for each trial; {pruned} were pruned before their end.",
        "The mean of the last 20 rounds so far, by which trials are pruned.",
    )


def _slice(plan: Plan, outcome: Outcome, name: str) -> Chart:
    import altair as alt

    d = plan.space[name]
    if d.values:
        order = [f"{v:g}" if isinstance(v, float) else str(v) for v in d.values]
        x = alt.X(f"{name}:N", sort=order, axis=alt.Axis(labelAngle=0), title=name)
    else:
        scale = alt.Scale(type="log" if d.log else "linear", domain=[d.low, d.high], nice=False)
        x = alt.X(f"{name}:Q", scale=scale, title=name, axis=alt.Axis(format="~g", labelOverlap=True, tickCount=6))
    chart = (
        alt.Chart(_shown(plan, outcome))
        .mark_point(filled=True, size=60, opacity=0.85)
        .encode(
            x=x,
            y=alt.Y("shown:Q", title=f"{what(plan)}, %", scale=alt.Scale(zero=False)),
            color=_colour(),
            shape=alt.Shape("state:N", scale=alt.Scale(domain=DOMAIN)),
            tooltip=_tooltip(plan),
        )
        .properties(width="container", height=240)
    )
    return Chart(f"by-{name.replace('_', '-')}", f"By {name}", chart, f"Each trial's accuracy over its {name}; {d}.")


def _parallel(plan: Plan, outcome: Outcome) -> Chart:
    """One axis a hyper-parameter and one for the accuracy, each from its lowest to its highest value."""
    import altair as alt

    frame = outcome.trials[outcome.trials["state"] == "complete"]
    axes = [*plan.space, "accuracy"]
    rows = []
    low, high = frame["value"].min(), frame["value"].max()
    for t in frame.to_dict("records"):
        at = {n: _place(d, t[n]) for n, d in plan.space.items()}
        at["accuracy"] = (t["value"] - low) / (high - low) if high > low else 1.0
        point = said({n: t[n] for n in plan.space})
        rows += [
            {"trial": t["trial"], "axis": a, "place": at[a], "accuracy": 100 * t["value"], "point": point} for a in axes
        ]
    chart = (
        alt.Chart(pd.DataFrame(rows))
        .mark_line(strokeWidth=1.6, opacity=0.75)
        .encode(
            x=alt.X(
                "axis:N", sort=axes, title=None, axis=alt.Axis(labelAngle=0, grid=True), scale=alt.Scale(padding=0.1)
            ),
            y=alt.Y(
                "place:Q",
                title="lowest to highest",
                axis=alt.Axis(labels=False, ticks=False),
                scale=alt.Scale(domain=[0, 1]),
            ),
            detail="trial:N",
            color=alt.Color(
                "accuracy:Q",
                scale=alt.Scale(scheme="viridis"),
                legend=alt.Legend(title=f"{what(plan)}, %", gradientLength=160, format=".1f", tickCount=3),
            ),
            tooltip=["trial:N", "point:N", alt.Tooltip("accuracy:Q", format=".2f")],
        )
        .properties(width="container", height=280)
    )
    return Chart(
        "parallel",
        "All hyper-parameters together",
        chart,
        f"Parallel coordinates of {len(frame)} completed trials; the best has {said(outcome.best)}.",
        "A line a completed trial, through its values; each axis from its lowest to its highest.",
        wide=True,
    )


def _place(d: Dimension, value: Any) -> float:
    if d.values:
        return d.values.index(value) / max(1, len(d.values) - 1)
    low, high, at = (math.log(v) if d.log else v for v in (d.low, d.high, value))
    return (at - low) / (high - low)


def _importance(outcome: Outcome) -> Chart:
    import altair as alt

    frame = pd.DataFrame({"name": list(outcome.importance), "share": [100 * v for v in outcome.importance.values()]})
    chart = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share, %", scale=alt.Scale(domain=[0, 100])),
            y=alt.Y("name:N", sort="-x", title=None),
            tooltip=["name:N", alt.Tooltip("share:Q", format=".0f")],
        )
        .properties(width="container", height={"step": 28})
    )
    words = ", ".join(f"{n} {v:.0%}" for n, v in outcome.importance.items())
    return Chart("importance", "What matters", chart, f"Importance of each hyper-parameter: {words}.",
                 "How much of being among the best trials each hyper-parameter explains (PED-ANOVA).")  # fmt: skip


def page(plan: Plan, outcome: Outcome, spec: RunSpec, about: list[str]) -> Page:
    """The whole page."""
    history, curves, *rest = charts(plan, outcome)
    toml = Markup("<pre>{}</pre>").format(escape(spec.to_toml()))
    return Page(
        f"Tuning {plan.base.algorithm['name']}",
        [Prose(s) for s in sentences(plan, outcome)] + [Prose(a, soft=True) for a in about],
        [
            Section("history", "Trials", [history, curves]),
            Section("parameters", "Hyper-parameters", rest),
            Section("tables", "All trials", [trials_table(plan, outcome)]),
            Section("run", "The best run", [Prose("For fedbc run --config best.toml:"), Prose(toml)]),
        ],
        footer=f"Searched: {' '.join(map(str, plan.space.values()))}. Pruner: {plan.pruner}.",
    )
