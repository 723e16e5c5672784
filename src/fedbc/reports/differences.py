"""What differs between methods, in plain words, and whether it is more than the spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

BEYOND = 2.0
"""A difference within so many standard deviations of it, over seeds, lies within the spread."""


VISIBLE = 0.05
"""Smaller differences are not seen in the numbers that are shown."""


@dataclass(frozen=True)
class Score:
    """Something to compare by."""

    column: str
    best: str
    """what the leading method has"""
    unit: str
    factor: float
    higher_is_better: bool = True


SCORES = (
    Score("global_accuracy", "the most accurate global model", "points", 100),
    Score("local_accuracy", "the most accurate local models", "points", 100),
    Score("worst_decile_accuracy", "the best global model for the tenth of devices served worst", "points", 100),
)


@dataclass(frozen=True)
class Lead:
    """By how much the leading method is ahead of another."""

    other: str
    difference: float
    deviation: float
    """over seeds; NaN with one seed"""

    @property
    def is_clear(self) -> bool:
        """Whether it is beyond the spread over seeds."""
        return abs(self.difference) > BEYOND * self.deviation

    def __str__(self) -> str:
        spread = "" if np.isnan(self.deviation) else f" ± {self.deviation:.1f}"
        return f"{self.other} by {self.difference:.1f}{spread}"


def sentences(runs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """A sentence or two a score; none where there is nothing to compare."""
    said = [_sentence(runs, names, score) for score in SCORES if score.column in runs]
    return [s for s in said if s]


def leads(runs: pd.DataFrame, names: Sequence[str], score: Score) -> tuple[str, float, list[Lead]] | None:
    """The best method, its mean, and its lead over each of the others; None if fewer than two have the score."""
    values = {n: runs[runs["method"] == n].set_index("seed")[score.column].dropna() * score.factor for n in names}
    values = {n: v for n, v in values.items() if len(v)}
    if len(values) < 2:
        return None
    sign = 1 if score.higher_is_better else -1
    best = max(values, key=lambda n: sign * values[n].mean())
    return best, values[best].mean(), [_lead(n, values[best], v, sign) for n, v in values.items() if n != best]


def _lead(other: str, best: pd.Series, own: pd.Series, sign: int) -> Lead:
    if sorted(best.index) == sorted(own.index):
        # A seed draws the same initial model, devices and batches for all methods: differences seed by seed.
        pairs = best - own
        deviation = pairs.std(ddof=1)
    else:
        deviation = float(np.hypot(best.std(ddof=1), own.std(ddof=1)))
    return Lead(other, sign * (best.mean() - own.mean()), float(deviation))


def _sentence(runs: pd.DataFrame, names: Sequence[str], score: Score) -> str:
    found = leads(runs, names, score)
    if found is None:
        return ""
    best, mean, ahead = found
    unit = f" {score.unit}"
    opening = f"{best} has {score.best} ({mean:.1f} %)"
    if all(abs(lead.difference) < VISIBLE for lead in ahead):
        return f"{score.best[0].upper()}{score.best[1:]}: no difference, {mean:.1f} % with all."
    unknown = [lead for lead in ahead if np.isnan(lead.deviation)]
    if unknown:
        return (
            f"{opening}, ahead of {_listed(ahead)}{unit}; with one seed it cannot be told how much of this is chance."
        )
    clear, within = [x for x in ahead if x.is_clear], [x for x in ahead if not x.is_clear]
    if not clear:
        return (
            f"{score.best[0].upper()}{score.best[1:]}: no clear difference. {best} is ahead with {mean:.1f} %, but its "
            f"lead over {_listed(within)}{unit} lies within the spread over seeds."
        )
    text = f"{opening}: it is ahead of {_listed(clear)}{unit}, beyond the spread over seeds"
    return f"{text}; its lead over {_listed(within)} lies within that spread." if within else f"{text}."


def _listed(ahead: Sequence[Lead]) -> str:
    words = [str(lead) for lead in ahead]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
