"""Where the paper's numbers come from: other methods' collapse, variants, protocols."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedbc.paper import printed
from fedbc.paper.catalogue import (
    CLASSES,
    DAMPED,
    EPOCHS,
    EXPERIMENTS,
    EXPONENTS,
    MORE_ROUNDS,
    SHUFFLED,
    WITH_MORE_ROUNDS,
    counterpart,
    images_experiment,
)
from fedbc.paper.claims.gains import IMAGES, margins
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, REFERENCE, RIVALS, Verdict, means, spread
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import Dataset
from fedbc.paper.methods import METHODS, Protocol
from fedbc.paper.tables import PLANS
from fedbc.runs import Line

COLLAPSE = -10.0
"""Points below FedAvg, from which on a method counts as collapsed; to diverge is to collapse."""


def scaffold_collapse(found: Evidence) -> Verdict:
    """SCAFFOLD collapses on CIFAR-10 with skew: by settings, for in the paper's own tables it does not in all."""
    claim = "SCAFFOLD collapses on CIFAR-10 with skewed sizes (10 points and more below FedAvg)."
    see = ("cifar10-global-e5", "cifar10-global-e1")
    gaps = {key: _gaps_to_fedavg(found, key) for key in ("scaffold", "scaffold-reference")}
    if not any(gaps.values()):
        return Verdict(claim, NOT_RUN, "Not run.", see)
    collapsed = {key: [where for where, gap in own.items() if gap <= COLLAPSE] for key, own in gaps.items()}
    parts = [_collapse_in_words(key, own, collapsed[key]) for key, own in gaps.items() if own]
    sound = gaps["scaffold"]
    ours, in_paper = set(collapsed["scaffold"]), {where for where in sound if _printed_gap(*where) <= COLLAPSE}
    if sound:
        these = "the same ones" if ours == in_paper else f"{len(in_paper)}, {len(ours & in_paper)} of them the same"
        parts.insert(1, f"In the paper it does so in {these}.")
    if sound and collapsed["scaffold-reference"] and not ours:
        parts.append("The collapse belongs to the reference's control variates, not to SCAFFOLD.")
    further = _further_than_fedavg(found)
    if ours and further:
        parts.append(
            f"Its devices end {np.median(further):.1f} times as far from z as FedAvg's (‖x_i − z‖², median). "
            + (_damped(found) or f"A likely cause: {FEW_STEPS}.")
        )
    verdict = CONFIRMED if ours and ours >= in_paper else PARTLY if any(collapsed.values()) else NOT
    return Verdict(claim, verdict, " ".join(parts), see)


FEW_STEPS = "control variates from devices with few steps act on a large device's hundreds of steps"


def _damped(found: Evidence) -> str:
    """What becomes of the collapse where that cause is taken away."""
    keys = ("fedavg", "scaffold-plain", "scaffold-damped")
    told, lost, regained = [], [], []
    for setting in EXPERIMENTS[DAMPED].settings:
        where = {k: setting[k] for k in ("classes", "exponent")}
        seeds = found.common_seeds(DAMPED, keys, **where)
        known = means(found, DAMPED, keys, seeds=seeds, **where)
        if not seeds or "fedavg" not in known or "scaffold-damped" not in known:
            continue
        plain = known.get("scaffold-plain")
        shown = "diverged" if plain is None else f"{plain:.1f} %"
        told.append(
            f"C = {where['classes']}, exponent {where['exponent']}: {shown}, damped "
            f"{known['scaffold-damped']:.1f}, FedAvg {known['fedavg']:.1f} % ({len(seeds)} seeds)"
        )
        lost.append(known["fedavg"] - (plain or 0.0))
        regained.append(known["scaffold-damped"] - (plain or 0.0))
    if not told:
        return ""
    share = sum(regained) / sum(lost) if sum(lost) > 0 else 0.0
    is_it = "So this is the cause" if share > 0.5 else "So this is not the cause, or not the main one"
    return (
        f"Is it that {FEW_STEPS}? Without momentum, and with corrections scaled by min(1, 10/K_i): {'; '.join(told)}. "
        f"{is_it}: damping gives back {share:.0%} of what is lost to FedAvg."
    )


