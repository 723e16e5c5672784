"""What the sampled devices reported, round by round: one row a device and round."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray
Columns = dict[str, Array]


class RoundReport(NamedTuple):
    """One round's reports, in ascending order of devices."""

    round: int
    devices: Array
    examples: Array
    values: Array
    """(devices, names): the diagnostics"""


class Diagnostics:
    """All rounds' reports. A round only adds its arrays; columns are made when somebody asks for them."""

    def __init__(self, columns: Columns | None = None) -> None:
        """`columns` are those of an earlier part of the run."""
        self.names: tuple[str, ...] = ()
        self._before = columns or {}
        self._reports: list[RoundReport] = []

    def add(self, names: tuple[str, ...], report: RoundReport) -> None:
        """Keep one round's reports."""
        self.names = names
        self._reports.append(report)

    @property
    def last(self) -> RoundReport:
        """The latest round's, before columns were made of it."""
        return self._reports[-1]

    def columns(self) -> Columns:
        """Everything so far."""
        if self._reports:
            new = self._new_columns()
            self._before = {name: np.concatenate([self._before.get(name, a[:0]), a]) for name, a in new.items()}
            self._reports.clear()
        return self._before

    def _new_columns(self) -> Columns:
        parts = self._reports
        lengths = np.asarray([len(part.devices) for part in parts])
        begins = np.cumsum(lengths) - lengths
        examples = np.concatenate([part.examples for part in parts])
        info = dict(zip(self.names, np.concatenate([part.values for part in parts]).T, strict=True))
        weight = info.pop("weight")
        total = np.repeat(np.add.reduceat(weight, begins), lengths)
        evenly = np.repeat(1 / lengths, lengths)
        return {
            "round": np.repeat([part.round for part in parts], lengths),
            "device": np.concatenate([part.devices for part in parts]),
            "examples": examples,
            **{name: np.ascontiguousarray(column) for name, column in info.items()},
            "coefficient": np.divide(weight, total, out=evenly, where=total > 0),
            "coefficient_by_examples": examples / np.repeat(np.add.reduceat(examples, begins), lengths),
        }
