"""Claims about the global model's accuracy and loss."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbc.paper import printed
from fedbc.paper.catalogue import CLASSES, EPOCHS, EXPONENTS, MANY_DRAWS
from fedbc.paper.claims.constraint import acted, by_tolerance, in_words, without_pull
from fedbc.paper.claims.gains import CONTROLS, IMAGES, OTHER_DRAWS, PAPERS_DRAW, ROOT, VARIANTS, Gain, contest, gain
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, RIVALS, Judge, Verdict, is_clear, means, spread
from fedbc.paper.evidence import Evidence
from fedbc.paper.methods import METHODS

EARLY = 10
"""Points below the paper's level from which a run is an early part of training rather than its end."""
ALIKE = ("fedbc", "fedavg", "qfedavg", "fedprox")
"""The methods that the paper has level with each other on Shakespeare."""
LEVEL, FAR = 2.0, 5.0
"""Points within which methods are alike on Shakespeare, and beyond which one falls behind."""
CHANCE = 10.0
"""Percent right of a model that knows nothing, on ten classes."""


def _best_everywhere(claim: str, see: tuple[str, ...], wins: dict[str, dict[str, float]], gained: Gain) -> Verdict:
    """`wins`: for each setting, every method's mean accuracy in percent; FedBC against the others."""
    known = {s: m for s, m in wins.items() if "fedbc" in m}
    if not known:
        return Verdict(claim, NOT_RUN, "No setting was run with FedBC and all other methods of the paper.", see)
    rivals = (*RIVALS, *VARIANTS)
    ahead = {s: m["fedbc"] - max(v for k, v in m.items() if k in rivals) for s, m in known.items()}
    single = [m["over_rivals"] for m in gained.by_seed if len(m.get("over_rivals", ())) > 1]
    clear = sum(is_clear(m.values()) and np.mean(list(m.values())) > 0 for m in single)
    good = [s for s, margin in ahead.items() if margin > 0]
    parts = [f"{len(known)} of {len(wins)} settings were run."] if len(known) < len(wins) else []
    mean = float(np.mean(list(ahead.values())))
    error = gained.error("over_rivals") if len(gained.margins) == len(known) else None
    said = f", mean {mean:+z.1f} ± {error:.1f}" if error is not None else ""
    parts += [
        f"FedBC is ahead of the best other method of the paper in {len(good)} of {len(known)} settings "
        f"({min(ahead.values()):+z.1f} to {max(ahead.values()):+z.1f} points{said})"
        + (f"; taken singly, seed by seed, in {clear} of {len(single)} by a t-test at 5 %." if single else ".")
    ]
    is_sure = error is not None and gained.is_clear("over_rivals")
    behind = is_sure and mean < 0  # then single settings in which it is ahead are luck
    # Ahead everywhere, and by more than luck in the mean; where seeds tell no error, ahead everywhere.
    beyond_luck = error is None or is_sure
    verdict = CONFIRMED if len(good) == len(known) and beyond_luck else PARTLY if good and not behind else NOT
    lost = {s: margin for s, margin in ahead.items() if margin <= 0}
    if lost:
        worst = min(lost, key=lambda s: lost[s])
        leader = max((k for k in known[worst] if k in rivals), key=lambda k: known[worst][k])
        parts.append(f"It loses most at {worst}: {METHODS[leader].label} is ahead by {-lost[worst]:.1f} points.")
    against = {
        s: m["fedbc"] - max(m[k] for k in CONTROLS if k in m) for s, m in known.items() if set(CONTROLS) & set(m)
    }
    if against:
        better = sum(margin > 0 for margin in against.values())
        parts.append(
            f"Against the controls with uniform weights it is ahead in {better} of {len(against)} settings, by "
            f"{np.mean(list(against.values())):+z.1f} points in the mean."
        )
    root = np.array([m["fedbc"] - m[ROOT] for m in known.values() if ROOT in m])
    if len(root):
        parts.append(
            f"Against FedAvg with weights √n_i: {(root > 0).sum()} of {len(root)}, {root.mean():+z.1f} points."
        )
    return Verdict(claim, verdict, " ".join(parts), see, so_far=len(known) < len(wins))