Where = tuple[int, int, float]
"""E, C and the exponent"""
_SKEWED: tuple[Where, ...] = tuple(itertools.product((1, 5), CLASSES, EXPONENTS[1:]))


def _gaps_to_fedavg(found: Evidence, key: str) -> dict[Where, float]:
    """A method's accuracy less FedAvg's, in points, where both were run; minus infinity where it diverged."""
    gaps = {}
    for epochs, c, e in _SKEWED:
        name = images_experiment(Dataset.CIFAR10, epochs, METHODS[key].protocol)
        m = means(found, name, (key, "fedavg"), classes=c, exponent=e)
        if len(m) == 2:
            gaps[epochs, c, e] = m[key] - m["fedavg"]
        elif any("diverged" in line for line in found.lines(name, key, classes=c, exponent=e)):
            gaps[epochs, c, e] = -np.inf
    return gaps


def _collapse_in_words(key: str, gaps: dict[Where, float], collapsed: list[Where]) -> str:
    finite = [gap for gap in gaps.values() if np.isfinite(gap)]
    details = [f"it diverges in {len(gaps) - len(finite)}"] if len(finite) < len(gaps) else []
    details += [f"{min(finite):+z.1f} to {max(finite):+z.1f} points to FedAvg"] if finite else []
    kept = [f"E = {epochs}, C = {c}, exponent {e}" for epochs, c, e in gaps if (epochs, c, e) not in collapsed]
    exceptions = f", not at {'; '.join(kept)}" if kept and collapsed else ""
    text = f"{METHODS[key].label} does so in {len(collapsed)} of {len(gaps)} settings"
    return f"{text} ({', else '.join(details)}){exceptions}."


def _printed_gap(epochs: int, c: int, e: float) -> float:
    """SCAFFOLD's accuracy less FedAvg's in the paper's table, in points; undefined if it has none."""
    source, setting = f"cifar10_global_e{epochs}", {"classes": c, "exponent": e}
    own, plain = (printed.cell(source, METHODS[key].printed, setting) for key in ("scaffold", "fedavg"))
    return own["mean"] - plain["mean"] if own and plain else np.nan


def _further_than_fedavg(found: Evidence) -> list[float]:
    """How many times as far from z SCAFFOLD's devices end as FedAvg's."""
    ratios = []
    for epochs, c, e in _SKEWED:
        own, plain = (
            found.mean(f"cifar10-e{epochs}", k, "drift", classes=c, exponent=e) for k in ("scaffold", "fedavg")
        )
        if own and plain:
            ratios.append(own / plain)
    return ratios


def q_normalisation(found: Evidence) -> Verdict:
    """q-FedAvg's normalisation makes a difference."""
    claim = "q-FedAvg's numbers in the paper come from a normalisation that q-FedAvg does not have."
    rows = [means(found, "synthetic", ("qfedavg", "qfedavg-reference"), epochs=e) for e in EPOCHS]
    gaps = np.array([r["qfedavg-reference"] - r["qfedavg"] for r in rows if len(r) == 2])
    if not len(gaps):
        return Verdict(claim, NOT_RUN, "Not run.", ("synthetic-global",))
    text = (
        f"On the synthetic data the reference's variant is {gaps.mean():+z.1f} points from the correct method "
        f"({gaps.min():+z.1f} to {gaps.max():+z.1f}), each with its own tuned q and rate."
    )
    if abs(gaps.mean()) < 1:
        text += " Tuning hides the difference: a small q makes both FedAvg-like."
    verdict = CONFIRMED if (gaps > 1).all() else PARTLY if (gaps > 1).any() else NOT
    return Verdict(claim, verdict, text, ("synthetic-global",))


