"""What a verdict on a claim is, and what all judges use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbc.paper.evidence import Evidence

CONFIRMED, PARTLY, NOT, NOT_RUN = VERDICTS = ("confirmed", "partly", "not confirmed", "not run")
RIVALS = ("fedavg", "qfedavg", "fedprox", "scaffold")
"""The paper's other methods, each as its authors define it."""
REFERENCE = {key: f"{key}-reference" for key in ("qfedavg", "scaffold", "fedbc")}
"""What stands for a method under the reference protocol, where that differs."""


@dataclass(frozen=True)
class Verdict:
    """A claim, what the results say of it, and where to see it."""

    claim: str
    verdict: str
    evidence: str
    see: tuple[str, ...]
    """names of tables and figures"""
    so_far: bool = False
    """whether runs that it rests on are missing, or settings of the claim that the budget leaves out"""

    @property
    def kind(self) -> str:
        """The class of its box on the page."""
        return {CONFIRMED: "confirmed", PARTLY: "partly", NOT: "not", NOT_RUN: "missing"}[self.verdict]

    @property
    def shown(self) -> str:
        """The verdict in words."""
        return f"{self.verdict} so far" if self.so_far and self.verdict != NOT_RUN else self.verdict


Judge = Callable[[Evidence], Verdict]


def means(
    found: Evidence, experiment: str, keys: tuple[str, ...], seeds: set[int] | None = None, **setting: Any
) -> dict[str, float]:
    """Methods' mean accuracies in percent over seeds, all or some, of those that were run."""
    known = {k: found.mean(experiment, k, seeds=seeds, **setting) for k in keys}
    return {k: 100 * v for k, v in known.items() if v is not None}


_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""What Student's t with so many degrees of freedom exceeds in 5 % of cases, either way."""


def is_clear(differences: Collection[float]) -> bool:
    """Whether the mean of paired differences is off 0 by a t-test at 5 %."""
    values = np.array(list(differences))
    if len(values) < 2:
        return False
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return bool(abs(values.mean()) > _T.get(len(values) - 1, 2.23) * error)


def spread(values: np.ndarray, unit: str = " points", error: float | None = None) -> str:
    """Mean and range of differences in points, with the mean's standard error if that is known."""
    return f"{middle(values, error)}{unit} ({reach(values)})"


def middle(values: np.ndarray, error: float | None = None) -> str:
    """The mean alone."""
    return f"{values.mean():+z.1f}" + (f" ± {error:.1f}" if error is not None else "")


def reach(values: np.ndarray) -> str:
    """The range alone."""
    return f"{values.min():+z.1f} to {values.max():+z.1f}"