def synthetic_best(found: Evidence) -> Verdict:
    """FedBC is best on the synthetic data for every E."""
    wins = {f"E = {e}": contest(found, "synthetic", epochs=e) for e in EPOCHS}
    return _best_everywhere(
        "FedBC has the best global accuracy on the synthetic data for every E.",
        ("synthetic-global", "controls"),
        wins,
        gain(found, PAPERS_DRAW),
    )


def more_devices(found: Evidence) -> Verdict:
    """FedBC is best with 30 and 70 devices, and like SCAFFOLD with 100."""
    claim = "FedBC has the best global accuracy with 30 and with 70 devices, and with 100 it is like SCAFFOLD."
    see = ("devices",)
    rivals = (*RIVALS, *VARIANTS)
    keys = ("fedbc", *rivals, *CONTROLS)
    rows = {d: means(found, "synthetic-devices", keys, epochs=5, devices=d) for d in (30, 70, 100)}
    if any(len(row) < len(keys) for row in rows.values()):
        return Verdict(claim, NOT_RUN, "Not all methods were run with 30, 70 and 100 devices.", see)

    def ahead(of: tuple[str, ...]) -> dict[int, float]:
        return {d: row["fedbc"] - max(row[k] for k in of) for d, row in rows.items()}

    def listed(margins: dict[int, float]) -> str:
        return ", ".join(f"{margin:+z.1f} ({d})" for d, margin in margins.items())

    best, scaffold = ahead(rivals), ahead(("scaffold",))
    holds = [best[30] > 0, best[70] > 0, abs(scaffold[100]) <= 1]
    verdict = CONFIRMED if all(holds) else PARTLY if any(holds) else NOT
    by_size, uniform = ahead(("fedavg",)), ahead(CONTROLS)
    text = (
        f"FedBC less the best other method of the paper, in points by devices: {listed(best)}; less SCAFFOLD: "
        f"{listed(scaffold)}; less FedAvg weighted by size: {listed(by_size)}; less the better control with uniform "
        f"weights: {listed(uniform)}. Rates are those chosen with 30 devices."
    )
    most = max(by_size, key=lambda d: by_size[d])
    if by_size[most] > 1 and uniform[most] <= 0:
        text += f" Where FedBC gains most on FedAvg ({most} devices), not weighting by size gains as much."
    return Verdict(claim, verdict, text, see)


def image_best(data: str, shown: str, epochs: int) -> Judge:
    """FedBC is best on MNIST or CIFAR-10."""

    def judge(found: Evidence) -> Verdict:
        wins = {
            f"C = {c}, exponent {e}": contest(found, f"{data}-e{epochs}", classes=c, exponent=e)
            for c in CLASSES
            for e in EXPONENTS
        }
        verdict = _best_everywhere(
            f"FedBC has the best global accuracy on {shown} with E = {epochs}.",
            (f"{data}-global-e{epochs}",),
            wins,
            gain(found, f"{shown}, E = {epochs}"),
        )
        name = f"{data}-e{epochs}"
        acts = in_words(acted(found, name)) + (without_pull(found, IMAGES) if name == "mnist-e5" else "")
        return replace(verdict, evidence=verdict.evidence + acts)

    return judge