def best_rounds(found: Evidence) -> Verdict:
    """Whether the paper's numbers are nearer to a run's best round than to its last rounds."""
    claim = "The paper's accuracies on images are those of a run's best rounds rather than of its last ones."

    def both(experiment: str, key: str, setting: dict[str, Any]) -> tuple[float, float] | None:
        line = found.first(experiment, key, **setting)
        return None if line is None else (line["summary"]["global_accuracy"], _best_round(line))

    off = _off(both)
    verdict = _second_is_nearer(claim, off, "Our last 20 rounds", "our best evaluated round")
    left = [where for where, gaps in off.items() if np.mean(gaps, axis=0)[1] < -3]
    if not left:
        return verdict
    more = f" Even the best round is far below in {', '.join(left)}: something else differs too (cifar10-rounds)."
    return replace(verdict, evidence=verdict.evidence + more + _best_under_both(found, left))


def _best_round(line: Line) -> float:
    return max(line["curves"]["global_accuracy"])


def _best_under_both(found: Evidence, places: list[str]) -> str:
    """How far the best rounds are off under either protocol, in some parts of the tables."""

    def both(experiment: str, key: str, setting: dict[str, Any]) -> tuple[float, float] | None:
        ours = found.first(experiment, key, **setting)
        theirs = found.first(counterpart(experiment), REFERENCE.get(key, key), **setting)
        return None if ours is None or theirs is None else (_best_round(ours), _best_round(theirs))

    known = {where: gaps for where, gaps in _off(both).items() if where in places}
    if not known:
        return ""
    count = sum(map(len, known.values()))
    return (
        f" Best rounds under the paper and the reference protocol, where both were run ({count} cells): "
        f"{_listed(known)}."
    )


def reference_levels(found: Evidence) -> Verdict:
    """Whether the reference protocol comes nearer to the paper's numbers than the paper protocol."""
    claim = "The paper's accuracies on images come from the reference protocol (classes split in order)."

    def both(experiment: str, key: str, setting: dict[str, Any]) -> tuple[float, float] | None:
        ours = found.mean(experiment, key, **setting)
        theirs = found.mean(counterpart(experiment), REFERENCE.get(key, key), **setting)
        return None if ours is None or theirs is None else (ours, theirs)

    return _second_is_nearer(claim, _off(both), "Our paper protocol", "our reference protocol")


def reference_lead(found: Evidence) -> Verdict:
    """Whether FedBC's lead on images is the reference protocol's, and whether weights alone have it."""
    claim = (
        "Under the reference protocol FedBC leads the paper's methods on images by much more than under the "
        "paper's, and FedAvg with uniform weights has this lead, too."
    )
    places = tuple(itertools.product((Dataset.MNIST, Dataset.CIFAR10), (1, 5)))
    tables = [images_experiment(*place) for place in places]
    both = [
        (theirs, margins(found, name, **setting))
        for name, setting in itertools.product(tables, IMAGES)
        if (theirs := margins(found, counterpart(name), **setting))
    ]
    see = tuple(f"{data}-global-e{epochs}" for data, epochs in places)
    if not both:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    gained, uniform, over_controls, over_rivals, _ = np.array([theirs for theirs, _ in both]).T
    sound = np.array([ours.over_fedavg for _, ours in both if ours])
    text = (
        f"Over {len(both)} settings under the reference protocol FedBC is ahead of FedAvg weighted by size by "
        f"{spread(gained)}, and of the best other method of the paper by {spread(over_rivals)}, in "
        f"{(over_rivals > 0).sum()} of them. FedAvg with uniform weights is ahead of FedAvg weighted by size by "
        f"{spread(uniform)}; over the better of the two uniform controls FedBC is ahead by {spread(over_controls)}."
    )
    if len(sound):
        text += f" Under the paper protocol FedBC is ahead of FedAvg by {spread(sound)} in these settings."
    larger = len(sound) > 0 and gained.mean() > 2 * max(sound.mean(), 0.5)
    weights = uniform.mean() > 0.8 * gained.mean() > 0
    if larger and weights:
        text += _lead_shuffled(found) or f" A likely cause: {IN_ORDER}."
        text += _tested_untrained(found)
    return Verdict(claim, CONFIRMED if larger and weights else PARTLY if larger or weights else NOT, text, see)


