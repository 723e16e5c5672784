"""Why our level with one class per device is below the paper's: what each suspicion changes, in points."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedbc.paper import printed
from fedbc.paper.catalogue import SUSPICIONS, images_experiment
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import Dataset
from fedbc.paper.methods import METHODS
from fedbc.paper.specifications import BELOW, CHANGES

NEAR = 0.02
"""A suspicion within two points of the paper's number would explain it."""


class Suspicion(NamedTuple):
    """What was suspected, and what came of it."""

    name: str
    accuracy: float | None
    """in percent; None where it was not run, or diverged"""
    effect: float | None
    """in points, against the run of the table"""
    left: float | None
    """in points, to the paper's number"""
    state: str = ""
    """why there is no number"""


def suspicions(found: Evidence) -> list[Suspicion]:
    """A row per suspicion; none as long as the run of the table is missing."""
    paper = printed.cell("cifar10_global_e5", METHODS["fedavg"].printed, BELOW)
    base = found.mean(SUSPICIONS, "fedavg", suspicion="none")
    first = found.first(SUSPICIONS, "fedavg", suspicion="none")
    if base is None or paper is None or first is None:
        return []

    def row(name: str, value: float | None, state: str = "") -> Suspicion:
        if value is None:
            return Suspicion(name, None, None, None, state)
        return Suspicion(name, 100 * value, 100 * (value - base), paper["mean"] - 100 * value)

    rows = [row("best round instead of the last ones", max(first["curves"]["global_accuracy"]))]
    for name in CHANGES:
        state = "diverged" if found.lines(SUSPICIONS, "fedavg", suspicion=name) else "not run"
        rows.append(row(name, found.mean(SUSPICIONS, "fedavg", suspicion=name), state))
    return rows


def noise(found: Evidence) -> float | None:
    """The standard deviation over seeds of the table's run, in points; None with fewer than two."""
    values = found.values(images_experiment(Dataset.CIFAR10, BELOW["epochs"]), "fedavg", "global_accuracy", **BELOW)
    return 100 * float(np.std(values, ddof=1)) if len(values) > 1 else None


def verdict(rows: list[Suspicion], noise: float | None = None) -> str:
    """Whether one of them explains the gap, in a sentence or two; empty where there are none."""
    known = sorted((r for r in rows if r.effect is not None), key=lambda r: -(r.effect or 0))
    if not known:
        return ""
    most = "What gives most: " + ", ".join(f"{r.name} ({r.effect:+.1f})" for r in known[:3]) + "."
    if noise is not None:
        most += f" Seeds alone have a standard deviation of {noise:.1f} points: smaller effects tell nothing."
    points = f"{100 * NEAR:g} points of the paper"
    missing = sum(r.state == "not run" for r in rows)
    left = f" {missing} of {len(rows)} were not run yet." if missing else ""
    enough = ", ".join(r.name for r in known if r.left is not None and r.left <= 100 * NEAR)
    if not enough:
        return f"{most} None comes within {points}: the question stays open.{left}"
    could = "That could explain the gap; it does not show that the paper did it."
    return f"{most} Within {points}, or above: {enough}. {could}{left}"