def weights_or_duals(found: Evidence) -> Verdict:
    """How much of the gain is the primal-dual method, how much is not weighting by size."""
    claim = "FedBC's gain is credited to gamma > 0 (and not merely to not weighting devices by size)."
    see = ("controls", "dual-rates", "coefficients", "synthetic-global")
    rows = [m for where in (PAPERS_DRAW, OTHER_DRAWS) for m in gain(found, where).margins]
    if not rows:
        return Verdict(claim, NOT_RUN, "The controls were not run.", see)
    gained, uniform, best = np.array([(m.over_fedavg, m.by_weights, m.over_controls) for m in rows]).T
    text = (
        f"Over {len(rows)} settings of the synthetic data FedBC gains {spread(gained)} on FedAvg weighted by size. "
        f"FedAvg with uniform weights gains {spread(uniform)}. Over the better of the two uniform controls FedBC is "
        f"ahead by {spread(best)}, in {(best > 0).sum()} of {len(rows)} settings."
    )
    # Medians: on a draw where one device holds nearly everything, uniform weights fail by far.
    usual, by_weights = float(np.median(gained)), float(np.median(uniform))
    text += f" In the median setting uniform weights alone gain {by_weights:+z.1f} of FedBC's {usual:+z.1f} points"
    root = np.array([m.over_root for m in rows])
    if np.isnan(root).any():
        text += "."
    else:
        by_root = float(np.median(gained - root))
        text += f", weights √n_i gain {by_root:+z.1f}; over these FedBC is ahead by {spread(root)}."
        by_weights = max(by_weights, by_root)
    text += in_words(acted(found, "synthetic"))
    tolerance = by_tolerance(found)
    if not tolerance:
        return Verdict(claim, NOT_RUN, text + " FedBC with gamma = 0 was not run, so the claim is not judged.", see)
    means_of = {e: float(np.mean(list(d.values()))) for e, d in tolerance.items()}
    clear = {e for e, d in tolerance.items() if is_clear(d.values())}
    gaining = [e for e in clear if means_of[e] > 0]
    listed = ", ".join(f"{gap:+z.2f} (E = {e})" for e, gap in means_of.items())
    text += (
        f" What gamma itself gives: FedBC less FedBC with gamma = 0 at the same rates, in points: {listed}; by a "
        "paired "
        f"t-test clear for {len(clear)} of {len(means_of)} E, a gain for {len(gaining)}."
    )
    text += over_many_draws(found)
    own = len(gaining) > len(means_of) / 2 and by_weights < 0.5 * usual
    return Verdict(claim, CONFIRMED if own else PARTLY if gaining else NOT, text, see)


def over_many_draws(found: Evidence) -> str:
    """Over weights √n_i on many draws of the data, one seed each: draws are independent."""
    name = "synthetic-many-draws"
    pairs = [(found.mean(name, "fedbc", draw=d), found.mean(name, ROOT, draw=d)) for d in MANY_DRAWS]
    gaps = np.array([100 * (a - b) for a, b in pairs if a is not None and b is not None])
    if len(gaps) < 2:
        return ""
    error = float(np.std(gaps, ddof=1) / np.sqrt(len(gaps)))
    meaning = "not clear in the mean" if not is_clear(gaps) else "a small gain of its own, of weights and pull"
    if gaps.mean() < 0 and is_clear(gaps):
        meaning = "a loss"
    return (
        f" Over weights √n_i on {len(gaps)} draws of the data (E = 5, one seed each) FedBC is ahead by "
        f"{spread(gaps, error=error)}, in the median by {np.median(gaps):+z.1f}, in {(gaps > 0).sum()} of them: "
        f"{meaning}."
    )


def lowest_loss(found: Evidence) -> Verdict:
    """FedBC's training loss is the lowest; SCAFFOLD's diverges for large E."""
    claim = "FedBC has the lowest training loss on the synthetic data for every E; SCAFFOLD's diverges for E = 25, 50."
    see = ("train-loss",)
    keys = ("fedbc", *RIVALS)
    rows = {e: {k: found.mean("synthetic", k, "global_loss", epochs=e) for k in (*keys, *CONTROLS)} for e in EPOCHS}
    known = {
        e: {k: v for k, v in row.items() if v is not None}
        for e, row in rows.items()
        if all(row[k] is not None for k in keys)
    }
    if not known:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    leaders = {e: min(keys, key=lambda k: row[k]) for e, row in known.items()}
    parts = [
        "Lowest of the paper's methods in the last rounds: "
        + ", ".join(f"E = {e}: {METHODS[k].label} {known[e][k]:.3f}" for e, k in leaders.items())
        + "; FedBC "
        + ", ".join(f"{row['fedbc']:.3f}" for row in known.values())
        + "."
    ]
    below = [row["fedbc"] < min(row[k] for k in CONTROLS) for row in known.values() if set(CONTROLS) <= set(row)]
    if below:
        parts.append(f"It is below FedAvg and FedProx with uniform weights for {sum(below)} of {len(below)} E.")
    blown = {k: [e for e in (25, 50) if _blows_up(found, k, e)] for k in ("scaffold", "scaffold-reference")}
    if blown["scaffold"]:
        parts.append(f"SCAFFOLD's loss rises again for E = {', '.join(map(str, blown['scaffold']))}.")
    elif found.first("synthetic", "scaffold", epochs=50) is not None:
        parts.append(
            "SCAFFOLD (with momentum 0.5, as all methods here) does not diverge"
            + (", the reference's variant does." if blown["scaffold-reference"] else ".")
        )
    best = [k == "fedbc" for k in leaders.values()]
    whole = all(best) and len(known) == len(EPOCHS) and blown["scaffold"] == [25, 50]
    return Verdict(claim, CONFIRMED if whole else PARTLY if any(best) else NOT, " ".join(parts), see)