IN_ORDER = (
    "with classes split in order, large devices are tested on classes that they do not train on; smaller devices do, "
    "and weights by size silence them"
)


def _lead_shuffled(found: Evidence) -> str:
    """What becomes of FedBC's lead where the split alone is another."""
    name, leads = images_experiment(Dataset.MNIST, 1, protocol=Protocol.REFERENCE), []
    for setting in IMAGES:
        ordered, split = (means(found, e, ("fedbc-reference", "fedavg"), **setting) for e in (name, SHUFFLED))
        if len(ordered) == len(split) == 2:
            leads.append([m["fedbc-reference"] - m["fedavg"] for m in (ordered, split)])
    if not leads:
        return ""
    before, after = np.mean(leads, axis=0)
    is_it = "So the split is the cause" if after < 0.5 * before else "So the split is not the cause, or not alone"
    return (
        f" Is it that {IN_ORDER}? With a shuffled split and all else of the reference protocol the lead on MNIST with "
        f"E = 1 is {after:+z.1f} points instead of {before:+z.1f} (mean of {len(leads)} settings, one seed). {is_it}."
    )


def _tested_untrained(found: Evidence) -> str:
    """How many test examples are of a class that their device does not train on, and where they are."""
    study = found.studies.get("partitions")
    if not study:
        return ""
    tests = [row["in_order"] for row in study["classes"]]
    shares = np.array([sum(t["untrained"]) / t["test"] for t in tests])
    on_largest = sum(sum(t["untrained"][-5:]) for t in tests) / sum(sum(t["untrained"]) for t in tests)
    return (
        f" Such are {shares.mean():.0%} of all test examples in the mean over the paper's settings ({shares.min():.0%} "
        f"to {shares.max():.0%}), {on_largest:.0%} of them on the five largest of 20 devices."
    )


def reference_local_levels(found: Evidence) -> Verdict:
    """The same for the table of local accuracy."""
    claim = (
        "The paper's local accuracies come from the reference protocol (classes split in order, accuracy by "
        "examples, adaptation on test data)."
    )
    name = "cifar10-local-e5"
    rows = PLANS[name].build(found).rows
    theirs = {(row.group, row.printed): row for row in rows if row.protocol is Protocol.REFERENCE}
    off: _Off = {}
    for row in (row for row in rows if row.protocol is Protocol.PAPER and not row.control):
        for cell, other in zip(row.cells, theirs[row.group, row.printed].cells, strict=True):
            if cell.difference is not None and other.difference is not None:
                off.setdefault(f"{row.label}, {row.group}", []).append((cell.difference, other.difference))
    return _second_is_nearer(claim, off, "Our paper protocol", "our reference protocol", "exponents", (name,))


