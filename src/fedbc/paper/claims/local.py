"""Claims about the devices' own models, and about what a tolerance trades."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedbc.paper import printed
from fedbc.paper.catalogue import CLASSES, EXPONENTS, TOLERANCES, images_experiment
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, Verdict, is_clear, middle, spread
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import Dataset
from fedbc.paper.methods import METHODS, STATED_OUTER_RATE, Family, Protocol, under
from fedbc.paper.tables import PLANS, RowPlan

UNTRAINED = 20.0
"""Percent of ten classes right: twice as many as by chance, and less than any method that trains."""

CONTROLS = "cifar10-local-controls"
"""The experiment with the local models that the paper's table lacks."""

PAR = 2.0
"""Points within which local accuracies are on a par."""


def tolerance_trade(found: Evidence) -> Verdict:
    """gamma > 0 first improves both accuracies, then trades the global one for the local one."""
    claim = "Raising gamma from 0 improves global and local accuracy up to a point, then trades global for local."
    rows = {
        t: [found.values("synthetic-gamma", "fedbc", c, tolerance=t) for c in ("global_accuracy", "local_accuracy")]
        for t in TOLERANCES
    }
    known = {t: [100 * float(np.mean(v)) for v in r] for t, r in rows.items() if all(r)}
    if 0.0 not in known or len(known) < 4:
        return Verdict(claim, NOT_RUN, "Not run.", ("teaser",))
    start, top = known[0.0], max(known)
    best = max(known, key=lambda t: known[t][0])
    local_best = max(known, key=lambda t: known[t][1])

    def less(column: str, t: float, other: float) -> list[float]:
        """What one tolerance gives more than another, in points, seed by seed."""
        one, two = (dict(found.by_seed("synthetic-gamma", "fedbc", column, tolerance=at)) for at in (t, other))
        return [100 * (one[seed] - two[seed]) for seed in one if seed in two]

    gains = [less(column, best, 0.0) for column in ("global_accuracy", "local_accuracy")]
    rises = [best > 0 and is_clear(gain) and np.mean(gain) > 0 for gain in gains]
    loss, trade = less("global_accuracy", top, best), less("local_accuracy", local_best, best)
    falls = is_clear(loss) and np.mean(loss) < 0
    trades = falls and local_best > best and is_clear(trade)
    text = (
        f"gamma = 0: global {start[0]:.1f}, local {start[1]:.1f} %. Global accuracy is best at gamma = {best:g} "
        f"({known[best][0]:.1f}, local {known[best][1]:.1f}): {_in_words(gains[0])} and {_in_words(gains[1])} on "
        f"gamma = 0. Local accuracy is best at gamma = {local_best:g} ({known[local_best][1]:.1f}, global "
        f"{known[local_best][0]:.1f}): {_in_words(trade)} on the former. At gamma = {top:g}: {known[top][0]:.1f} and "
        f"{known[top][1]:.1f}. By paired t-tests at 5 %, which do not know that the best of {len(known)} was picked."
    )
    if rises[0] and not rises[1]:
        text += " So a positive gamma raises global accuracy a little, and local accuracy not clearly."
    elif not any(rises):
        text += " So a positive gamma raises neither clearly."
    if falls and not trades:
        text += " Beyond the best gamma global accuracy falls, and no clear gain of local accuracy comes with it."
    worst = min(known, key=lambda t: known[t][0])
    share = np.mean(found.constrained("synthetic-gamma", "fedbc", tolerance=worst) or [0.0])
    dips = is_clear(less("global_accuracy", worst, 0.0)) and is_clear(less("global_accuracy", worst, top))
    if known[worst][0] < min(start[0], known[top][0]) and dips and 0 < share < 1:
        text += (
            f" At gamma = {worst:g} global accuracy falls to {known[worst][0]:.1f} %: only {100 * share:.0f} % of the "
            "devices have lambda > 0 there, those that stray most, and the server's mean is theirs alone. With a much "
            "smaller gamma all of them have, with a larger one none, and then the mean is uniform."
        )
    holds = [*rises, trades]
    return Verdict(claim, CONFIRMED if all(holds) else PARTLY if any(holds) else NOT, text, ("teaser", "toy"))


