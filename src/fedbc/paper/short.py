"""The report's first screen: what the results say in five sentences, and the chart of what FedBC gains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedbc.paper.claims.gains import OF_PAPER, Gain, gain
from fedbc.paper.claims.verdict import CONFIRMED, NOT, PARTLY, Verdict
from fedbc.paper.drawing import BLUE, GREEN, INK, ORANGE, legend_once
from fedbc.paper.drawing import picture as new_picture
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import heading
from fedbc.paper.hyperparameters import TUNINGS, Basis
from fedbc.paper.methods import APPENDIX, METHODS, Arguments
from fedbc.paper.tables import NEAR, Compared

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

BARS = 2.0
"""So many standard errors the chart's bars reach to either side."""
SHOWN = {
    "over_fedavg": (ORANGE, "FedAvg, weights by size"),
    "over_root": (GREEN, "FedAvg, weights √n_i"),
    "over_rivals": (BLUE, "the best other method of the paper"),
}


def known_gains(found: Evidence) -> list[Gain]:
    """What FedBC gains under the paper protocol, where several seeds tell the error."""
    return [one for where in OF_PAPER if (one := gain(found, where)).error("over_fedavg") is not None]


def _sorted_by_sign(gains: list[Gain], column: str) -> tuple[list[Gain], list[Gain], list[Gain]]:
    """Where a gain is clearly above 0, not clear, and clearly below."""
    parts: tuple[list[Gain], list[Gain], list[Gain]] = ([], [], [])
    for one in gains:
        values = one.column(column)
        if len(values) and one.error(column) is not None:
            parts[1 if not one.is_clear(column) else 0 if values.mean() > 0 else 2].append(one)
    return parts


def _listed(gains: list[Gain], column: str) -> str:
    def one(g: Gain) -> str:
        return f"{g.where} {g.column(column).mean():+z.1f} ± {g.error(column):.1f}"

    return "; ".join(map(one, gains))


def sentences(found: Evidence, claims: list[Verdict], compared: Compared, cells: int) -> list[str]:
    """The results in five sentences."""
    gains = known_gains(found)
    if not gains:
        return ["FedBC and its rivals were not run with several seeds yet."]
    settings = sum(len(g.margins) for g in gains)
    ahead, _, behind = _sorted_by_sign(gains, "over_fedavg")
    roots = _sorted_by_sign(gains, "over_root")
    rivals = _sorted_by_sign(gains, "over_rivals")
    means = [g.column("over_fedavg").mean() for g in gains]
    by_root = [g.column("over_root").mean() for g in gains if len(g.column("over_root"))]
    single = np.concatenate([g.column("over_fedavg") for g in gains])
    first = (
        f"Against FedAvg weighted by size FedBC's global model gains {min(means):+z.1f} to {max(means):+z.1f} points "
        f"in the mean of a group of settings ({settings} settings, singly {single.min():+z.1f} to "
        f"{single.max():+z.1f}, in {len(gains)} groups), clearly (by a t-test over seeds at 5 %) in {len(ahead)} of "
        "them" + (f" and loses clearly in {len(behind)}." if behind else ".")
    )
    second = (
        f"Most of it is the weights: over FedAvg weighted by √n_i, a control that the paper lacks, it gains "
        f"{min(by_root):+z.1f} to {max(by_root):+z.1f} points, and is clearly ahead in {len(roots[0])} of "
        f"{sum(map(len, roots))} groups ({_listed(roots[0], 'over_root') or 'none'}), clearly behind in "
        f"{len(roots[2])} ({_listed(roots[2], 'over_root') or 'none'})."
    )
    third = (
        "Over the best other method of the paper it is clearly ahead in "
        f"{len(rivals[0])} of {sum(map(len, rivals))} groups ({_listed(rivals[0], 'over_rivals') or 'none'}), "
        f"clearly behind in {len(rivals[2])} ({_listed(rivals[2], 'over_rivals') or 'none'}), and level in the others."
    )
    count = {name: sum(v.verdict == name for v in claims) for name in (CONFIRMED, PARTLY, NOT)}
    share = f"{compared.agree} of the {compared.judged} that have several seeds agree within two standard errors"
    near = f"{(compared.points <= NEAR).sum()} lie within a point"
    fourth = (
        f"Of the paper's {len(claims)} claims {count[CONFIRMED]} are confirmed, {count[PARTLY]} partly and "
        f"{count[NOT]} "
        f"not; of its {cells} numbers {len(compared)} were run under the paper protocol, of which {near} of the "
        "paper's "
        f"and {share}."
    )
    return [first, second, third, fourth, basis_in_words(found)]


def bases(found: Evidence) -> dict[str, dict[str, Basis]]:
    """What every choice rests on, by group and method."""
    return {
        group: {key: tuning.basis(key, algorithm, found.store.lines) for key, algorithm in chosen.items()}
        for group, tuning in TUNINGS.items()
        if (chosen := found.store.choices.get(group))
    }


