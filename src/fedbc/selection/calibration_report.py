"""What `fedbc calibrate` shows: sentences, tables, and the page; `calibration_charts` draws."""

from __future__ import annotations

import math
from typing import Any

from fedbc.personalization import mean_interval
from fedbc.reports import Code, Column, Page, Prose, Section, Table, Toggles, marks
from fedbc.runs import RunSpec
from fedbc.selection.calibration import FEDBC, WITHOUT_Z, Setting
from fedbc.selection.calibration_charts import algorithms, charts
from fedbc.selection.candidates import Candidate, Gives, Ranking

GLOBAL = "z on all devices' validation sets"
LOCAL = "each device's model on its own validation set, mean over devices"
OFTEN = 0.05
"""A candidate chosen in fewer of the draws is not worth a word."""
MOST_NAMED = 4


def preference(weight: float) -> str:
    """A weight in words."""
    words = {1.0: "global accuracy alone", 0.5: "global and local accuracy alike", 0.0: "local accuracy alone"}
    return words.get(weight, f"global accuracy with weight {weight:g} and local accuracy with {1 - weight:g}")


def sentences(outcome: Ranking) -> list[str]:
    """The recommendation, what each device gets by it, how sure it is, and how FedBC's own settings compare."""
    best, seeds = outcome.best, outcome.seeds
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    said = [
        f"Recommended for {preference(outcome.weight)}: {best['candidate']}, with global accuracy "
        f"{percent(best['global'], best['global_std'])} and local accuracy "
        f"{percent(best['local'], best['local_std'])} ({over}, on validation data).",
        f"{what_devices_get(outcome.chosen)} {_gain(outcome)}",
        _how_sure(outcome),
        _behind(outcome),
        _fedbc(outcome),
    ]
    if outcome.absent:
        said.append(f"Not choosable, because a run failed: {'; '.join(outcome.absent)}.")
    return [s for s in said if s]


def what_devices_get(chosen: Candidate) -> str:
    """In plain words."""
    setting = chosen.setting
    trained = f" ({setting.gamma}, local training {_start(setting)})" if setting.start else ""
    z = f"The common model is {setting.method}'s z{trained}."
    if chosen.gives is Gives.PERSONAL:
        return (
            f"{z} Each device personalises it on its own data, and nothing of that leaves the device: it chooses "
            "between z, models near z and a model of its own, by examples that it does not train on "
            "(fedbc personalize, after the run)."
        )
    if chosen.gives is Gives.TUNED:
        how = setting.spec.settings()[1].fine_tune or setting.spec.build_part("algorithm").fine_tune()
        steps = f"{how.steps} step{'s'[: how.steps - 1]}"
        return f"{z} Each device gets {'z' if how.of == 'global' else 'its own x_i'} after {steps} on its own data."
    if setting.spec.algorithm["name"] in WITHOUT_Z:
        return "Each device trains a model of its own, on its own data alone; there is no common model worth the name."
    return f"{z} Each device gets its own model, as {setting.method} trains it beside z."


def _start(setting: Setting) -> str:
    return {"global": "from z", "local": "from x_i"}[setting.start]


def _gain(outcome: Ranking) -> str:
    """How many devices the recommended model serves better than z."""
    known = outcome.devices[outcome.devices["difference"].notna()]
    if known.empty:
        return "No device has validation examples."
    better, worse = (known["difference"] > 0).sum(), (known["difference"] < 0).sum()
    mean = mean_interval(known["difference"].to_numpy())
    clear = "" if mean.is_clear else ", no clear difference"
    return (
        f"On their validation examples that is better than z for {better} of {len(known)} devices, worse for {worse} "
        f"and the same for {len(known) - better - worse}; on the mean over devices {100 * mean.mean:+.1f} points (95 % "
        f"interval {100 * mean.low:+.1f} to {100 * mean.high:+.1f}{clear}). For a single device with few examples a "
        "difference of some points is chance."
    )


def _how_sure(outcome: Ranking) -> str:
    if outcome.seeds == 1:
        return "With one seed nothing can be said about how sure this is: give --seeds 3 or more."
    others = outcome.candidates.drop(index=outcome.at).sort_values("chosen_share", ascending=False)
    rivals = [f"{r['candidate']} ({r['chosen_share']:.0%})" for _, r in others.iterrows() if r["chosen_share"] >= OFTEN]
    same = f"Drawn again from these seeds, the choice is the same in {outcome.best['chosen_share']:.0%} of the draws"
    return f"{same}; otherwise mostly {', '.join(rivals[:3])}." if rivals else f"{same}."


