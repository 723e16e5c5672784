"""The paper's claims, one by one, judged by what was run: every verdict is computed from results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedbc.paper.catalogue import CLASSES, EPOCHS, EXPONENTS, TOLERANCES
from fedbc.paper.claims_local import (
    best_rounds,
    corollary,
    fine_tuning,
    per_fedbc,
    q_normalisation,
    scaffold_collapse,
    theorem_rate,
    toy_example,
)
from fedbc.paper.methods import METHODS
from fedbc.paper.tables import Found
from fedbc.paper.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, RIVALS, Judge, Verdict, means, spread

VARIANTS = ("qfedavg-reference", "scaffold-reference")
CONTROLS = ("fedavg-uniform", "fedprox-uniform")


def judge_all(found: Found) -> list[Verdict]:
    """Every claim."""
    return [
        replace(judge(found), so_far=not all(found.complete(name) for name in experiments))
        for judge, experiments in JUDGES.items()
    ]


def _best_everywhere(claim: str, see: tuple[str, ...], wins: dict[str, dict[str, float]]) -> Verdict:
    """`wins`: for each setting, every method's mean accuracy in percent; FedBC against the others."""
    known = {s: m for s, m in wins.items() if "fedbc" in m}
    if not known:
        return Verdict(claim, NOT_RUN, "No setting was run with FedBC and all other methods of the paper.", see)
    rivals = (*RIVALS, *VARIANTS)
    ahead = {s: m["fedbc"] - max(v for k, v in m.items() if k in rivals) for s, m in known.items()}
    good = [s for s, margin in ahead.items() if margin > 0]
    verdict = CONFIRMED if len(good) == len(known) else PARTLY if good else NOT
    parts = [f"{len(known)} of {len(wins)} settings were run."] if len(known) < len(wins) else []
    parts += [
        f"FedBC is ahead of the best other method of the paper in {len(good)} of {len(known)} settings "
        f"({min(ahead.values()):+z.1f} to {max(ahead.values()):+z.1f} points)."
    ]
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
    return Verdict(claim, verdict, " ".join(parts), see)


def _contest(found: Found, experiment: str, **setting: Any) -> dict[str, float]:
    """The methods' means in a setting where FedBC and all rivals were run; of a method that diverged there is none."""
    if not all(found.lines(experiment, key, **setting) for key in ("fedbc", *RIVALS)):
        return {}
    return means(found, experiment, ("fedbc", *RIVALS, *VARIANTS, *CONTROLS), **setting)


def synthetic_best(found: Found) -> Verdict:
    """FedBC is best on the synthetic data for every E."""
    wins = {f"E = {e}": _contest(found, "synthetic", epochs=e) for e in EPOCHS}
    return _best_everywhere(
        "FedBC has the best global accuracy on the synthetic data for every E.", ("synthetic-global", "controls"), wins
    )


def more_devices(found: Found) -> Verdict:
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


def _image_claim(data: str, shown: str, epochs: int) -> Judge:
    def judge(found: Found) -> Verdict:
        wins = {
            f"C = {c}, exponent {e}": _contest(found, f"{data}-e{epochs}", classes=c, exponent=e)
            for c in CLASSES
            for e in EXPONENTS
        }
        return _best_everywhere(
            f"FedBC has the best global accuracy on {shown} with E = {epochs}.", (f"{data}-global-e{epochs}",), wins
        )

    return judge


def weights_or_duals(found: Found) -> Verdict:
    """How much of the gain is the primal-dual method, how much is not weighting by size."""
    claim = "FedBC's gain is credited to gamma > 0 (and not merely to not weighting devices by size)."
    see = ("controls", "dual-rates", "coefficients", "synthetic-global")
    places = [("synthetic", {"epochs": e}) for e in EPOCHS] + [("synthetic-draws", {"draw": d}) for d in (2, 3, 4, 5)]
    rows = [means(found, n, ("fedavg", "fedavg-uniform", "fedprox-uniform", "fedbc"), **s) for n, s in places]
    rows = [r for r in rows if len(r) == 4]
    if not rows:
        return Verdict(claim, NOT_RUN, "The controls were not run.", see)
    gain = np.array([r["fedbc"] - r["fedavg"] for r in rows])
    uniform = np.array([r["fedavg-uniform"] - r["fedavg"] for r in rows])
    best = np.array([r["fedbc"] - max(r["fedavg-uniform"], r["fedprox-uniform"]) for r in rows])
    text = (
        f"Over {len(rows)} settings of the synthetic data FedBC gains {spread(gain)} on FedAvg weighted by size. "
        f"FedAvg with uniform weights gains {spread(uniform)}. Over the better of the two uniform controls FedBC is "
        f"ahead by {spread(best)}, in {(best > 0).sum()} of {len(rows)} settings."
    )
    # Medians: on a draw where one device holds nearly everything, uniform weights fail by far.
    usual, usual_uniform = float(np.median(gain)), float(np.median(uniform))
    text += f" In the median setting uniform weights alone gain {usual_uniform:+z.1f} of FedBC's {usual:+z.1f} points."
    acts, constraint = _constraint(found)
    text += constraint
    own = best.mean() > 0.3 and (best > 0).mean() > 0.5
    mostly_own = own and usual_uniform < 0.5 * usual
    verdict = CONFIRMED if mostly_own and acts else PARTLY if own or best.mean() > 0 else NOT
    return Verdict(claim, verdict, text, see)


