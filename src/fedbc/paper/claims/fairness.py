"""Claims about how evenly devices are served: accuracies over devices, coefficients, multipliers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbc.paper.catalogue import CLASSES, EPOCHS, EXPONENTS
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, RIVALS, Verdict
from fedbc.paper.evidence import Evidence
from fedbc.paper.methods import METHODS
from fedbc.runs import Line


def smaller_variance(found: Evidence) -> Verdict:
    """FedBC's accuracy varies least over devices."""
    claim = "The accuracy of FedBC's global model varies less over devices than that of every other method."
    see = ("variance", "cifar10-variance")
    keys = ("fedbc", *RIVALS, "fedavg-uniform")
    parts, smallest, below, controls = [], [], [], []
    for place, name, settings in _VARIANCE_PLACES:
        rows = []
        for setting in settings:
            seeds = found.common_seeds(name, ("fedbc", "fedavg"), **setting)
            row = {k: found.mean(name, k, "accuracy_variance", seeds=seeds, **setting) for k in keys}
            if row["fedbc"] is not None and row["fedavg"] is not None:
                rows.append({k: v for k, v in row.items() if v is not None})
        if not rows:
            continue
        least = [all(row["fedbc"] < row[k] for k in RIVALS if k in row) for row in rows]
        smallest += least
        below += [row["fedbc"] / row["fedavg"] for row in rows]
        controls += [row["fedbc"] / row["fedavg-uniform"] for row in rows if row.get("fedavg-uniform")]
        parts.append(f"{place} {sum(least)} of {len(rows)}")
    if not smallest:
        return Verdict(claim, NOT_RUN, "Not run.", see)
    text = (
        f"FedBC's variance is the smallest of the paper's methods in {sum(smallest)} of {len(smallest)} settings "
        f"({'; '.join(parts)}). It is below FedAvg's in {sum(r < 1 for r in below)} of {len(below)}, "
        f"{np.mean(below):.0%} "
        "of it in the mean."
    )
    if controls:
        ratio = float(np.mean(controls))
        text += (
            f" Against FedAvg with uniform weights it is smaller in {sum(r < 1 for r in controls)} of {len(controls)} "
            f"settings, {ratio:.0%} in the mean" + (": most of it is the weights." if ratio > 0.9 else ".")
        )
    most = sum(smallest) > len(smallest) / 2
    verdict = CONFIRMED if all(smallest) else PARTLY if most or all(r < 1 for r in below) else NOT
    return Verdict(claim, verdict, text, see)


_ON_IMAGES = tuple({"classes": c, "exponent": e} for c in CLASSES for e in EXPONENTS)
_VARIANCE_PLACES: tuple[tuple[str, str, tuple[dict[str, Any], ...]], ...] = (
    ("synthetic data", "synthetic", tuple({"epochs": e} for e in EPOCHS)),
    ("CIFAR-10, E = 1, C = 1 and 2", "cifar10-e1", tuple(s for s in _ON_IMAGES if s["classes"] < 3)),
    ("CIFAR-10, E = 1, C = 3, which the paper names", "cifar10-e1", tuple(s for s in _ON_IMAGES if s["classes"] == 3)),
    ("CIFAR-10, E = 5", "cifar10-e5", _ON_IMAGES),
    ("MNIST, E = 1", "mnist-e1", _ON_IMAGES),
    ("MNIST, E = 5", "mnist-e5", _ON_IMAGES),
)


def users_meet(found: Evidence) -> Verdict:
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


def coefficients_converge(found: Evidence) -> Verdict:
    """The coefficients of the smallest and the largest device converge."""
    claim = "FedBC's coefficients of the round's smallest and largest device converge, those by size stay apart."
    return _converging(
        claim,
        {f"E = {e}": found.first("synthetic", "fedbc", epochs=e) for e in EPOCHS},
        ("coefficients", "multipliers"),
    )


def coefficients_on_images(found: Evidence) -> Verdict:
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
            c = {k: np.array(line["coefficients"][k]) for k in ("min", "max", "min_by_size", "max_by_size")}
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


def multipliers_settle(found: Evidence) -> Verdict:
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
