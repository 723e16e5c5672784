"""The report's first screen: what the results say in five sentences, and the chart of what FedBC gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbc.paper.claims.gains import OF_PAPER, Gain, gain
from fedbc.paper.claims.verdict import CONFIRMED, NOT, PARTLY, Verdict
from fedbc.paper.drawing import BLUE, GREEN, INK, ORANGE, legend_once
from fedbc.paper.drawing import picture as new_picture
from fedbc.paper.evidence import Evidence
from fedbc.paper.hyperparameters import TUNINGS, Basis
from fedbc.paper.methods import METHODS
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
    over = f"{min(means):+z.1f} to {max(means):+z.1f} points in the mean"
    first = (
        f"Against FedAvg weighted by size FedBC's global model gains {over} of a group of settings ({settings} "
        "settings "
        f"in {len(gains)} groups), clearly (by a t-test over seeds at 5 %) in {len(ahead)} of them"
        + (f" and loses clearly in {len(behind)}." if behind else ".")
    )
    second = (
        f"Most of it is the weights: over FedAvg weighted by √n_i, a control that the paper lacks, it gains "
        f"{min(by_root):+z.1f} to {max(by_root):+z.1f} points, clearly in {len(roots[0])} of {sum(map(len, roots))} "
        "groups" + (f" ({_listed(roots[0], 'over_root')})." if roots[0] else ".")
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
    """Which hyper-parameters were chosen on validation data, how many changed by it, and which still rest on test "
    "sets."""
    by_group = bases(found)
    sound = [group for group, keys in by_group.items() if set(keys.values()) == {Basis.VALIDATION}]
    of_old = [group for group in by_group if group not in sound]
    parts = []
    if sound:
        pairs = [
            (key, found.store.choices[group].get(key), before)
            for group in sound
            for key, before in found.store.earlier.get(group, {}).items()
        ]
        changed = sum(now != before for _, now, before in pairs)
        parts.append(
            f"Hyper-parameters were chosen on held-out training data for {', '.join(sound)}"
            + (f" (which changed {changed} of {len(pairs)} choices made before)" if pairs else "")
        )
    if of_old:
        whose = f"those of {', '.join(of_old)}" if sound else "all hyper-parameters that are in force"
        parts.append(
            f"{whose} were still chosen on the reported test sets with other seeds, which "
            "flatters every method a little, and those with larger grids more"
        )
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:] + _waiting(found, of_old)


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
    picture = new_picture(9, 0.55 * len(gains) + 1.2)
    axes = picture.subplots()
    for number, (column, (colour, label)) in enumerate(SHOWN.items()):
        known = [(i, g.column(column), g.error(column)) for i, g in enumerate(gains) if len(g.column(column))]
        at = [i + 0.22 * (number - 1) for i, _, _ in known]
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
