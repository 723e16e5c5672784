"""What `fedbc calibrate` shows: sentences, tables, and the front as a page and as figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from fedbc.drawing import GREY
from fedbc.reports import Chart, Code, Column, Page, Prose, Section, Table, Toggles
from fedbc.runs import RunSpec
from fedbc.selection.calibration import REFERENCES, STARTS, Outcome

GLOBAL = "z on all devices' validation sets"
LOCAL = "each xᵢ on its own validation set, mean over devices"


def preference(weight: float) -> str:
    """A weight in words."""
    words = {1.0: "global accuracy alone", 0.5: "global and local accuracy alike", 0.0: "local accuracy alone"}
    return words.get(weight, f"global accuracy with weight {weight:g} and local accuracy with {1 - weight:g}")


def sentences(outcome: Outcome) -> list[str]:
    """The recommendation, how sure it is, and how the reference methods compare."""
    best, frame, seeds = outcome.best, outcome.settings, outcome.seeds
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    said = [
        f"Recommended for {preference(outcome.weight)}: {best['setting']}, with global accuracy "
        f"{percent(best['global'], best['global_std'])} and local accuracy "
        f"{percent(best['local'], best['local_std'])} ({over}, on validation data)."
    ]
    others = frame.drop(index=outcome.at).sort_values("chosen_share", ascending=False)
    rivals = [f"{r['setting']} ({r['chosen_share']:.0%})" for _, r in others.iterrows() if r["chosen_share"] >= 0.05]
    if seeds == 1:
        said.append("With one seed nothing can be said about how sure this is: give --seeds 3 or more.")
    elif rivals:
        said.append(
            f"Drawn again from these seeds, the choice is the same in {best['chosen_share']:.0%} of the draws; "
            f"otherwise mostly {', '.join(rivals[:3])}."
        )
    else:
        said.append(f"Drawn again from these seeds, the choice is the same in {best['chosen_share']:.0%} of the draws.")
    said.append(_compared(outcome))
    failed = frame[frame["failed"] > 0]
    if len(failed):
        said.append(f"Not choosable, because a run failed: {', '.join(failed['setting'])}.")
    return [s for s in said if s]


def _compared(outcome: Outcome) -> str:
    from fedbc.reports import marks

    best, refs = outcome.best, outcome.references
    if refs.empty:
        return ""
    beaten_by = refs[(refs["global"] >= best["global"]) & (refs["local"] > best["local"])
                     | (refs["global"] > best["global"]) & (refs["local"] >= best["local"])]  # fmt: skip
    beats = refs[(refs["global"] <= best["global"]) & (refs["local"] <= best["local"])]
    if len(beaten_by):
        return f"Better than it in both: {marks.listed(beaten_by['method'])}."
    better = (
        f"It is better than {marks.listed(beats['method'])} in both, and" if len(beats) else "Of the reference methods"
    )
    return f"{better} none of {'them' if not len(beats) else 'the reference methods'} is better in both."


def percent(mean: float, spread: float) -> str:
    """An accuracy with its spread."""
    return f"{100 * mean:.1f} %" if math.isnan(spread) else f"{100 * mean:.1f} ± {100 * spread:.1f} %"


def settings_table(outcome: Outcome, *, brief: bool = False) -> Table:
    """All settings, with their place; brief for the width of a terminal."""
    frame = outcome.settings.drop(columns=["scores"]).copy()
    frame["mark"] = ["recommended" if i == outcome.at else "front" if f else "" for i, f in frame["front"].items()]
    columns = [
        Column("setting", "setting"),
        Column("mark", ""),
        Column("global", "global\naccuracy %", 1, "global_std", 100),
        Column("local", "local\naccuracy %", 1, "local_std", 100),
        Column("chosen_share", "chosen in\n% of draws", 0, factor=100),
    ]
    columns += (
        []
        if brief
        else [
            Column("score", "weighted %", 1, factor=100),
            Column("front_share", "on the front in % of draws", 0, factor=100),
            Column("drift", "median drift", 4),
            Column("failed", "failed runs", 0),
        ]
    )
    caption = "Means ± standard deviations over seeds, on validation data; draws: the seeds resampled with replacement."
    return Table("settings", "FedBC's settings", frame, columns, caption)


def references_table(outcome: Outcome) -> Table:
    """The reference methods."""
    columns = [
        Column("method", "method"),
        Column("global", "global accuracy %", 1, "global_std", 100),
        Column("local", "local accuracy %", 1, "local_std", 100),
        Column("failed", "failed runs", 0),
    ]
    frame = outcome.references.drop(columns=["scores"], errors="ignore")
    return Table("references", "Reference methods", frame, columns, "As they are, on the same data and seeds.")


def charts(outcome: Outcome) -> list[Chart]:
    """The front as a whole and closer, the accuracies by tolerance, and the draws."""
    found = [_front(outcome, closer=False), _front(outcome, closer=True), *_by_tolerance(outcome)]
    return [*found, _draws(outcome)] if outcome.seeds > 1 else found


def _points(outcome: Outcome) -> tuple[pd.DataFrame, list[str]]:
    ours = outcome.settings.assign(method=["FedBC, " + STARTS[s] for s in outcome.settings["start"]])
    ours["what"] = ours["setting"]
    both = pd.concat([ours, outcome.references.assign(what=outcome.references.get("method"), front=False)])
    both = both[both["global"].notna()]
    for kind in ("global", "local"):
        both[kind] *= 100
        spread = both[f"{kind}_std"].fillna(0) * 100
        both[f"{kind}_low"], both[f"{kind}_high"] = both[kind] - spread, both[kind] + spread
    columns = ["method", "what", "front"]
    columns += [f"{kind}{end}" for kind in ("global", "local") for end in ("", "_low", "_high")]
    return both[columns].reset_index(drop=True), list(dict.fromkeys(both["method"]))


def _algorithms(methods: list[str]) -> dict[str, str]:
    """What each runs: its colour goes by it; what is no reference is one of FedBC's two starts."""
    labels = {label: name for name, label in REFERENCES.items()}
    return {method: labels.get(method, "fedbc") for method in methods}


