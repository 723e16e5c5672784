"""What may be a mistake in a table, but cannot be known to be one: told in a line, not refused."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from fedbc.data.encoding import Array, Columns, Encoding, Numbers
from fedbc.data.federation import Split
from fedbc.data.rows import looks
from fedbc.errors import InputError, Notice

ENOUGH = 10
"""Of fewer rows nothing is said: small numbers are often in a row."""
FAR = 10.0
"""Deviations from the mean beyond which no value of training lies, unless it is wrong or in other units."""


def look_at_columns(columns: Columns, labels: Array, parts: Sequence[Array], classes: int) -> None:
    """Columns that number the rows or say the label, and words that differ by a space."""
    for name, values in columns.items():
        if values.dtype == object:
            _look_at_words(name, values)
        if values.dtype != object and _numbers_rows(values, parts):
            _tell(
                f"column {name!r} numbers the rows from {values.min():.0f} on, of which nothing can be learned: leave "
                f"it out by drop={[name]!r}"
            )
        elif classes and _says(values, labels, classes):
            _tell(
                f"column {name!r} says the label: each of its {classes} values stands for one class. If it is not "
                f"known where the model will be used, leave it out by drop={[name]!r}"
            )


def _look_at_words(name: str, values: Array) -> None:
    alike: dict[object, str] = {}
    for word in sorted({v for v in values.tolist() if v is not None}):
        other = alike.setdefault(looks(word), word)
        if other != word:
            _tell(
                f"column {name!r} has {other!r} and {word!r}: they count as different, write them alike if they are not"
            )


def _numbers_rows(values: Array, parts: Sequence[Array]) -> bool:
    """1000, 1001, 1002, … over all rows, or 0, 1, 2, … anew on each device, in whatever order."""
    if _in_a_row(values):
        return True
    return all(_in_a_row(values[part], least=1) and values[part].min() in (0, 1) for part in parts) and any(
        len(part) >= ENOUGH for part in parts
    )


def _in_a_row(values: Array, least: int = ENOUGH) -> bool:
    return len(values) >= least and bool((np.diff(np.sort(values)) == 1).all()) and float(values[0]).is_integer()


def _says(values: Array, labels: Array, classes: int) -> bool:
    known = [(v, y) for v, y in zip(values.tolist(), labels.tolist(), strict=True) if v is not None and v == v]
    different = {v for v, _ in known}
    return len(known) >= ENOUGH and len(different) == classes and len(set(known)) == classes


def look_at_test(train: Split, test: Split) -> None:
    """Rows to test on that were trained on; the training table itself is refused."""
    known = set(_marks(train))
    marks = _marks(test)
    again = sum(mark in known for mark in marks)
    if again == len(marks) and sorted(marks) == sorted(_marks(train)):
        raise InputError(
            "test is the table that is trained on: give other rows, or leave it out for test_share of them"
        )
    if 2 * again > len(marks):
        _tell(f"{again} of {len(marks)} rows to test on are rows that are trained on, too: accuracies will flatter")


def _marks(split: Split) -> list[tuple[int, bytes, bytes]]:
    owners = np.repeat(np.arange(len(split.sizes)), split.sizes)
    return [(int(o), x.tobytes(), y.tobytes()) for o, x, y in zip(owners, split.x, split.y, strict=True)]


def look_at_new_rows(encoding: Encoding, columns: Columns) -> None:
    """New rows that are unlike those of training: words that it never saw, gaps where it had none, other units."""
    for column in encoding.columns:
        values = columns[column.name]
        if isinstance(column, Numbers):
            _look_at_numbers(column, values)
            continue
        strange = [v for v in values.tolist() if v not in column.words]
        if strange:
            shown = "nothing" if strange[0] is None else repr(strange[0])
            known = ", ".join("nothing" if word is None else repr(word) for word in column.words[:5])
            _tell(
                f"column {column.name!r} has {shown} where training had {known}{', …' * (len(column.words) > 5)}: "
                f"{len(strange)} of {len(values)} rows count as none of these"
            )


def _look_at_numbers(column: Numbers, values: Array) -> None:
    gaps = np.isnan(values)
    if gaps.any() and not column.tells_missing:
        _tell(
            f"column {column.name!r} is empty in {gaps.sum()} of {len(values)} rows, but in none of training's: it "
            f"counts as the mean, {column.mean:g}"
        )
    far = np.abs(values[~gaps] - column.mean) > FAR * column.deviation
    if 2 * far.sum() > (~gaps).sum():
        _tell(
            f"column {column.name!r} is further than {FAR:g} deviations from training's mean, {column.mean:g}, in "
            f"{far.sum()} of {len(values)} rows, first {values[~gaps][far][0]:g}: is it in other units?"
        )


def _tell(words: str) -> None:
    warnings.warn(words, Notice, stacklevel=3)