def more_rounds(found: Evidence) -> Verdict:
    """Whether more rounds bring CIFAR-10 with C = 1 to the paper's level."""
    claim = "With C = 1 the paper's accuracies on CIFAR-10 are those of more than 100 rounds."
    see = ("cifar10-rounds", "cifar10-global-e1")
    parts, reached, short = [], [], set()
    for key in ("fedavg", "fedbc"):
        listed = []
        for e in EXPONENTS:
            line = found.first("cifar10-rounds", key, exponent=e)
            paper = printed.cell("cifar10_global_e1", METHODS[key].printed, {**WITH_MORE_ROUNDS, "exponent": e})
            if line is None or paper is None or line["curves"]["round"][-1] < MORE_ROUNDS:
                continue
            rounds, accuracy = np.array(line["curves"]["round"]), 100 * np.array(line["curves"]["global_accuracy"])
            late = [float(accuracy[(rounds > r - 20) & (rounds <= r)].mean()) for r in _MARKS]
            shown = ", ".join(f"{value:.1f}" for value in late)
            listed.append(f"exponent {e}: {shown}, best {accuracy.max():.1f} (the paper: {paper['mean']:.1f})")
            reached.append((late[-1] >= paper["mean"] - 2, accuracy.max() >= paper["mean"] - 2))
            if not reached[-1][0]:
                short.add(e)
        if listed:
            parts.append(f"{METHODS[key].label}: {'; '.join(listed)}.")
    if not reached:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    marks = ", ".join(map(str, _MARKS))
    parts.insert(0, f"Mean of the last 20 rounds by round {marks}, and the best round of all.")
    by_last, by_best = np.sum(reached, axis=0)
    parts.append(
        f"Within 2 points of the paper, or above: {by_last} of {len(reached)} in the last rounds, {by_best} in the "
        "best one."
    )
    if short:
        parts.append(f"Rounds do not explain exponents {', '.join(map(str, sorted(short)))}.")
    verdict = CONFIRMED if by_last == len(reached) else PARTLY if by_best else NOT
    return Verdict(claim, verdict, " ".join(parts), see)


_MARKS = range(100, MORE_ROUNDS + 1, 100)
_IMAGES = ("cifar10-global-e1", "cifar10-global-e5", "mnist-global-e1", "mnist-global-e5")
_Off = dict[str, list[tuple[float, float]]]
"""By a part of the tables: two readings of a cell less the paper's number, in points."""


def _off(both: Callable[[str, str, dict[str, Any]], tuple[float, float] | None]) -> _Off:
    """Every cell on images that has both readings, `both(experiment, method, setting)`."""
    off: _Off = {}
    for data, epochs in itertools.product((Dataset.CIFAR10, Dataset.MNIST), (1, 5)):
        for c, e, key in itertools.product(CLASSES, EXPONENTS, ("fedbc", *RIVALS)):
            setting = {"classes": c, "exponent": e}
            readings = both(images_experiment(data, epochs), key, setting)
            paper = printed.cell(f"{data}_global_e{epochs}", METHODS[key].printed, setting)
            if readings is not None and paper is not None:
                gaps = (100 * readings[0] - paper["mean"], 100 * readings[1] - paper["mean"])
                off.setdefault(f"{data.shown} E = {epochs}, C = {c}", []).append(gaps)
    return off


def _listed(off: _Off) -> str:
    """Both readings' mean distances in every part."""
    means_of = {where: np.mean(gaps, axis=0) for where, gaps in off.items()}
    return "; ".join(f"{where}: {one:+z.1f}, {other:+z.1f}" for where, (one, other) in means_of.items())


def _second_is_nearer(
    claim: str, off: _Off, first: str, second: str, over: str = "methods", see: tuple[str, ...] = _IMAGES
) -> Verdict:
    """Whether the second reading explains the paper's numbers better than the first."""
    if not off:
        return Verdict(claim, NOT_RUN, "No cell was run both ways.", see)
    every = np.abs(np.concatenate([np.array(gaps) for gaps in off.values()]))
    nearer, distance = float(np.mean(every[:, 1] < every[:, 0])), every.mean(axis=0)
    text = (
        f"{first}, and {second}, less the paper's number, in points, mean over {over}: {_listed(off)}. "
        f"The second is nearer in {nearer:.0%} of {len(every)} cells "
        f"({distance[0]:.1f} against {distance[1]:.1f} points off)."
    )
    explains = nearer > 0.8 and distance[1] < 2.5
    return Verdict(claim, CONFIRMED if explains else PARTLY if nearer > 0.5 else NOT, text, see)
