"""How far a device's test examples can tell two models apart: paired intervals, and the advice that follows.

Where answers are right or wrong and there is one run, the interval of a difference in accuracy is exact. Only the
examples that one model answers rightly and the other wrongly tell them apart: of so many, the number in favour of one
is binomial (McNemar), its share has the interval of Clopper and Pearson, and the difference is (2 share - 1) times the
share of such examples. Several runs, and regression, take the bootstrap over examples, each with its mean over the runs
that were tested on it; the spread over runs is added to it, 1.96 s/√runs, as the root of the sum of squares.
The interval of the mean over devices is the bootstrap over devices, whose examples stay together.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
LEVEL = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Difference:
    """Of two models on the same examples."""

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def paired(a: Sequence[Array], b: Sequence[Array], examples: Sequence[Array] | None = None) -> Difference:
    """How much better a is than b, by what each gets for its test examples, run by run; larger is better.

    examples: which ones those are, where runs were tested on different ones; a number for each.
    """
    runs = [np.asarray(one, float) - np.asarray(other, float) for one, other in zip(a, b, strict=True)]
    if not len(runs[0]):
        return Difference(np.nan, np.nan, np.nan)
    if len(runs) == 1:
        (each,) = runs
        return _exact(each) if np.isin(each, (-1, 0, 1)).all() else bootstrapped(each)
    which = np.concatenate(examples if examples is not None else [np.arange(len(run)) for run in runs])
    _, number = np.unique(which, return_inverse=True)
    found = bootstrapped(np.bincount(number, np.concatenate(runs)) / np.bincount(number))
    mean, chance = np.mean([run.mean() for run in runs]), 1.96 * np.std([r.mean() for r in runs], ddof=1)
    below, above = (np.hypot(end - found.mean, chance / np.sqrt(len(runs))) for end in (found.low, found.high))
    return Difference(float(mean), float(mean - below), float(mean + above))


def _exact(each: Array) -> Difference:
    from scipy.special import betaincinv

    better, worse, n = int((each > 0).sum()), int((each < 0).sum()), len(each)
    tail, apart = (1 - LEVEL) / 2, better + worse
    if apart == 0:  # as many examples with equal answers leave so much room on either side
        room = 1 - tail ** (1 / n)
        return Difference(0.0, -room, room)
    low = betaincinv(better, worse + 1, tail) if better else 0.0
    high = betaincinv(better + 1, worse, 1 - tail) if worse else 1.0
    return Difference(*((share * apart / n) for share in (2 * better / apart - 1, 2 * low - 1, 2 * high - 1)))


def bootstrapped(each: Array, *, seed: int = 0) -> Difference:
    """Of a mean, over the entries."""
    each = np.asarray(each, float)
    if len(each) < 2:
        return Difference(float(each.mean()) if len(each) else np.nan, -np.inf, np.inf)
    draws = np.random.default_rng(seed).integers(0, len(each), (RESAMPLES, len(each)))
    means = each[draws].mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(float(each.mean()), float(low), float(high))


class Verdict(enum.StrEnum):
    """What a device should use."""

    OWN = "use your own"
    GLOBAL = "use the global model"
    UNCLEAR = "cannot tell"

    def words(self, examples: int) -> str:
        """With the reason, where it cannot be told."""
        if self is not Verdict.UNCLEAR:
            return str(self)
        return f"{self}: {examples} test example{'' if examples == 1 else 's'}"


def advise(difference: Difference, *, is_z: bool = False) -> Verdict:
    """What a device should use; `is_z`: it chose the global model by its own training examples."""
    if is_z or difference.high < 0:
        return Verdict.GLOBAL
    return Verdict.OWN if difference.low > 0 else Verdict.UNCLEAR