def _constraint(found: Found) -> tuple[bool, str]:
    """Whether the chosen dual rates leave any constraint at all, or only the server's weights."""
    pulls, tolerances = [], []
    for line in found.lines("synthetic", "fedbc"):
        if "multipliers" in line:
            pulls.append(2 * line["spec"]["algorithm"]["lr"] * max(line["multipliers"]))
            tolerances.append(max(line["tolerances"]))
    if not pulls:
        return False, ""
    text = (
        f" At the chosen dual rates a local step pulls by at most 2 lr lambda = {max(pulls):.2g} of the distance to z, "
        f"and gamma reaches {max(tolerances):.2g}."
    )
    acts = max(pulls) >= 1e-3
    if not acts:
        text += (
            " So tuning all but switches the constraint off: what is left of FedBC is a mean weighted by lambda, that "
            "is by how far each device has drifted so far."
        )
    return acts, text


def smaller_variance(found: Found) -> Verdict:
    """FedBC's accuracy varies less over devices than FedAvg's."""
    claim = "The accuracy of FedBC's global model varies less over devices than FedAvg's."
    see = ("variance", "cifar10-variance")
    places: list[tuple[str, dict[str, Any], str]] = [("synthetic", {"epochs": e}, f"synthetic E = {e}") for e in EPOCHS]
    for epochs in (1, 5):
        places += [
            (f"cifar10-e{epochs}", {"classes": c, "exponent": e}, f"CIFAR-10 E = {epochs}, C = {c}, exponent {e}")
            for c in CLASSES
            for e in EXPONENTS
        ]
    ratios: dict[str, float] = {}
    uniform: dict[str, float] = {}
    for name, setting, label in places:
        ours, theirs, control = (
            found.mean(name, k, "accuracy_variance", **setting) for k in ("fedbc", "fedavg", "fedavg-uniform")
        )
        if ours is not None and theirs:
            ratios[label] = ours / theirs
            if control:
                uniform[label] = ours / control
    if not ratios:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    less = [s for s, r in ratios.items() if r < 1]
    verdict = CONFIRMED if len(less) == len(ratios) else PARTLY if less else NOT
    share = np.mean(list(ratios.values()))
    text = (
        f"FedBC's variance is below FedAvg's in {len(less)} of {len(ratios)} settings, {share:.0%} of it in the mean."
    )
    if len(less) < len(ratios):
        worst = max(ratios, key=lambda s: ratios[s])
        text += f" It is larger most at {worst} ({ratios[worst]:.0%})."
    if uniform:
        smaller = sum(r < 1 for r in uniform.values())
        ratio = np.mean(list(uniform.values()))
        text += (
            f" Against FedAvg with uniform weights it is smaller in {smaller} of {len(uniform)} settings, {ratio:.0%} "
            "in the mean" + (": most of it is the weights." if ratio > 0.9 else ".")
        )
    return Verdict(claim, verdict, text, see)


