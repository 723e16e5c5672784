"""What a verdict on a claim is, and what all judges use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbc.paper.found import Found

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
    def shown(self) -> str:
        """The verdict in words."""
        return f"{self.verdict} so far" if self.so_far and self.verdict != NOT_RUN else self.verdict


Judge = Callable[[Found], Verdict]


def means(
    found: Found, experiment: str, keys: tuple[str, ...], seeds: set[int] | None = None, **setting: Any
) -> dict[str, float]:
    """Methods' mean accuracies in percent over seeds, all or some, of those that were run."""
    known = {k: found.mean(experiment, k, seeds=seeds, **setting) for k in keys}
    return {k: 100 * v for k, v in known.items() if v is not None}


def spread(values: np.ndarray, unit: str = " points", error: float | None = None) -> str:
    """Mean and range of differences in points, with the mean's standard error if that is known."""
    return f"{middle(values, error)}{unit} ({reach(values)})"


def middle(values: np.ndarray, error: float | None = None) -> str:
    """The mean alone."""
    return f"{values.mean():+z.1f}" + (f" ± {error:.1f}" if error is not None else "")


def reach(values: np.ndarray) -> str:
    """The range alone."""
    return f"{values.min():+z.1f} to {values.max():+z.1f}"