def _in_words(values: list[float]) -> str:
    """A mean of paired differences, and whether it is clear."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return f"{middle(np.array(values), error)} ({'clear' if is_clear(values) else 'not clear'})"


def fine_tuning(found: Evidence) -> Verdict:
    """FineTune lifts local accuracy."""
    claim = "One step of fine-tuning lifts FedBC's local accuracy (FedBC-FineTune)."
    see = ("cifar10-local-e5",)
    sound = _local_pairs(found, ("fedbc", "finetuned_accuracy"), ("fedbc", "local_accuracy"), "cifar10-local-e5")
    leaky = _local_pairs(
        found,
        ("fedbc-reference", "finetuned_on_test_accuracy_weighted"),
        ("fedbc-reference", "local_accuracy_weighted"),
        "cifar10-local-e5-reference",
    )
    if not sound:
        return Verdict(claim, NOT_RUN, "Not run under the paper protocol." + _range(" Reference protocol", leaky), see)
    gain = np.array(list(sound.values()))
    text = f"Adapted on training data: {spread(gain)}."
    text += _range(" Adapted on test data, as in the reference", leaky)
    verdict = CONFIRMED if (gain > 0.5).all() else PARTLY if gain.mean() > 0.5 else NOT
    if verdict != CONFIRMED and leaky and np.mean(list(leaky.values())) > gain.mean() + 1:
        text += " What the paper gains it gains by showing the model test data."
    return Verdict(claim, verdict, text, see)


def between_personal_methods(found: Evidence) -> Verdict:
    """FedBC's own models are better than pFedMe's and worse than Per-FedAvg's."""
    claim = "FedBC's local accuracy is better than pFedMe's and worse than Per-FedAvg's."
    see = ("cifar10-local-e5",)

    def less(other: str, protocol: Protocol = Protocol.PAPER) -> dict[str, float]:
        one, two = ((key, METHODS[key].local) for key in (under(protocol, "fedbc"), under(protocol, other)))
        return _local_pairs(found, one, two, images_experiment(Dataset.CIFAR10, 5, protocol, local=True))

    sound = {other: less(other) for other in ("pfedme", "perfedavg")}
    known = {other: np.array(list(values.values())) for other, values in sound.items() if values}
    if not known:
        return Verdict(claim, NOT_RUN, "Not run under the paper protocol.", see)
    text = " ".join(f"FedBC less {METHODS[other].label}: {spread(values)}." for other, values in known.items())
    text += "".join(f" {METHODS[other].label} not run." for other in sound if other not in known)
    holds = [bool((values > 0).all() if other == "pfedme" else (values < 0).all()) for other, values in known.items()]
    leaky = less("perfedavg", Protocol.REFERENCE)
    text += _range(" Reference protocol, less Per-FedAvg", leaky)
    if leaky and "perfedavg" in known and max(leaky.values()) < 0 < known["perfedavg"].mean():
        text += " Per-FedAvg leads where its models have seen test data."
    text += _beside_controls(found)
    return Verdict(claim, CONFIRMED if holds == [True, True] else PARTLY if any(holds) else NOT, text, see)


def per_fedbc(found: Evidence) -> Verdict:
    """Per-FedBC is on a par with Per-FedAvg."""
    claim = "Per-FedBC's local accuracy is on a par with Per-FedAvg's."
    see = ("cifar10-local-e5",)
    sound = _local_pairs(
        found, ("perfedbc", "finetuned_accuracy"), ("perfedavg", "finetuned_accuracy"), "cifar10-local-e5"
    )
    column = "finetuned_on_test_accuracy_weighted"
    leaky = _local_pairs(
        found, ("perfedbc-reference", column), ("perfedavg-reference", column), "cifar10-local-e5-reference"
    )
    if not sound and not leaky:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    text = _range("Per-FedBC less Per-FedAvg, paper protocol", sound)
    if sound:
        text += (
            " That compares unlike models: Per-FedAvg's is the global one after one step, as its authors define it, "
            "Per-FedBC's the device's own after one; so it is not judged."
        )
    text += _range(" Reference protocol, where both are the device's own after a step on TEST data", leaky)
    if not leaky:
        return Verdict(claim, NOT_RUN, text.strip(), see)
    par = np.abs(np.array(list(leaky.values()))) <= PAR
    if not par.any():
        text += (
            f" That is no par (within {PAR:g} points): Per-FedBC is {'ahead' if min(leaky.values()) > 0 else 'apart'}."
        )
    return Verdict(claim, CONFIRMED if par.all() else PARTLY if par.any() else NOT, text.strip(), see)


def per_fedbc_best(found: Evidence) -> Verdict:
    """Per-FedBC has the best local accuracy where sizes are skewed and devices have several classes."""
    claim = "Per-FedBC has the best local accuracy with C = 2 and 3 and exponents from 1.2 to 1.5."
    see = ("cifar10-local-e5",)
    own = "perfedbc", METHODS["perfedbc"].local
    others = [line for line in PLANS[see[0]].lines if line.experiment == see[0] and line.method != own[0]]
    over = {line: _local_pairs(found, own, (line.method, line.column), see[0]) for line in others}
    leads: dict[str, tuple[float, RowPlan]] = {}
    for where in itertools.starmap(_where, itertools.product((2, 3), EXPONENTS[1:])):
        known = {line: pairs[where] for line, pairs in over.items() if where in pairs}
        if known:
            best = min(known, key=lambda line: known[line])
            leads[where] = known[best], best
    if not leads:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    listed = "; ".join(f"{where}: {lead:+z.1f} ({best.label})" for where, (lead, best) in leads.items())
    text = f"Per-FedBC less the best other method that was run, in points: {listed}."
    ahead = [lead > 0 for lead, _ in leads.values()]
    if not any(ahead) and all(METHODS[best.method].family is Family.FEDBC for _, best in leads.values()):
        text += " FedBC's own models, trained without adaptation in mind, serve devices better."
    text += _beside_controls(found)
    return Verdict(claim, CONFIRMED if all(ahead) else PARTLY if any(ahead) else NOT, text, see)


