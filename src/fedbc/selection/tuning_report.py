"""What `fedbc tune` shows: the best setting in words, the trials as a table, and a page with their history."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from fedbc.drawing import COLOURS, GREY
from fedbc.reports import Chart, Code, Column, Page, Prose, Section, Table
from fedbc.runs import RunSpec
from fedbc.selection.spaces import Dimension
from fedbc.selection.study import GRID, StudyPlan
from fedbc.selection.tuning import Findings

DOMAIN = ["complete", "pruned", "diverged", "failed"]


def what(plan: StudyPlan) -> str:
    """The objective in words."""
    parts = [f"{name.replace('_', ' ')}" + (f" × {w:g}" if w < 1 else "") for name, w in plan.score.items()]
    return " + ".join(parts)


def in_words(point: dict[str, Any]) -> str:
    """A point in words."""
    return ", ".join(f"{k} = {v:.3g}" if isinstance(v, float) else f"{k} = {v}" for k, v in point.items())


def sentences(plan: StudyPlan, outcome: Findings) -> list[str]:
    """The best setting, how the trials ended, and whether it lies at an edge."""
    counts = outcome.trials["state"].value_counts()
    how = "of the grid" if plan.sampler == GRID else f"drawn by {plan.sampler}"
    seeds = f", mean of {len(plan.seeds)} seeds" if len(plan.seeds) > 1 else ""
    ended = ", ".join(f"{counts[state]} {state}" for state in DOMAIN if state in counts)
    found = [
        f"Best for {plan.base.algorithm['name']}: {in_words(outcome.best)}, with {what(plan)} "
        f"{100 * outcome.value:.2f} % (mean over the last 20 rounds{seeds}, on validation data).",
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


def trials_table(plan: StudyPlan, outcome: Findings, count: int | None = None) -> Table:
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


def charts(plan: StudyPlan, outcome: Findings) -> list[Chart]:
    """History, learning curves, one chart per hyper-parameter, parallel coordinates and importance."""
    found = [_history(plan, outcome), _curves(plan, outcome)]
    found += [_slice(plan, outcome, name) for name in plan.space]
    if len(plan.space) > 1:
        found.append(_parallel(plan, outcome))
    return [*found, _importance(outcome)] if outcome.importance else found


def _states(outcome: Findings) -> dict[str, Any]:
    """Colour and shape by how a trial ended."""
    import altair as alt

    scale = alt.Scale(domain=[s for s in DOMAIN if s in set(outcome.trials["state"])])
    legend = alt.Legend(symbolOpacity=1, title=None)
    return {"color": alt.Color("state:N", scale=scale, legend=legend), "shape": alt.Shape("state:N", scale=scale)}


def _shown(plan: StudyPlan, outcome: Findings) -> pd.DataFrame:
    """Values in percent; a trial without one shows where it was when it ended, if it had come to a report."""
    frame = outcome.trials.copy()
    value = frame["value"].where(frame["state"] == "complete")
    frame["shown"] = 100 * value.fillna(frame["last_report"])
    frame["best"] = 100 * value.cummax().ffill()
    for name, d in plan.space.items():
        if d.values:
            frame[name] = [_short(v) for v in frame[name]]
    return frame[frame["shown"].notna()]


def _tooltip(plan: StudyPlan) -> list[Any]:
    import altair as alt

    return [
        "trial:Q",
        "state:N",
        alt.Tooltip("shown:Q", title="accuracy, %", format=".2f"),
        *(alt.Tooltip(name, format=".3g") if not d.values else f"{name}:N" for name, d in _quantities(plan).items()),
    ]


def _quantities(plan: StudyPlan) -> dict[str, Dimension]:
    return {f"{name}:Q" if not d.values else name: d for name, d in plan.space.items()}


def _history(plan: StudyPlan, outcome: Findings) -> Chart:
    import altair as alt

    frame = _shown(plan, outcome)
    x = alt.X("trial:Q", title="trial", axis=alt.Axis(tickMinStep=1, format="d"))
    y = alt.Y("shown:Q", title=f"{what(plan)}, %", scale=alt.Scale(zero=False))
    dots = alt.Chart(frame).mark_point(filled=True, size=60, opacity=0.9)
    line = alt.Chart(frame[frame["best"].notna()]).mark_line(interpolate="step-after", opacity=0.6, color=GREY)
    layers = alt.layer(
        line.encode(x=x, y=alt.Y("best:Q", scale=alt.Scale(zero=False))),
        dots.encode(
            x=x,
            y=y,
            **_states(outcome),
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


def _curves(plan: StudyPlan, outcome: Findings) -> Chart:
    import altair as alt

    frame = outcome.curves.merge(outcome.trials[["trial", "state"]], on="trial")
    frame = frame.assign(value=100 * frame["value"])
    chart = (
        alt.Chart(frame)
        .mark_line(opacity=0.6, strokeWidth=1.3, point=alt.OverlayMarkDef(size=10))
        .encode(
            x=alt.X("step:Q", title="round" if len(plan.seeds) == 1 else "round, seed after seed"),
            y=alt.Y("value:Q", title=f"{what(plan)}, %", scale=alt.Scale(zero=False)),
            color=_states(outcome)["color"],
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


def _slice(plan: StudyPlan, outcome: Findings, name: str) -> Chart:
    import altair as alt

    d = plan.space[name]
    if d.values:
        order = [_short(v) for v in d.values]
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
            **_states(outcome),
            tooltip=_tooltip(plan),
        )
        .properties(width="container", height=240)
    )
    return Chart(f"by-{name.replace('_', '-')}", f"By {name}", chart, f"Each trial's accuracy over its {name}; {d}.")


def _parallel(plan: StudyPlan, outcome: Findings) -> Chart:
    """One axis a hyper-parameter and one for the accuracy, each from its lowest to its highest value."""
    import altair as alt

    frame = outcome.trials[outcome.trials["state"] == "complete"]
    axes = [*plan.space, "accuracy"]
    low, high = frame["value"].min(), frame["value"].max()
    rows = []
    for t in frame.to_dict("records"):
        at = {n: _place(d, t[n]) for n, d in plan.space.items()}
        at["accuracy"] = (t["value"] - low) / (high - low) if high > low else 1.0
        about = {"trial": t["trial"], "accuracy": 100 * t["value"], "point": in_words({n: t[n] for n in plan.space})}
        rows += [{**about, "axis": axis, "place": at[axis]} for axis in axes]
    ends = {n: (d.values[0], d.values[-1]) if d.values else (d.low, d.high) for n, d in plan.space.items()}
    ends["accuracy"] = (f"{100 * low:.1f} %", f"{100 * high:.1f} %")
    labels = [{"axis": n, "place": i, "label": _short(v)} for n, pair in ends.items() for i, v in enumerate(pair)]
    x = alt.X("axis:N", sort=axes, title=None, axis=alt.Axis(labelAngle=0, grid=True), scale=alt.Scale(padding=0.15))
    scale = alt.Scale(domain=[-0.08, 1.08], nice=False)
    y = alt.Y("place:Q", title=None, axis=None, scale=scale)
    legend = alt.Legend(title=f"{what(plan)}, %", gradientLength=160, format=".1f", tickCount=3)
    lines = (
        alt.Chart(pd.DataFrame(rows))
        .mark_line(strokeWidth=1.8, opacity=0.8)
        .encode(
            x=x,
            y=y,
            detail="trial:N",
            color=alt.Color("accuracy:Q", scale=alt.Scale(range=[COLOURS[5], COLOURS[1]]), legend=legend),
            tooltip=["trial:N", "point:N", alt.Tooltip("accuracy:Q", format=".2f")],
        )
    )
    words = alt.Chart(pd.DataFrame(labels)).mark_text(fontSize=11, align="left", dx=6).encode(x=x, y=y, text="label:N")
    return Chart(
        "parallel",
        "All hyper-parameters together",
        alt.layer(lines, words).properties(width="container", height=300),
        f"Parallel coordinates of {len(frame)} completed trials; the best has {in_words(outcome.best)}.",
        "A line a completed trial, through its values; each axis from its lowest to its highest.",
        wide=True,
    )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _place(d: Dimension, value: Any) -> float:
    if d.values:
        return d.values.index(value) / max(1, len(d.values) - 1)
    low, high, at = (math.log(v) if d.log else v for v in (d.low, d.high, value))
    return (at - low) / (high - low)


def _importance(outcome: Findings) -> Chart:
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
        .properties(width="container", height=20 + 28 * len(frame))
    )
    words = ", ".join(f"{n} {v:.0%}" for n, v in outcome.importance.items())
    return Chart("importance", "What matters", chart, f"Importance of each hyper-parameter: {words}.",
                 "How much of being among the best trials each hyper-parameter explains (PED-ANOVA).")  # fmt: skip


def page(plan: StudyPlan, outcome: Findings, spec: RunSpec, about: list[str]) -> Page:
    """The whole page."""
    history, curves, *rest = charts(plan, outcome)
    return Page(
        f"Tuning {plan.base.algorithm['name']}",
        [Prose(s) for s in sentences(plan, outcome)] + [Prose(a, soft=True) for a in about],
        [
            Section("history", "Trials", [history, curves]),
            Section("parameters", "Hyper-parameters", rest),
            Section("tables", "All trials", [trials_table(plan, outcome)]),
            Section("run", "The best run", [Prose("For fedbc run --config best.toml:"), Code(spec.to_toml())]),
        ],
        footer=f"Searched: {' '.join(map(str, plan.space.values()))}. Pruner: {plan.pruner}.",
    )