def basis_in_words(found: Evidence) -> str:
    """How many hyper-parameters were chosen on validation data, and how many of those of before changed by it."""
    by_group = bases(found)
    every = [(group, key, basis) for group, keys in by_group.items() for key, basis in keys.items()]
    sound = [(group, key) for group, key, basis in every if basis is Basis.VALIDATION]
    whole = [group for group, keys in by_group.items() if set(keys.values()) == {Basis.VALIDATION}]
    changes = [
        found.store.choices[group][key] != before
        for group, key in sound
        if (before := found.store.earlier.get(group, {}).get(key)) is not None
    ]
    text = f"Of {len(every)} choices of hyper-parameters {len(sound)} were made on held-out training data"
    text += f" (all of {', '.join(whole)})" if whole and len(sound) < len(every) else ""
    if changes:
        text += f", which changed {sum(changes)} of {len(changes)} that had been made on the reported test sets"
    if len(sound) < len(every):
        text += (
            f"; the other {len(every) - len(sound)} still rest on the reported test sets, with other seeds, which "
            "flatters every method a little, and those with larger grids more"
        )
    return text + "." + _waiting(found, [group for group in by_group if group not in whole])


THINNED_EARLY = {"mnist-e1": "mnist-global-e1", "mnist-e5": "mnist-global-e5"}
"""Groups whose old choice of SCAFFOLD's rate was among those that had survived a quarter of the rounds, and tables."""

COSTLY = 2.0
"""Points on held-out data that one choice for all settings may cost a method in one before that is said."""


def remarks(found: Evidence) -> dict[str, str]:
    """What has to be said of a table because of the choices behind it, by its name."""
    said = {}
    known = bases(found)
    for group, table in THINNED_EARLY.items():
        if known.get(group, {}).get("scaffold") is Basis.TEST:
            rate = found.store.choices[group]["scaffold"]["lr"]
            said[table] = (
                f"SCAFFOLD with momentum stands at rate {rate:g}, of old chosen after runs of a quarter of the rounds "
                "had thinned the rates out; it starts slowly at others, so that its numbers here are likely too low."
            )
        elif text := _by_setting(found, group, "scaffold"):
            said[table] = text
    if known.get("cifar10-e5", {}).get("pfedme") is Basis.TEST:
        old = math.prod(map(len, APPENDIX["pfedme"].values()))
        text = (
            f"pFedMe's choice is of old, at the edge of the appendix's grid of {old} points; the wider one of "
            f"{len(METHODS['pfedme'].candidates())}, with rates of its inner steps, was not searched yet."
        )
        said |= {"cifar10-global-e5": text, "cifar10-local-e5": text}
    return said


def _by_setting(found: Evidence, group: str, key: str) -> str:
    """Where one choice for all settings costs a method much: its accuracies on held-out data, setting by setting."""
    tuning, chosen, lines = TUNINGS[group], found.store.choices.get(group, {}).get(key), found.store.lines
    if chosen is None or tuning.progress(METHODS[key], lines)[0] != chosen:
        return ""

    def scores(algorithm: Arguments) -> list[float]:
        specs = tuning.specs(algorithm, tuning.rungs[-1])
        return [100 * lines[s.identity].get("summary", {}).get("global_accuracy", 0.0) for s in specs]

    own, others = scores(chosen), {c["lr"]: scores(c) for c in METHODS[key].candidates()}
    parts = []
    for i, setting in enumerate(tuning.settings):
        best = max(others, key=lambda rate: others[rate][i])
        if others[best][i] > own[i] + COSTLY:
            parts.append(f"{others[best][i]:.1f} % at rate {best:g} against {own[i]:.1f} ({heading(setting)})")
    if not parts:
        return ""
    return (
        f"{METHODS[key].label}'s best rate depends on the setting: on held-out data {'; '.join(parts)}. The chosen "
        f"{chosen['lr']:g} is best in the mean of {len(tuning.settings)} settings, and one choice serves all here, so "
        "that its numbers are too low where others are better."
    )


def _waiting(found: Evidence, groups: list[str]) -> str:
    """The groups whose validation runs are complete, though their old choices still stand until cells are run anew."""
    parts = []
    for group in groups:
        tuning = TUNINGS[group]
        new = {key: tuning.progress(METHODS[key], found.store.lines)[0] for key in tuning.methods}
        if all(new.values()):
            old = found.store.choices[group]
            others = [METHODS[key].label for key, algorithm in old.items() if new[key] != algorithm]
            parts.append(
                f"For {group} the runs on held-out data are done and choose otherwise for {len(others)} of {len(old)} "
                f"methods ({'; '.join(others)}), whose cells wait to be run anew."
            )
    return "".join(f" {part}" for part in parts)


def chart(found: Evidence) -> Picture | None:
    """FedBC's gains over three others, by group of settings, with two standard errors."""
    gains = known_gains(found)
    if not gains:
        return None
    picture = new_picture(9, 0.36 * len(gains) + 1.1)
    axes = picture.subplots()
    for number, (column, (colour, label)) in enumerate(SHOWN.items()):
        known = [(i, g.column(column), g.error(column)) for i, g in enumerate(gains) if len(g.column(column))]
        at = [i + 0.26 * (number - 1) for i, _, _ in known]
        axes.errorbar(
            [float(np.mean(values)) for _, values, _ in known],
            at,
            xerr=[BARS * (error or 0.0) for _, _, error in known],
            fmt="o",
            color=colour,
            markersize=5,
            linewidth=1.4,
            label=label,
        )
    axes.axvline(0, color=INK, linewidth=0.9)
    axes.set_yticks(range(len(gains)), [f"{g.where} ({len(g.margins)} of {g.of})" for g in gains])
    axes.invert_yaxis()
    axes.set_xlabel("FedBC's global accuracy less that of …, points")
    legend_once(picture, [axes])
    return picture
