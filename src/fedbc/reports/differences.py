"""What differs between methods, in plain words, and whether it is more than seeds and finite test sets explain.

A difference has two errors. The seeds': its standard deviation over seeds, taken seed by seed where methods share them.
The test sets': they are samples, and other ones would give other numbers. That error is paired, for all methods answer
the same examples, and clustered by device, for a device's examples stand or fall together: with d_i the difference on
device i and w_i its share of the score,

    error² = D/(D - 1) Σ_i w_i² (d_i - d)²,    d = Σ_i w_i d_i,    over the D devices with test examples

w_i is 1/D for local accuracy, a mean over devices, and the device's share of the test examples for global accuracy.

Where the same data were split K times into training and test sets, the differences over splits say the same of both.
The splits share most of their examples, so that their spread s looks too small; the usual correction (Nadeau, Bengio)
makes the error of the mean s √(1/K + n_test/n_train). Of the two errors, by device and over splits, the larger counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fedbc.simulation.metrics import has_accuracy

BEYOND = 2.0
"""A difference within so many times its error is not clear."""


@dataclass(frozen=True)
class Score:
    """Something to compare by."""

    column: str
    best: str
    """what the leading method has"""
    unit: str
    factor: float
    higher_is_better: bool = True
    mean_unit: str = " %"
    digits: int = 1
    by_examples: bool | None = None
    """whether devices weigh by their test examples, or each the same; None where it is no mean over devices"""
    of_devices: str = ""
    """the column with the score of single devices, if it is called otherwise"""

    @property
    def visible(self) -> float:
        """Smaller differences are not seen in the numbers that are shown."""
        return 0.5 * 10.0**-self.digits

    def number(self, value: float) -> str:
        """As it is shown."""
        return f"{value:.{self.digits}f}"


SCORES = (
    Score("global_accuracy", "the most accurate global model", "points", 100, by_examples=True),
    Score("local_accuracy", "the most accurate local models", "points", 100, by_examples=False),
    Score("worst_decile_accuracy", "the best global model for the tenth of devices served worst", "points", 100),
)
LOSSES = (
    Score("global_test_loss", "the global model of lowest test loss", "", 1, False, "", 3, by_examples=True),
    Score("local_test_loss", "the local models of lowest test loss", "", 1, False, "", 3, by_examples=False),
)
"""For where answers are not right or wrong."""


@dataclass(frozen=True)
class Lead:
    """By how much the leading method is ahead of another."""

    other: str
    difference: float
    deviation: float
    """over seeds; NaN with one seed"""
    score: Score
    test_error: float = np.nan
    """from the finite test sets; NaN where it is not known"""
    split_error: float = np.nan
    """from the data's split into training and test sets; NaN with one split"""

    @property
    def error(self) -> float:
        """Of seeds and data together; NaN with a single run, which says nothing of chance in training."""
        if np.isnan(self.deviation) and np.isnan(self.split_error):
            return np.nan
        return float(np.hypot(np.nan_to_num(self.deviation), np.nanmax([0, self.test_error, self.split_error])))

    @property
    def is_clear(self) -> bool:
        """Whether it is beyond its error."""
        return abs(self.difference) > BEYOND * self.error

    def __str__(self) -> str:
        spread = "" if np.isnan(self.error) else f" ± {self.score.number(self.error)}"
        return f"{self.other} by {self.score.number(self.difference)}{spread}"


def sentences(
    runs: pd.DataFrame, names: Sequence[str], devices: pd.DataFrame | None = None, more: Sequence[Score] = ()
) -> list[str]:
    """A sentence or two a score; none where there is nothing to compare.

    devices: accuracies by method, run and device, for the error of the test sets.
    more: scores beside the usual ones.
    """
    scores = [*_usual(runs), *more]
    said = [_sentence(runs, names, score, devices) for score in scores if score.column in runs]
    return [s for s in said if s]


def _usual(runs: pd.DataFrame) -> tuple[Score, ...]:
    return SCORES if has_accuracy(runs) else LOSSES


def table(
    runs: pd.DataFrame, names: Sequence[str], devices: pd.DataFrame | None = None, more: Sequence[Score] = ()
) -> pd.DataFrame:
    """One row per score and method that is behind: the difference, its errors, and whether it is clear."""
    rows = []
    for score in (*_usual(runs), *more):
        found = leads(runs, names, score, devices) if score.column in runs else None
        rows += [_row(score, found[0], lead) for lead in found[2]] if found is not None else []
    return pd.DataFrame(rows)


def _row(score: Score, best: str, lead: Lead) -> dict[str, Any]:
    return {
        "score": score.column,
        "best": best,
        "other": lead.other,
        "difference": lead.difference,
        "seeds": lead.deviation,
        "test_sets": lead.test_error,
        "splits": lead.split_error,
        "error": lead.error,
        "verdict": _verdict(lead),
    }


def _verdict(lead: Lead) -> str:
    if np.isnan(lead.error):
        return "one seed: cannot be told"
    return "clear" if lead.is_clear else "no clear difference"


