"""How the columns of a table become numbers: a rule that is made federatedly, kept with the model, and used again.

Each device adds to a few sums over its own training rows: of each numeric column how many values there are, their sum
and, when the mean is known, their squared distances from it; of each column of words how often each word occurs. From
the sums of all devices comes one rule for all. No row leaves its device, and no test row takes part.

A number becomes (value − mean) / deviation. A missing number becomes the mean, which is 0, and a column of its own says
that it was missing, if any training row lacked it. A column of words becomes one column of zeros and ones for each
word; a missing word counts as a word of its own, and one that training never saw as none of them.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedbc.errors import InputError

Array = np.ndarray
Columns = Mapping[str, Array]
"""A table's columns: numbers as float64 with NaN for what is missing, words as objects with None."""

MOST_WORDS = 100
"""A column with more different words is taken for text or an identifier, of which nothing can be learned this way."""


@dataclass(frozen=True)
class Numbers:
    """A numeric column, standardised."""

    name: str
    mean: float
    deviation: float
    tells_missing: bool

    @property
    def features(self) -> list[str]:
        """What its columns of the model's input are called."""
        return [self.name, f"{self.name} is missing"] if self.tells_missing else [self.name]

    def encode(self, values: Array) -> Array:
        """Its columns of the model's input."""
        missing = np.isnan(values)
        standard = np.where(missing, 0, (values - self.mean) / self.deviation)[:, None]
        return np.hstack([standard, missing[:, None]]) if self.tells_missing else standard


@dataclass(frozen=True)
class Words:
    """A column of words, each a column of zeros and ones; None stands for a missing one."""

    name: str
    words: tuple[str | None, ...]

    @property
    def features(self) -> list[str]:
        """What its columns of the model's input are called."""
        return [f"{self.name} is missing" if word is None else f"{self.name} = {word}" for word in self.words]

    def encode(self, values: Array) -> Array:
        """Its columns of the model's input."""
        place = {word: i for i, word in enumerate(self.words)}
        out = np.zeros((len(values), len(self.words)))
        found = np.asarray([place.get(value, -1) for value in values], int)
        rows = np.flatnonzero(found >= 0)
        out[rows, found[rows]] = 1
        return out


@dataclass(frozen=True)
class Encoding:
    """How a table becomes a model's input, and what its label and its devices' column are called."""

    columns: tuple[Numbers | Words, ...]
    label: str
    device: str

    @property
    def features(self) -> list[str]:
        """The columns of the model's input."""
        return [feature for column in self.columns for feature in column.features]

    def encode(self, columns: Columns) -> Array:
        """The model's input for some rows."""
        return np.hstack([column.encode(columns[column.name]) for column in self.columns])

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, table: Mapping[str, Any]) -> Encoding:
        """What `to_plain` gave."""
        columns = tuple(Words(c["name"], tuple(c["words"])) if "words" in c else Numbers(**c) for c in table["columns"])
        return cls(columns, table["label"], table["device"])


@dataclass(frozen=True)
class Sums:
    """What one device, or several together, tell of their numeric columns."""

    count: Array
    total: Array

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.total + other.total)


def sums(values: Array) -> Sums:
    """Of one device's rows: how many values each column has, and their sum; missing values do not count."""
    return Sums(np.sum(~np.isnan(values), axis=0), np.nansum(values, axis=0))


def fit(parts: Sequence[Columns], label: str, device: str) -> Encoding:
    """One rule for all from each device's training rows; what devices tell are sums only."""
    kinds = {name: values.dtype == object for name, values in parts[0].items()}
    numeric = [name for name, are_words in kinds.items() if not are_words]
    numbers = dict(zip(numeric, _fit_numbers(parts, numeric), strict=True))
    rule = tuple(_fit_words(parts, name) if kinds[name] else numbers[name] for name in kinds)
    return Encoding(rule, label, device)


def _fit_numbers(parts: Sequence[Columns], names: list[str]) -> list[Numbers]:
    if not names:
        return []
    matrices = [np.stack([part[name] for name in names], axis=1) for part in parts]
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        first = functools.reduce(operator.add, (sums(matrix) for matrix in matrices))
        mean = first.total / np.maximum(first.count, 1)
        # A second sum, about the mean that is now known: squares about 0 would lose all digits of, say, a year.
        second = functools.reduce(operator.add, (sums((matrix - mean) ** 2) for matrix in matrices))
        deviation = np.sqrt(second.total / np.maximum(second.count, 1))
    rows = sum(map(len, matrices))
    for name, count, spread in zip(names, first.count, deviation, strict=True):
        if count == 0:
            raise _has_no_values(name)
        if not np.isfinite(spread):
            raise InputError(f"column {name!r} has numbers too large to be computed with: scale it, or leave it out")
    deviation = np.where(deviation > 0, deviation, 1)  # the same value everywhere: all zeros, whatever we divide by
    return [
        Numbers(name, float(m), float(d), bool(count < rows))
        for name, m, d, count in zip(names, mean, deviation, first.count, strict=True)
    ]


def _fit_words(parts: Sequence[Columns], name: str) -> Words:
    counts = functools.reduce(operator.add, (collections.Counter(part[name].tolist()) for part in parts))
    words = sorted(word for word in counts if word is not None)
    if not words:
        raise _has_no_values(name)
    if len(words) > MOST_WORDS:
        raise InputError(
            f"column {name!r} has {len(words)} different words, as a text or an identifier has: leave it out by "
            f"drop={[name]!r}, or give it as fewer kinds"
        )
    return Words(name, (*words, None) if None in counts else tuple(words))


def _has_no_values(name: str) -> InputError:
    return InputError(f"column {name!r} has no values in the training rows: leave it out by drop={[name]!r}")
