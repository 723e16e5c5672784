"""Claims about how evenly devices are served: accuracies over devices, coefficients, multipliers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbc.experiments.workers import Line
from fedbc.paper.catalogue import CLASSES, EPOCHS, EXPONENTS
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, Verdict
from fedbc.paper.found import Found
from fedbc.paper.methods import METHODS


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
        seeds = found.common_seeds(name, ("fedbc", "fedavg"), **setting)
        ours, theirs, control = (
            found.mean(name, k, "accuracy_variance", seeds=seeds, **setting)
            for k in ("fedbc", "fedavg", "fedavg-uniform")
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
    return _converging(
        claim,
        {f"E = {e}": found.first("synthetic", "fedbc", epochs=e) for e in EPOCHS},
        ("coefficients", "multipliers"),
    )


def coefficients_on_images(found: Found) -> Verdict:
    """The same on CIFAR-10."""
    claim = "On CIFAR-10, too, FedBC's coefficients treat small and large devices alike, for C = 1, 2 and 3."
    lines = {f"C = {c}": found.first("cifar10-coefficients", "fedbc", classes=c) for c in CLASSES}
    return _converging(claim, lines, ("cifar10-coefficients",))


def _converging(claim: str, lines: dict[str, Line | None], see: tuple[str, ...]) -> Verdict:
    """Whether the largest device's coefficient comes near the smallest's, and nearer than by size."""
    ratios: dict[str, tuple[float, float, float]] = {}
    powers: list[float] = []
    for where, line in lines.items():
        if line is not None:
            c = {k: np.array(v) for k, v in line["coefficients"].items() if "accuracy" not in k}
            third = max(1, len(c["min"]) // 3)
            early, late = (
                float(np.mean(c["max"][s]) / np.mean(c["min"][s])) for s in (slice(0, third), slice(-third, None))
            )
            ratios[where] = (early, late, float(np.mean(c["max_by_size"]) / np.mean(c["min_by_size"])))
            if "multipliers" in line:
                powers.append(_power(np.array(line["sizes"]), np.array(line["multipliers"])))
    if not ratios:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    text = "Largest device's mean coefficient over the smallest's, first third of the rounds, last third, and by size: "
    text += "; ".join(f"{where}: {a:.1f}, {b:.1f}, {s:.0f}" for where, (a, b, s) in ratios.items()) + "."
    nearer = all(b < s / 3 for _, b, s in ratios.values())
    met = all(abs(np.log(b)) < np.log(1.5) for _, b, _ in ratios.values())
    if not met:
        text += " They come much nearer than weights by size, but do not meet." if nearer else " They stay apart."
    if powers:
        listed = ", ".join(f"{p:.1f}" for p in powers)
        text += f" At the end lambda_i grows as n_i^k, k = {listed} (0: uniform weights, 1: by size)."
        if np.mean(powers) > 0.4:
            text += " A device with more local steps drifts further, and lambda adds up the drift."
    return Verdict(claim, CONFIRMED if met and nearer else PARTLY if nearer else NOT, text, see)


def _power(sizes: np.ndarray, multipliers: np.ndarray) -> float:
    """k of lambda_i ~ n_i^k, by least squares over the devices that have a multiplier."""
    known = multipliers > 0
    return float(np.polyfit(np.log(sizes[known]), np.log(multipliers[known]), 1)[0])


def multipliers_settle(found: Found) -> Verdict:
    """lambda changes early, and is alike for small and large devices."""
    claim = "lambda changes mostly in the first 50 rounds, and small devices' is like large ones' all along."
    see = ("multipliers",)
    moved, ratio = {}, {}
    for epochs in EPOCHS:
        line = found.first("synthetic", "fedbc", epochs=epochs)
        if line is not None and {"1", "50", "200"} <= set(line.get("snapshots", ())):
            at = {k: np.array(v) for k, v in line["snapshots"].items()}
            moved[epochs] = float(np.abs(at["50"] - at["1"]).sum() / np.abs(at["200"] - at["1"]).sum())
            small, large = np.array_split(np.argsort(line["sizes"]), 2)
            ratio[epochs] = [float(at[k][small].mean() / at[k][large].mean()) for k in ("50", "200")]
    if not moved:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    text = (
        f"By round 50 lambda has made {', '.join(f'{v:.0%} (E = {e})' for e, v in moved.items())} of its way to round "
        "200. Mean lambda of the smaller half of the devices over that of the larger half, rounds 50 and 200: "
        + "; ".join(f"{a:.2f}, {b:.2f} (E = {e})" for e, (a, b) in ratio.items())
        + "."
    )
    early = all(v > 0.5 for v in moved.values())
    alike = all(0.5 < r < 2 for pair in ratio.values() for r in pair)
    if not early:
        text += " It keeps growing as long as devices drift: without a bound nothing makes it settle."
    return Verdict(claim, CONFIRMED if early and alike else PARTLY if early or alike else NOT, text, see)