def stated_rate(found: Evidence) -> Verdict:
    """The outer rate that the paper states did not make its numbers."""
    claim = (
        f"At the outer rate that the paper states, {STATED_OUTER_RATE}, Per-FedAvg and Per-FedBC hardly train; "
        "its numbers are those of the 0.01 that its code applies."
    )
    see = ("cifar10-local-e5", "cifar10-global-e5")
    parts, held = [], []
    for key in ("perfedavg", "perfedbc"):
        settings = [{"classes": c, "exponent": e} for c in CLASSES for e in EXPONENTS]
        readings = [r for s in settings if (r := _at_both_rates(found, key, s)) is not None]
        if not readings:
            continue
        rate = found.lines("cifar10-local-e5", key)[0]["spec"]["algorithm"]["lr"]
        (z_stated, z), (x_stated, x), (off_stated, off) = np.mean(readings, axis=0)
        parts.append(
            f"{METHODS[key].label}, at {STATED_OUTER_RATE} and at the tuned {rate:g} ({len(readings)} settings): "
            f"global accuracy {z_stated:.1f} and {z:.1f} %, local {x_stated:.1f} and {x:.1f} %, which is "
            f"{off_stated:.1f} and {off:.1f} points off the paper's."
        )
        held += [z_stated < UNTRAINED, rate != STATED_OUTER_RATE and off < off_stated]
    if not held:
        return Verdict(claim, NOT_RUN, "Not run at both rates.", see)
    return Verdict(claim, CONFIRMED if all(held) else PARTLY if any(held) else NOT, " ".join(parts), see)


def _at_both_rates(found: Evidence, key: str, setting: dict[str, Any]) -> np.ndarray | None:
    """At the stated rate and at the tuned one: global accuracy, local accuracy, its distance from the paper's."""
    paper = printed.cell("cifar10_local_e5", METHODS[key].printed, setting)
    runs = ("cifar10-rates", f"{key}-stated"), ("cifar10-local-e5", key)
    z, x = ([found.mean(*run, column, **setting) for run in runs] for column in ("global_accuracy", METHODS[key].local))
    if paper is None or None in (*z, *x):
        return None
    accuracies = 100 * np.array([z, x], float)
    return np.array([*accuracies, np.abs(accuracies[1] - paper["mean"])])


def _local_pairs(found: Evidence, one: tuple[str, str], other: tuple[str, str], experiment: str) -> dict[str, float]:
    """Differences of two columns of local accuracy, in points, by setting, over the seeds that both were run with."""
    out = {}
    for c in CLASSES:
        for e in EXPONENTS:
            seeds = found.common_seeds(experiment, (one[0], other[0]), classes=c, exponent=e)
            a, b = (found.mean(experiment, m, col, seeds=seeds, classes=c, exponent=e) for m, col in (one, other))
            if a is not None and b is not None:
                out[_where(c, e)] = 100 * (a - b)
    return out


def _beside_controls(found: Evidence) -> str:
    """FedBC's own models, and pFedMe's, beside those that the paper's table lacks: what is true of FedBC may be as true
    of plain FedAvg."""
    controls = [line for line in PLANS["cifar10-local-e5"].lines if line.experiment == CONTROLS]
    parts = []
    for name, key in (("FedBC's own x_i", "fedbc"), ("pFedMe", "pfedme")):
        gains = {}
        for line in controls:
            known = list(_over_controls(found, (key, METHODS[key].local), line))
            if known:
                gains[line.label] = spread(np.array(known))
        if gains:
            parts.append(f"{name} less {'; less '.join(f'{label}: {gain}' for label, gain in gains.items())}")
    return f" Beside controls that the paper lacks: {'. '.join(parts)}." if parts else ""


def _over_controls(found: Evidence, one: tuple[str, str], control: RowPlan) -> Iterator[float]:
    """A method's local accuracy less a control's, in points, by setting, over the seeds that both were run with."""
    for c, e in itertools.product(CLASSES, EXPONENTS):
        ours = dict(found.by_seed("cifar10-local-e5", *one, classes=c, exponent=e))
        theirs = dict(found.by_seed(control.experiment, control.method, control.column, classes=c, exponent=e))
        shared = ours.keys() & theirs.keys()
        if shared:
            yield 100 * float(np.mean([ours[seed] - theirs[seed] for seed in shared]))


def _where(classes: int, exponent: float) -> str:
    return f"C = {classes}, exponent {exponent}"


def _range(what: str, values: dict[str, float]) -> str:
    if not values:
        return ""
    return f"{what}: {spread(np.array(list(values.values())))}."
