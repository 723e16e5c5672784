"""The rows of a table behind narwhals: its columns as numbers or as words, checked."""

from __future__ import annotations

import numbers
import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from fedbc.errors import InputError, unknown

Array = np.ndarray

_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)*(e[+-]?\d+)?\s*%?|[+-]?[.,]\d+", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d\b.*|\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d\d)\b.*")


class Rows:
    """A table, its columns checked."""

    def __init__(self, what: str, frame: Any) -> None:
        self.what, self.frame = what, frame

    @classmethod
    def of(cls, what: str, frame: Any) -> Rows:
        """The rows of a frame of pandas, Polars, PyArrow or another library that narwhals reads."""
        import narwhals as nw  # not at the top: whose data are arrays does without

        try:
            rows = nw.from_native(frame, eager_only=True)
        except TypeError:
            raise InputError(
                f"{what} of type {type(frame).__name__} is not accepted: give a frame of pandas, Polars or PyArrow"
            ) from None
        except ValueError as error:  # two columns of one name
            raise InputError(f"{what} is not accepted: {' '.join(str(error).split())}") from None
        odd = [name for name in rows.columns if not isinstance(name, str)]
        if odd:
            raise InputError(f"{what} has a column called {odd[0]!r}, which is not text: rename it")
        if len(rows) == 0:
            raise InputError(f"{what} has no rows")
        return cls(what, rows)

    @property
    def names(self) -> list[str]:
        """What the columns are called."""
        return list(self.frame.columns)

    def need(self, name: str) -> Any:
        """A column; one that is not there is an InputError."""
        if name not in self.names:
            raise unknown(f"{self.what}: column", name, self.names)
        return self.frame[name]

    def is_numeric(self, name: str) -> bool:
        """Whether a column's type is a number's."""
        return bool(self.frame.schema[name].is_numeric())

    def numbers(self, name: str) -> Array:
        """A column as float64, NaN for what is missing; a word is an InputError that says where."""
        import narwhals as nw

        column = self.need(name)
        if self.is_numeric(name):
            values = np.asarray(column.cast(nw.Float64).to_numpy(), float)
        else:
            values = self._numbers_of_objects(name)
        if np.isinf(values).any():
            row = int(np.flatnonzero(np.isinf(values))[0])
            raise InputError(f"{self.what}: column {name!r} has an infinite value in row {row}: all must be finite")
        return values

    def _numbers_of_objects(self, name: str) -> Array:
        values = self._values(name)
        odd = [i for i, v in enumerate(values) if v is not None and not _is_number(v)]
        if odd:
            row = next((i for i in odd if not (isinstance(values[i], str) and _NUMBER.fullmatch(values[i]))), odd[0])
            raise InputError(
                f"{self.what}: column {name!r} holds numbers, but has {values[row]!r} in row {row}"
                f"{' as text' if isinstance(values[row], str) else ''}: give a number, or nothing where it is not known"
            )
        return np.asarray([np.nan if v is None else float(v) for v in values], float)

    def _values(self, name: str) -> list[Any]:
        """A column's values as they are, None for what is missing."""
        lacking = self.need(name).is_null().to_list()
        return [None if gone else v for v, gone in zip(self.frame[name].to_list(), lacking, strict=True)]

    def kinds(self, name: str) -> Array:
        """A column as words, None for what is missing. Letters that look the same are the same, however composed."""
        import narwhals as nw

        column, kind = self.need(name), self.frame.schema[name]
        words: list[str | None]
        if kind.is_numeric() and not kind.is_integer():
            # Whole numbers beside a gap are fractions to pandas; 2.0 is clinic 2.
            whole = self.numbers(name)
            words = [
                None if w != w else str(int(w)) if w == int(w) else str(v)
                for w, v in zip(whole.tolist(), column.to_numpy(), strict=True)
            ]
        elif kind.is_temporal():
            gone = column.is_null().to_list()
            words = [None if g else v for g, v in zip(gone, column.cast(nw.String).to_list(), strict=True)]
        else:
            words = self._texts(name)
        out = np.empty(len(words), object)
        out[:] = words
        return out

    def _texts(self, name: str) -> list[str | None]:
        return [None if v is None else unicodedata.normalize("NFC", str(v)) for v in self._values(name)]

    def words(self, name: str, role: str) -> Array:
        """A column as words none of which is missing, and no two of which look alike."""
        values = self.kinds(name)
        lacking = [i for i, v in enumerate(values) if v is None or not v.strip()]
        if lacking:
            raise InputError(
                f"{self.what}: the {role}'s column {name!r} is empty in {len(lacking)} of {len(values)} rows, first in "
                f"row {lacking[0]}: every row needs one (NA, None and null count as empty in a file)"
            )
        alike = defaultdict(set)
        for value in set(values):
            if any(ord(letter) < ord(" ") for letter in value):
                raise InputError(f"{self.what}: the {role}'s column {name!r} has {value!r}: leave the line break out")
            alike[looks(value)].add(value)
        for same in alike.values():
            if len(same) > 1:
                raise InputError(
                    f"{self.what}: the {role}'s column {name!r} has {sorted(same)}, which differ only by case or "
                    "spaces, or in how a number is written: write them alike"
                )
        return values

    def columns(
        self, names: Sequence[str], categorical: Sequence[str], as_words: Mapping[str, bool] | None = None
    ) -> dict[str, Array]:
        """Features: numbers as float64, words as objects.

        as_words: of each column, whether its values are words, where that is known already.
        """
        found = {}
        for name in names:
            self.need(name)
            known = as_words[name] if as_words is not None else True if name in categorical else self._is_words(name)
            found[name] = self.kinds(name) if known else self.numbers(name)
        return found

    def _is_words(self, name: str) -> bool:
        """Whether a column holds words, not numbers; one of which it cannot be told is an InputError."""
        import narwhals as nw

        kind = self.frame.schema[name]
        if kind.is_numeric():
            return False
        if kind == nw.Boolean or kind == nw.Categorical or isinstance(kind, nw.Enum) or kind == nw.Enum:
            return True
        values = [v for v in self._values(name) if v is not None]
        if not values:
            return False
        if kind == nw.String:
            self._refuse_numbers_as_text(name, values)
            return True
        if all(isinstance(v, bool | np.bool_) for v in values):  # to pandas, yes and no beside a gap are objects
            return True
        if all(_is_number(v) for v in values):
            return False
        shown = "several types" if kind in (nw.Object, nw.Unknown) else f"type {kind}"
        raise InputError(
            f"{self.what}: column {name!r} is of {shown}, not numbers or words: turn it into one of these, or leave it "
            f"out by drop={[name]!r}"
        )

    def _refuse_numbers_as_text(self, name: str, values: Sequence[str]) -> None:
        """One wrong word among numbers makes words of them all, of which each would become a column of its own."""
        different = sorted(set(values))
        dates = [v for v in different if _DATE.fullmatch(v.strip())]
        figures = [v for v in different if _NUMBER.fullmatch(v.strip()) and v not in dates]
        for found, what, otherwise in (
            (figures, "numbers", f"give numbers, or say categorical={[name]!r} if they stand for kinds"),
            (dates, "dates", f"turn them into numbers, such as days, or leave them out by drop={[name]!r}"),
        ):
            if 2 * len(found) > len(different):
                word = next((v for v in different if v not in found), different[0])
                row = self._values(name).index(word)
                raise InputError(
                    f"{self.what}: column {name!r} holds {what} as text ({word!r} in row {row}): {otherwise}"
                )


def natural(name: str) -> list[Any]:
    """Sorts clinic 2 before clinic 10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool | np.bool_)


def looks(word: str) -> Any:
    """What two words have in common that a reader would take for one: 007 and 7, North and north."""
    try:
        return float(word) if _NUMBER.fullmatch(word.strip()) and len(word) < 16 else " ".join(word.split()).casefold()
    except ValueError:
        return " ".join(word.split()).casefold()