def _front(outcome: Outcome, *, closer: bool) -> Chart:
    import altair as alt

    from fedbc.reports import marks

    points, methods = _points(outcome)
    best = points.iloc[[_shown_row(outcome, points)]]
    front = points[points["front"]].sort_values("global")
    scales = {}
    for kind in ("global", "local"):
        at, spread = best[kind].iloc[0], best[f"{kind}_high"].iloc[0] - best[kind].iloc[0]
        reach = max(2.5, 1.6 * spread)
        domain = [max(0.0, at - reach), min(100.0, at + reach)]
        scales[kind] = alt.Scale(domain=domain, nice=False) if closer else alt.Scale(zero=False, padding=12)
    x = alt.X("global:Q", title="global accuracy, %", scale=scales["global"])
    y = alt.Y("local:Q", title="local accuracy, %", scale=scales["local"])
    colour = marks.by_method(_algorithms(methods))
    tooltip = [alt.Tooltip("what:N", title="setting"), *_numbers()]
    base = alt.Chart(marks.slim(points)).transform_filter(f"indexof({marks.HIDDEN}, datum.method) < 0")
    rule = base.mark_rule(opacity=0.35, clip=True)
    across = rule.encode(x=alt.X("global_low:Q", scale=scales["global"]), x2="global_high:Q", y=y, color=colour)
    up = rule.encode(x=x, y=alt.Y("local_low:Q", scale=scales["local"]), y2="local_high:Q", color=colour)
    line = alt.Chart(marks.slim(front)).mark_line(strokeDash=[4, 3], strokeWidth=1.5, clip=True, color=GREY)
    ring = alt.Chart(marks.slim(best)).mark_point(size=330, strokeWidth=2.5, color=GREY, clip=True)
    dots = base.mark_point(filled=True, size=90, opacity=0.95, clip=True)
    layers = alt.layer(
        across, up, line.encode(x=x, y=y), ring.encode(x=x, y=y), dots.encode(x=x, y=y, color=colour, tooltip=tooltip)
    ).add_params(alt.param(name=marks.HIDDEN, value=[]))
    rows = front.to_dict("records")
    words = "; ".join(f"{r['what']}: global {r['global']:.1f} %, local {r['local']:.1f} %" for r in rows)
    return Chart(
        "front-closer" if closer else "front",
        "Around the recommendation" if closer else "Global against local accuracy",
        layers.properties(width="container", height=340),
        f"Pareto front between global and local accuracy ({words}); recommended is {outcome.best['setting']}.",
        "The same, closer; what lies outside is cut off."
        if closer
        else "Up and right is better; lines through points are one standard deviation over seeds; the ring is the "
        "recommended setting, the dashed line joins the Pareto front.",
    )