def users_meet(found: Found) -> Verdict:
    """The accuracies of the smallest and the largest device meet."""
    claim = "The global model's accuracy on the round's smallest and largest device meets for FedBC, not for FedAvg."
    gaps: dict[str, list[float]] = {}
    for key in ("fedbc", "fedavg", "fedavg-uniform"):
        for epochs in EPOCHS:
            line = found.first("synthetic", key, epochs=epochs)
            if line is not None and "min_accuracy" in line["coefficients"]:
                c = line["coefficients"]
                late = slice(len(c["min"]) // 2, None)
                gaps.setdefault(key, []).append(
                    100 * float(np.mean(np.array(c["max_accuracy"][late]) - np.array(c["min_accuracy"][late])))
                )
    if "fedbc" not in gaps or "fedavg" not in gaps:
        return Verdict(claim, NOT_RUN, "Not run.", ("users",))
    mean = {k: float(np.mean(v)) for k, v in gaps.items()}
    text = "Largest less smallest device in the second half of the rounds, mean over E: " + ", ".join(
        f"{METHODS[k].label} {v:+z.1f} points" for k, v in mean.items()
    )
    text += f" (FedBC by E: {', '.join(f'{g:+z.1f}' for g in gaps['fedbc'])})."
    small = all(abs(g) < 5 for g in gaps["fedbc"])
    less = abs(mean["fedbc"]) < abs(mean["fedavg"])
    return Verdict(claim, CONFIRMED if small and less else PARTLY if less else NOT, text, ("users",))


def coefficients_converge(found: Found) -> Verdict:
    """The coefficients of the smallest and the largest device converge."""
    claim = "FedBC's coefficients of the round's smallest and largest device converge, those by size stay apart."
    ratios: list[tuple[float, float, float]] = []
    for epochs in EPOCHS:
        line = found.first("synthetic", "fedbc", epochs=epochs)
        if line is not None:
            c = {k: np.array(v) for k, v in line["coefficients"].items() if "accuracy" not in k}
            third = max(1, len(c["min"]) // 3)
            early, late = (
                float(np.mean(c["max"][s]) / np.mean(c["min"][s])) for s in (slice(0, third), slice(-third, None))
            )
            ratios.append((early, late, float(np.mean(c["max_by_size"]) / np.mean(c["min_by_size"]))))
    if not ratios:
        return Verdict(claim, NOT_RUN, "Not run.", ("coefficients",))
    text = "Largest device's mean coefficient over the smallest's, first third of the rounds, last third, and by size: "
    text += "; ".join(f"{a:.1f}, {b:.1f}, {s:.0f}" for a, b, s in ratios) + " (one group for each E that was run)."
    nearer = all(b < s / 3 for _, b, s in ratios)
    met = all(abs(np.log(b)) < np.log(1.5) for _, b, _ in ratios)
    if not met:
        text += " They come much nearer than weights by size, but do not meet." if nearer else " They stay apart."
    return Verdict(
        claim, CONFIRMED if met and nearer else PARTLY if nearer else NOT, text, ("coefficients", "multipliers")
    )


def tolerance_trade(found: Found) -> Verdict:
    """gamma > 0 first improves both accuracies, then trades the global one for the local one."""
    claim = "Raising gamma from 0 improves global and local accuracy up to a point, then trades global for local."
    rows = {
        t: [found.values("synthetic-gamma", "fedbc", c, tolerance=t) for c in ("global_accuracy", "local_accuracy")]
        for t in TOLERANCES
    }
    known = {t: [100 * float(np.mean(v)) for v in r] for t, r in rows.items() if all(r)}
    if 0.0 not in known or len(known) < 4:
        return Verdict(claim, NOT_RUN, "Not run.", ("teaser",))
    noise = 100 * max(float(np.std(v, ddof=1)) if len(v) > 1 else 0 for r in rows.values() for v in r[:1] if v)
    start = known[0.0]
    best = max(known, key=lambda t: known[t][0])
    top = max(known)
    rises = best > 0 and known[best][0] > start[0] + noise / 2 and known[best][1] > start[1]
    falls = known[top][0] < known[best][0] - noise / 2
    local_best = max(known, key=lambda t: known[t][1])
    trades = falls and known[local_best][1] > known[best][1] and local_best > best
    text = (
        f"gamma = 0: global {start[0]:.1f}, local {start[1]:.1f} %. Global accuracy is best at gamma = {best:g} "
        f"({known[best][0]:.1f}, local {known[best][1]:.1f}); local accuracy at gamma = {local_best:g} "
        f"({known[local_best][1]:.1f}, global {known[local_best][0]:.1f}). At gamma = {top:g}: {known[top][0]:.1f} and "
        f"{known[top][1]:.1f}. The seeds' standard deviation is up to {noise:.1f}."
    )
    if not rises:
        text += " A positive gamma does not raise both beyond that."
    if falls and not trades:
        text += " Beyond the best gamma global accuracy falls, but local accuracy does not rise for it."
    return Verdict(
        claim, CONFIRMED if rises and trades else PARTLY if rises or trades else NOT, text, ("teaser", "toy")
    )


JUDGES: dict[Judge, tuple[str, ...]] = {
    synthetic_best: ("synthetic",),
    more_devices: ("synthetic-devices",),
    weights_or_duals: ("synthetic", "synthetic-draws"),
    smaller_variance: ("synthetic", "cifar10-e1", "cifar10-e5"),
    users_meet: ("synthetic",),
    coefficients_converge: ("synthetic",),
    tolerance_trade: ("synthetic-gamma",),
    toy_example: (),
    _image_claim("cifar10", "CIFAR-10", 5): ("cifar10-e5",),
    _image_claim("cifar10", "CIFAR-10", 1): ("cifar10-e1",),
    _image_claim("mnist", "MNIST", 1): ("mnist-e1",),
    _image_claim("mnist", "MNIST", 5): ("mnist-e5",),
    fine_tuning: ("cifar10-local-e5",),
    per_fedbc: ("cifar10-local-e5",),
    scaffold_collapse: ("cifar10-e5", "cifar10-e1"),
    q_normalisation: ("synthetic",),
    best_rounds: ("cifar10-e1", "cifar10-e5", "mnist-e1", "mnist-e5"),
    theorem_rate: (),
    corollary: (),
}
"""Every claim's judge, and the experiments whose runs it needs."""
