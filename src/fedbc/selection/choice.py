"""The choice between settings that were run on several seeds: a preference, the Pareto front, and how sure it is.

`scores` has the shape (settings, seeds, 2): global and local accuracy. The same seeds belong together across settings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbc import checks
from fedbc.errors import InputError

Array = np.ndarray
PREFERENCES = {"global": 1.0, "balanced": 0.5, "local": 0.0}
RESAMPLES = 2000


def weight_of(prefer: str | float) -> float:
    """The weight of global accuracy that a preference stands for; local accuracy has the rest."""
    if prefer in PREFERENCES:
        return PREFERENCES[str(prefer)]
    try:
        weight = float(prefer)
    except ValueError:
        weight = float("nan")
    try:
        return checks.number("prefer", weight, at_least=0, at_most=1)
    except InputError:
        raise InputError(
            f"prefer={prefer!r} is not accepted: give {', '.join(PREFERENCES)}, or the weight of global accuracy, "
            "a number from 0 to 1"
        ) from None


def pareto_front(points: Array) -> Array:
    """Which points no other point beats: at least as good in both coordinates and better in one."""
    order = np.lexsort((-points[:, 1], -points[:, 0]))
    on_front = np.zeros(len(points), bool)
    best = -np.inf
    first = (np.nan, np.nan)
    for i in order:  # from the best first coordinate down, only a better second one is a gain
        point = (points[i, 0], points[i, 1])
        on_front[i] = point[1] > best or point == first
        if point[1] > best:
            best, first = point[1], point
    return on_front


def best_of(means: Array, weight: float) -> Array:
    """The index of the best setting by the weighted mean of the last axis; of equals, one that no other beats."""
    value = means @ np.asarray([weight, 1 - weight])
    among = np.isclose(value, value.max(0), rtol=0, atol=1e-12)
    return np.where(among, means.sum(-1), -np.inf).argmax(0)


@dataclass(frozen=True)
class Certainty:
    """How a choice would fare on other seeds, as far as resampling those at hand can tell."""

    chosen: Array
    """the share of resamples in which each setting is the choice"""
    on_front: Array
    """the same for being on the Pareto front"""


def resampled(scores: Array, weight: float, *, resamples: int = RESAMPLES, seed: int = 0) -> Certainty:
    """Choose again and again from seeds drawn with replacement (bootstrap)."""
    settings, seeds, _ = scores.shape
    draws = np.random.default_rng(seed).integers(0, seeds, (resamples, seeds))
    means = scores[:, draws].mean(2)
    chosen = np.bincount(best_of(means, weight), minlength=settings) / resamples
    on_front = np.mean([pareto_front(means[:, b]) for b in range(resamples)], axis=0)
    return Certainty(chosen, on_front)
