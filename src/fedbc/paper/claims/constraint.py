"""What FedBC's constraint does at the chosen dual rates: how much room it leaves devices, how hard it pulls them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedbc.paper.catalogue import EPOCHS
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, Verdict, is_clear, spread
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import Setting
from fedbc.runs import Line
from fedbc.selection.grids import DUAL_RATES

SLACK = 0.1
"""Below this share a tolerance or a pull counts as next to none."""
PLACES = {
    "synthetic data": "synthetic",
    "MNIST, E = 1": "mnist-e1",
    "MNIST, E = 5": "mnist-e5",
    "CIFAR-10, E = 1": "cifar10-e1",
    "CIFAR-10, E = 5": "cifar10-e5",
    "Shakespeare": "shakespeare",
}
"""Where FedBC was tuned, and the experiment there."""


class Acting(NamedTuple):
    """What the constraint does at the end of a run."""

    room: float
    """the largest tolerance, as a share of the devices' mean ‖x_i − z‖²"""
    pull: float
    """the share of a round's first local step that the pull towards z takes back by the round's end, mean by lambda"""


def acting(line: Line) -> Acting:
    """What the constraint did in a run of which the devices' sizes were kept.

    A local step moves w by 2 lr lambda_i (w − z) towards z, momentum m makes 1/(1 − m) times as much of it, and what a
    device was moved by in its first step shrinks by that share in each of the steps after it.
    """
    run, algorithm = line["spec"]["run"], line["spec"]["algorithm"]
    multipliers, sizes = np.array(line["multipliers"]), np.array(line["sizes"])
    steps = run["epochs"] * np.ceil(sizes / run["batch_size"])
    a_step = 2 * algorithm["lr"] * multipliers / (1 - algorithm["momentum"])
    pull = float(np.average(-np.expm1(-a_step * steps), weights=multipliers)) if multipliers.any() else 0.0
    return Acting(max(line["tolerances"]) / line["summary"]["drift"], pull)


def acted(found: Evidence, experiment: str) -> list[Acting]:
    """What FedBC's constraint did in an experiment, setting by setting."""
    return [acting(line) for line in found.lines(experiment, "fedbc") if "sizes" in line and "multipliers" in line]


def in_words(runs: list[Acting]) -> str:
    """The same as a sentence; nothing where nothing was run."""
    if not runs:
        return ""
    return (
        f" At the chosen dual rates the pull towards z takes back {_pulls(runs)} of a first local step by the end of "
        f"the round, and gamma is at most {_most_room(runs)} times the devices' mean ‖x_i − z‖²."
    )


def without_pull(found: Evidence, settings: tuple[Setting, ...]) -> str:
    """On MNIST with E = 5, what FedBC gains if its pull is taken away and its weights are kept."""
    gains, by_seed = [], []
    for setting in settings:
        pairs = (("mnist-weights", "fedbc-weights"), ("mnist-e5", "fedbc"))
        alone, whole = (dict(found.by_seed(*pair, "global_accuracy", **setting)) for pair in pairs)
        gain = {seed: 100 * (alone[seed] - whole[seed]) for seed in alone if seed in whole}
        if gain:
            gains.append(float(np.mean(list(gain.values()))))
            by_seed.append(gain)
    if not gains:
        return ""
    means = [float(np.mean([gain[seed] for gain in by_seed])) for seed in set.intersection(*map(set, by_seed))]
    error = float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None
    return (
        f" Its weights alone, at the least dual rate ({DUAL_RATES[0]:g}), gain {spread(np.array(gains), error=error)}, "
        f"in {sum(g > 0 for g in gains)} of {len(gains)} settings"
        + (": the pull is what costs." if np.mean(gains) > 0 and is_clear(means) else ".")
    )


def hardly_any_room(found: Evidence) -> Verdict:
    """gamma > 0 plays no part at the rates that tuning chooses."""
    claim = (
        "At the tuned dual rates gamma is next to zero beside how far devices stray: FedBC acts by its weights "
        "and its pull, not by letting models differ."
    )
    see = ("multipliers", "dual-rates")
    known = {where: runs for where, name in PLACES.items() if (runs := acted(found, name))}
    if not known:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    rooms = "; ".join(f"{where} {_most_room(runs)}" for where, runs in known.items())
    pulls = "; ".join(f"{where} {_pulls(runs)}" for where, runs in known.items())
    text = (
        f"The largest learned gamma as a share of the devices' mean ‖x_i − z‖² in the last rounds: {rooms}. So lambda "
        "adds up how far a device has strayed, round by round. Share of a first local step that the pull takes back by "
        f"the end of the round: {pulls}."
    )
    loose = [where for where, runs in known.items() if max(r.pull for r in runs) < SLACK]
    if loose:
        text += f" Without much of a pull, FedBC is a mean weighted by these sums ({'; '.join(loose)})."
    roomy = [where for where, runs in known.items() if max(r.room for r in runs) >= SLACK]
    if roomy:
        text += f" Not so everywhere: tolerances reach more than {SLACK:.0%} of it on {'; '.join(roomy)}."
    if tolerance := [gap for gaps in by_tolerance(found).values() for gap in gaps.values()]:
        text += (
            " On the synthetic data gamma = 0 at the same rates changes global accuracy by "
            f"{-np.mean(tolerance):+z.2f} points in the mean, and by at most {max(map(abs, tolerance)):.2f} in a run."
        )
    verdict = NOT if len(roomy) == len(known) else PARTLY if roomy else CONFIRMED
    return Verdict(claim, verdict, text, see)


def by_tolerance(found: Evidence) -> dict[int, dict[int, float]]:
    """For every E, by seed: FedBC's accuracy on the synthetic data less that with gamma = 0, in points."""
    out = {}
    pairs = (("synthetic", "fedbc"), ("synthetic-consensus", "fedbc-consensus"))
    for e in EPOCHS:
        learned, none = (dict(found.by_seed(*pair, "global_accuracy", epochs=e)) for pair in pairs)
        gaps = {seed: 100 * (learned[seed] - none[seed]) for seed in learned if seed in none}
        if gaps:
            out[e] = gaps
    return out


def _most_room(runs: list[Acting]) -> str:
    return f"{max(r.room for r in runs):.1g}"


def _pulls(runs: list[Acting]) -> str:
    least, most = (f"{100 * pick(r.pull for r in runs):.0f}" for pick in (min, max))
    return f"{least} %" if least == most else f"{least} to {most} %"