def _behind(outcome: Ranking) -> str:
    """Which candidates cannot be told from the recommended one, by the error from seeds and finite validation sets."""
    others = outcome.candidates.drop(index=outcome.at).sort_values("behind")
    if outcome.seeds == 1 or others.empty:
        return ""
    near = others[others["verdict"] == "no clear difference"]
    if near.empty:
        return "All others are clearly behind, beyond the error from seeds and finite validation sets."
    named = [f"{r['candidate']} ({_points(r)})" for _, r in near.head(MOST_NAMED).iterrows()]
    more = f" and {len(near) - len(named)} more" if len(near) > len(named) else ""
    return (
        f"No clear difference, by the error from seeds and finite validation sets, to {', '.join(named)}{more}; "
        f"{len(others) - len(near)} of {len(others)} others are clearly behind (weighted points behind it, ± error)."
    )


def _fedbc(outcome: Ranking) -> str:
    """How FedBC's own models fare, where something else is recommended."""
    frame = outcome.candidates
    own = frame[(frame["method"] == FEDBC) & (frame["gives"] == str(Gives.OWN))]
    if own.empty or outcome.at in own.index:
        return ""
    best = own.iloc[int(own["score"].to_numpy().argmax())]
    clear = "" if outcome.seeds == 1 else f", {best['verdict']}"
    return (
        f"The best of FedBC's settings with its own x_i is {best['candidate']}: {_points(best)} points behind{clear}."
    )


def _points(row: Any) -> str:
    behind, error = float(row["behind"]), float(row["behind_error"])
    return f"{100 * behind:.1f}" + ("" if math.isnan(error) else f" ± {100 * error:.1f}")


def percent(mean: float, spread: float) -> str:
    """An accuracy with its spread."""
    return f"{100 * mean:.1f} %" if math.isnan(spread) else f"{100 * mean:.1f} ± {100 * spread:.1f} %"


def candidates_table(outcome: Ranking, *, brief: bool = False) -> Table:
    """All candidates, with their place; brief for the width of a terminal."""
    frame = outcome.candidates.copy()
    word = "best" if brief else "recommended"
    frame["mark"] = [word if i == outcome.at else "front" if f else "" for i, f in frame["front"].items()]
    frame = frame.sort_values("score", ascending=False, kind="stable")
    columns = [
        Column("candidate", "candidate"),
        Column("mark", ""),
        Column("global", "global\naccuracy %", 1, "global_std", 100),
        Column("local", "local\naccuracy %", 1, "local_std", 100),
        Column("behind", "behind,\npoints", 1, "behind_error", 100),
    ]
    if not brief:
        columns += [
            Column("verdict", "verdict"),
            Column("chosen_share", "chosen in % of draws", 0, factor=100),
            Column("score", "weighted %", 1, factor=100),
            Column("front_share", "on the front in % of draws", 0, factor=100),
        ]
    caption = (
        "Means ± standard deviations over seeds, on validation data. Behind: by weighted accuracy, ± the error from "
        "seeds and finite validation sets; draws: the seeds resampled with replacement."
    )
    return Table("candidates", "What can be had", frame, columns, caption)


def devices_table(outcome: Ranking) -> Table:
    """What each device gets by the recommendation."""
    columns = [
        Column("device", "device"),
        Column("examples", "validation\nexamples", 0),
        Column("z", "z %", 1, factor=100),
        Column("own", "its model %", 1, factor=100),
        Column("difference", "difference", 1, factor=100),
    ]
    caption = (
        f"On its own validation examples, after the last round, mean over {outcome.seeds} seeds; its model: "
        f"{outcome.best['candidate']}. With few examples a difference of some points is chance: "
        "fedbc compare --personalize has intervals for each device, on its test set."
    )
    return Table("devices", "What each device gets", outcome.devices, columns, caption)


def page(outcome: Ranking, spec: RunSpec, about: list[str]) -> Page:
    """The whole page; `about` says what data and how many runs, and the score on the test sets if there is one."""
    front, closer, *rest = charts(outcome)
    methods = list(dict.fromkeys(outcome.candidates["method"]))
    then = " and then fedbc personalize RUN:" if outcome.chosen.gives is Gives.PERSONAL else ":"
    return Page(
        "Calibration: global against local accuracy",
        [Prose(s) for s in sentences(outcome)] + [Prose(a, soft=True) for a in about],
        [
            Section("front", "The front", [front, closer]),
            Section("devices", "What each device gets", [devices_table(outcome)]),
            Section("tolerance", "The tolerance", rest),
            Section("tables", "All numbers", [candidates_table(outcome)]),
            Section(
                "run",
                "The recommended run",
                [Prose(f"For fedbc run --config recommended.toml{then}"), Code(spec.to_toml())],
            ),
        ],
        [Toggles("hidden", "Methods", methods, marks.colour_places(algorithms(methods)))],
        f"Global accuracy: {GLOBAL}. Local accuracy: {LOCAL}.",
    )