def leads(
    runs: pd.DataFrame, names: Sequence[str], score: Score, devices: pd.DataFrame | None = None
) -> tuple[str, float, list[Lead]] | None:
    """The best method, its mean, and its lead over each of the others; None if fewer than two have the score."""
    runs = runs if "split" in runs else runs.assign(split=0)
    values = {
        n: runs[runs["method"] == n].set_index(["seed", "split"])[score.column].dropna() * score.factor for n in names
    }
    values = {n: v for n, v in values.items() if len(v)}
    if len(values) < 2:
        return None
    best = max(values, key=lambda n: _sign(score) * values[n].mean())
    ratio = _test_to_train(devices)
    behind = [_lead(n, values[best], v, score, ratio) for n, v in values.items() if n != best]
    if devices is not None:
        behind = [replace(lead, test_error=error_of_test_sets(devices, best, lead.other, score)) for lead in behind]
    return best, values[best].mean(), behind


def error_of_test_sets(devices: pd.DataFrame, best: str, other: str, score: Score) -> float:
    """The error of a difference from the finite test sets, in the score's unit; NaN where it cannot be known."""
    column = score.of_devices or score.column
    if score.by_examples is None or not {column, "test_examples"} <= set(devices):
        return np.nan
    own = devices[devices["method"].isin([best, other])]
    table = own.pivot_table(column, "device", "method").dropna()  # the mean over runs
    if not {best, other} <= set(table) or len(table) < 2:
        return np.nan
    difference = (table[best] - table[other]).to_numpy() * score.factor
    weight = np.ones(len(table))
    if score.by_examples:
        weight = own.groupby("device")["test_examples"].first().loc[table.index].to_numpy(float)
    weight = weight / weight.sum()
    away = weight * (difference - weight @ difference)
    return float(np.sqrt(len(table) / (len(table) - 1) * np.sum(away**2)))


def _sign(score: Score) -> int:
    return 1 if score.higher_is_better else -1


def _test_to_train(devices: pd.DataFrame | None) -> float:
    """How many test examples there are for a training example; 1, which is much, where it is not known."""
    if devices is None or not {"examples", "test_examples"} <= set(devices):
        return 1.0
    return float(devices["test_examples"].sum() / devices["examples"].sum())


def _lead(other: str, best: pd.Series, own: pd.Series, score: Score, ratio: float) -> Lead:
    if sorted(best.index) == sorted(own.index):
        # A seed draws the same initial model, devices and batches for all methods: differences run by run.
        seeds, splits = _spreads(best - own, ratio)
    else:
        seeds, splits = np.hypot(_spreads(best, ratio), _spreads(own, ratio))
    difference = _sign(score) * (best.mean() - own.mean())
    return Lead(other, difference, float(seeds), score, split_error=float(splits))


def _spreads(values: pd.Series, ratio: float) -> tuple[float, float]:
    """Of the means of seeds their standard deviation, of those of splits the corrected error; NaN of a single one."""
    by_seed, by_split = (values.groupby(level=level).mean() for level in ("seed", "split"))
    return by_seed.std(ddof=1), by_split.std(ddof=1) * np.sqrt(1 / len(by_split) + ratio)


def _sentence(runs: pd.DataFrame, names: Sequence[str], score: Score, devices: pd.DataFrame | None) -> str:
    found = leads(runs, names, score, devices)
    if found is None:
        return ""
    best, mean, ahead = found
    unit = f" {score.unit}" if score.unit else ""
    level = f"{score.number(mean)}{score.mean_unit}"
    opening = f"{best} has {score.best} ({level})"
    if all(abs(lead.difference) < score.visible for lead in ahead):
        return f"{score.best[0].upper()}{score.best[1:]}: no difference, {level} with all."
    unknown = [lead for lead in ahead if np.isnan(lead.error)]
    if unknown:
        level_with = [lead.other for lead in ahead if abs(lead.difference) < score.visible]
        beyond = _listed([lead for lead in ahead if lead.other not in level_with])
        same = f", level with {_joined(level_with)}" if level_with else ""
        return f"{opening}{same}, ahead of {beyond}{unit}; with one seed it cannot be told how much of this is chance."
    spread, short = _error_in_words(ahead)
    clear, within = [x for x in ahead if x.is_clear], [x for x in ahead if not x.is_clear]
    if not clear:
        return (
            f"{score.best[0].upper()}{score.best[1:]}: no clear difference. {best} is ahead with {level}, but its "
            f"lead over {_listed(within)}{unit} lies within {spread}."
        )
    text = f"{opening}: it is ahead of {_listed(clear)}{unit}, beyond {spread}"
    return f"{text}; its lead over {_listed(within)} lies within {short}." if within else f"{text}."


def _error_in_words(ahead: Sequence[Lead]) -> tuple[str, str]:
    """What the errors of some leads are made of; and the same, said again."""
    sources = {
        "seeds": any(not np.isnan(lead.deviation) for lead in ahead),
        "splits": any(not np.isnan(lead.split_error) for lead in ahead),
        "finite test sets": any(not np.isnan(lead.test_error) for lead in ahead),
    }
    known = [source for source, is_known in sources.items() if is_known]
    if known == ["seeds"]:
        return "the spread over seeds", "that spread"
    *most, last = known
    return (f"the error from {', '.join(most)} and {last}" if most else f"the error from {last}"), "that error"


def _listed(ahead: Sequence[Lead]) -> str:
    return _joined([str(lead) for lead in ahead])


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