def _shown_row(outcome: Outcome, points: pd.DataFrame) -> int:
    return int(np.flatnonzero(points["what"] == outcome.best["setting"])[0])


def _numbers() -> list[Any]:
    import altair as alt

    return [
        alt.Tooltip("global:Q", title="global accuracy, %", format=".1f"),
        alt.Tooltip("local:Q", title="local accuracy, %", format=".1f"),
    ]


def _by_tolerance(outcome: Outcome) -> list[Chart]:
    """One chart a start: both accuracies over the tolerances in order; the learned rule and ∞ at the right."""
    import altair as alt

    found = []
    for start, words in STARTS.items():
        rows = outcome.settings[(outcome.settings["start"] == start) & outcome.settings["global"].notna()]
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
                f"By tolerance, local training {words}",
                alt.layer(bars, line, dots).properties(width="container", height=260),
                f"Global and local accuracy by tolerance: {spoken}.",
                "Lines through points are one standard deviation over seeds.",
            )
        )
    return found


def _word(gamma: str) -> str:
    return gamma.replace("gamma", "").strip()


def _draws(outcome: Outcome) -> Chart:
    import altair as alt

    frame = outcome.settings[["setting", "chosen_share", "front_share"]].copy()
    frame = frame[(frame["front_share"] > 0) | (frame["chosen_share"] > 0)]
    order = frame.sort_values(["chosen_share", "front_share"], ascending=False)["setting"].tolist()
    names = {"chosen_share": "chosen", "front_share": "on the front"}
    long = frame.rename(columns=names).melt("setting", var_name="which", value_name="share")
    long["share"] *= 100
    chart = (
        alt.Chart(long)
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="% of draws", scale=alt.Scale(domain=[0, 100])),
            y=alt.Y("setting:N", sort=order, title=None, axis=alt.Axis(labelLimit=220)),
            yOffset=alt.YOffset("which:N", sort=list(names.values())),
            color=alt.Color("which:N", scale=alt.Scale(domain=list(names.values()))),
            tooltip=["setting:N", "which:N", alt.Tooltip("share:Q", format=".0f")],
        )
        .properties(width="container", height=40 + 28 * len(frame))
    )
    words = ", ".join(f"{r['setting']} {r['chosen_share']:.0%}" for _, r in frame.iterrows() if r["chosen_share"] > 0)
    return Chart(
        "draws",
        "How sure the choice is",
        chart,
        f"Share of bootstrap draws of the seeds in which each setting is chosen: {words}.",
        "The seeds are drawn again with replacement, and the choice is made anew each time.",
    )


def page(outcome: Outcome, spec: RunSpec, about: list[str]) -> Page:
    """The whole page; `about` says what data and how many runs, and the score on the test sets if there is one."""
    tables = [settings_table(outcome), *([references_table(outcome)] if len(outcome.references) else [])]
    front, closer, *rest = charts(outcome)
    from fedbc.reports import marks

    _, methods = _points(outcome)
    return Page(
        "Calibration: global against local accuracy",
        [Prose(s) for s in sentences(outcome)] + [Prose(a, soft=True) for a in about],
        [
            Section("front", "The front", [front, closer]),
            Section("tolerance", "The tolerance", rest),
            Section("tables", "All numbers", tables),
            Section(
                "run", "The recommended run", [Prose("For fedbc run --config recommended.toml:"), Code(spec.to_toml())]
            ),
        ],
        [Toggles("hidden", "Methods", methods, marks.colour_places(_algorithms(methods)))],
        f"Global accuracy: {GLOBAL}. Local accuracy: {LOCAL}.",
    )
