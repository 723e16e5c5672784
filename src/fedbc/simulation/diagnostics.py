"""What the sampled devices reported, round by round: one row per device and round."""

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
    names: tuple[str, ...]
    values: Array
    """(devices, names): the diagnostics"""

    def means(self) -> dict[str, float]:
        """The columns of history: NaN for what the devices do not tell."""
        means = dict(zip(self.names, self.values.mean(0).tolist(), strict=True))
        return {"drift": means.get("drift", np.nan), "local_loss": means.get("loss", np.nan)}


class Diagnostics:
    """All rounds' reports. A round only adds its arrays; columns are made when somebody asks for them."""

    def __init__(self, columns: Columns | None = None) -> None:
        """`columns` are those of an earlier part of the run."""
        self._before = columns or {}
        self._reports: list[RoundReport] = []

    def add(self, report: RoundReport) -> None:
        """Keep one round's reports."""
        self._reports.append(report)

    @property
    def last(self) -> RoundReport:
        """The latest round's, before columns were made of it."""
        return self._reports[-1]

    def columns(self) -> Columns:
        """Everything so far."""
        if self._reports:
            new = report_columns(self._reports)
            self._before = {name: np.concatenate([self._before.get(name, a[:0]), a]) for name, a in new.items()}
            self._reports.clear()
        return self._before


def report_columns(reports: list[RoundReport]) -> Columns:
    """One row per round and device. A coefficient is a share in the weights of its round; evenly, if all are 0."""
    lengths = np.asarray([len(report.devices) for report in reports])
    begins = np.cumsum(lengths) - lengths
    examples = np.concatenate([report.examples for report in reports])
    info = dict(zip(reports[0].names, np.concatenate([report.values for report in reports]).T, strict=True))
    weight = info.pop("weight", np.full(len(examples), np.nan))
    total = np.repeat(np.add.reduceat(weight, begins), lengths)
    evenly = np.repeat(1 / lengths, lengths)
    return {
        "round": np.repeat([report.round for report in reports], lengths),
        "device": np.concatenate([report.devices for report in reports]),
        "examples": examples,
        **{name: np.ascontiguousarray(column) for name, column in info.items()},
        "coefficient": np.divide(weight, total, out=evenly, where=(total > 0) | np.isnan(total)),
        "coefficient_by_examples": examples / np.repeat(np.add.reduceat(examples, begins), lengths),
    }