def _blows_up(found: Evidence, key: str, epochs: int) -> bool:
    """Whether a curve of training loss ends well above its lowest point, or the run diverged."""
    line = found.first("synthetic", key, epochs=epochs)
    if line is None:
        return any("diverged" in one for one in found.lines("synthetic", key, epochs=epochs))
    loss = line["curves"]["global_loss"]
    return float(np.mean(loss[-len(loss) // 10 :])) > 1.5 * min(loss)


def alike_on_text(found: Evidence) -> Verdict:
    """On Shakespeare the methods are alike but for SCAFFOLD."""
    claim = "On Shakespeare all methods but SCAFFOLD are alike; FedBC is best with E = 5."
    see = ("shakespeare-global", "shakespeare-variance")
    rows = {e: contest(found, "shakespeare", epochs=e) for e in (1, 5)}
    rows = {e: row for e, row in rows.items() if "fedbc" in row}
    if not rows:
        return Verdict(claim, NOT_RUN, "No E was run with FedBC and all other methods of the paper.", see)
    parts, alike, below, leader = [], {}, {}, {}
    for e, row in rows.items():
        others = {k: row[k] for k in ALIKE if k in row}
        alike[e] = _apart(others) <= LEVEL
        below[e] = "scaffold" not in row or row["scaffold"] < min(others.values()) - FAR
        leader[e] = max((k for k in row if k in ("fedbc", *RIVALS)), key=lambda k: row[k])
        listed = "; ".join(f"{METHODS[k].label} {v:.1f}" for k, v in row.items())
        parts.append(f"E = {e}: {listed} %" + ("." if "scaffold" in row else "; SCAFFOLD diverges."))
    if not all(below.values()):
        parts.append("SCAFFOLD (with momentum 0.5, as all methods here) does not fall behind as in the paper.")
    gaps = {e: row["fedavg"] - row.get("fedavg-uniform", row["fedavg"]) for e, row in rows.items() if not alike[e]}
    told_apart = {e: gap for e, gap in gaps.items() if gap > 2}
    if told_apart:
        parts.append(
            f"Weights by size are {_points(told_apart, 1)} ahead of uniform ones, which q-FedAvg and SCAFFOLD have, "
            "too: the weights tell them apart."
        )
    if not all((*alike.values(), *below.values())):
        parts += _with_variants(found, rows)
    holds = [*alike.values(), *below.values(), leader.get(5) == "fedbc"]
    if 5 not in rows:
        parts.append("E = 5 was not run.")
    short = {e: gap for e, row in rows.items() if (gap := _below_the_paper(row, e)) > EARLY}
    if short:
        holds.append(False)
        parts.append(
            "On this sample, with fewer rounds and examples, FedBC, FedAvg, q-FedAvg and FedProx are "
            f"{_points(short, 0)} below the paper: this compares them early in training, not where they end."
        )
    return Verdict(claim, CONFIRMED if all(holds) else PARTLY if any(holds) else NOT, " ".join(parts), see)


def _apart(accuracies: Mapping[str, float]) -> float:
    return max(accuracies.values()) - min(accuracies.values())


def _with_variants(found: Evidence, rows: dict[int, dict[str, float]]) -> list[str]:
    """On Shakespeare: whether the reference's q-FedAvg and SCAFFOLD give the paper's picture for every E."""
    level, collapsing = ("fedbc", "fedavg", "fedprox", "qfedavg-reference"), "scaffold-reference"
    apart = {}
    for e, row in rows.items():
        if "qfedavg-reference" not in row or not found.lines("shakespeare", collapsing, epochs=e):
            return []
        accuracies = {k: row[k] for k in level}
        apart[e] = _apart(accuracies)
        collapses = collapsing not in row or row[collapsing] < min(accuracies.values()) - FAR
        if apart[e] > LEVEL or not collapses:
            return []
    return [
        "With what the paper's public code has for q-FedAvg and SCAFFOLD it is as in the paper: FedBC, FedAvg, FedProx "
        f"and that q-FedAvg lie within {_points(apart, 1)}, and that SCAFFOLD collapses."
    ]


def _points(by_epochs: dict[int, float], digits: int) -> str:
    return ", ".join(f"{value:.{digits}f} points (E = {e})" for e, value in by_epochs.items())


def _below_the_paper(row: dict[str, float], epochs: int) -> float:
    """How far the methods that are alike in the paper's table on Shakespeare are below it here, in points."""
    gaps = []
    for key in ALIKE:
        paper = printed.cell("shakespeare_global", METHODS[key].printed, {"epochs": epochs})
        if paper is not None and key in row:
            gaps.append(paper["mean"] - row[key])
    return float(np.mean(gaps)) if gaps else 0.0


def personal_methods_lose(found: Evidence) -> Verdict:
    """Personalised methods have a worse global model."""
    claim = "With C = 1 the global models of pFedMe and Per-FedAvg are worse than FedAvg's, FedProx's and FedBC's."
    see = ("cifar10-global-e5",)
    personal = ("perfedavg", "pfedme")
    gaps, untrained = _behind(found, "cifar10-e5", personal, ("fedavg", "fedprox", "fedbc"))
    variants = tuple(f"{k}-reference" for k in personal)
    theirs, _ = _behind(found, "cifar10-e5-reference", variants, ("fedavg", "fedprox", "fedbc-reference"))

    def listed(gaps: dict[str, list[float]]) -> str:
        return "; ".join(f"{METHODS[k].label} {spread(np.array(v))}" for k, v in gaps.items() if v) + "."

    if not any(gaps.values()):
        return Verdict(claim, NOT_RUN, "Not run.", see)
    text = f"Less the worst of the three, C = 1, E = 5: {listed(gaps)}"
    for key in untrained:
        text += f" {METHODS[key].label}'s z stays at chance."
    if any(theirs.values()):
        text += f" Under the reference protocol: {listed(theirs)}"
    missing = [METHODS[k].label for k, v in gaps.items() if not v]
    if missing:
        text += f" {' and '.join(missing)} not run."
    worse = [g < 0 for v in gaps.values() for g in v]
    return Verdict(claim, CONFIRMED if all(worse) else PARTLY if any(worse) else NOT, text, see)


def _behind(
    found: Evidence, experiment: str, personal: tuple[str, ...], plain: tuple[str, ...]
) -> tuple[dict[str, list[float]], list[str]]:
    """With C = 1: personalised methods less the worst plain one, in points, and those whose z never left chance."""
    rows: dict[str, list[dict[str, float]]] = {k: [] for k in personal}
    for key, e in itertools.product(personal, EXPONENTS):
        setting = {"classes": 1, "exponent": e}
        seeds = found.common_seeds(experiment, (key, *plain), **setting)
        row = means(found, experiment, (key, *plain), seeds=seeds, **setting)
        if set(row) == {key, *plain}:
            rows[key].append(row)
    gaps = {k: [row[k] - min(row[p] for p in plain) for row in rows[k]] for k in personal}
    untrained = [k for k in personal if rows[k] and max(row[k] for row in rows[k]) < CHANCE + 1]
    return gaps, untrained
