"""When a run ends before its last round: a target accuracy, no improvement for so many rounds, a time budget.

What is watched is z's accuracy as the run measures it (for models without one, z's loss): on validation data with
`validation`, else on the test sets. A run that ends on test data has chosen its length on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fedbc import checks
from fedbc.errors import InputError

COLUMN = "ended"
"""Of history; it says in the last row why the run ended."""


class Reason(StrEnum):
    """Why a run ended."""

    ROUNDS = "rounds"
    TARGET = "target_accuracy"
    PATIENCE = "patience"
    TIME = "time_budget"
    CALLBACK = "on_round"


@dataclass(frozen=True)
class Ending:
    """When to end; None never does."""

    target_accuracy: float | None = None
    patience: int | None = None
    """rounds without improvement"""
    time_budget: float | None = None
    """seconds"""

    def __post_init__(self) -> None:
        if self.target_accuracy is not None:
            checks.number("target_accuracy", self.target_accuracy, above=0, at_most=1)
        if self.patience is not None:
            checks.integer("patience", self.patience, at_least=1)
        if self.time_budget is not None:
            checks.number("time_budget", self.time_budget, above=0)

    @property
    def is_given(self) -> bool:
        """Whether a run may end early."""
        return self != Ending()

    def check(self, evaluate: Sequence[str], *, accuracy: bool) -> None:
        """Raise an InputError if what is watched is not measured."""
        for name in ("target_accuracy", "patience"):
            if getattr(self, name) is not None and "global" not in evaluate:
                raise InputError(
                    f"{name}={getattr(self, name)} needs 'global' in evaluate: the global model is watched"
                )
        if self.target_accuracy is not None and not accuracy:
            raise InputError(
                f"target_accuracy={self.target_accuracy} needs a model with an accuracy: this one has none"
            )

    def reason(self, history: Sequence[dict[str, Any]], *, late: bool) -> Reason | None:
        """Why to end after these rounds, `late` when time is over; a run ends with a round that is evaluated only."""
        measured = [(row["round"], _score(row)) for row in history if "global_test_loss" in row]
        if not measured or measured[-1][0] != history[-1]["round"]:
            return None
        if self.target_accuracy is not None and measured[-1][1] >= self.target_accuracy:
            return Reason.TARGET
        best = max(measured, key=lambda pair: pair[1])[0]  # the first of equals
        if self.patience is not None and history[-1]["round"] - best >= self.patience:
            return Reason.PATIENCE
        return Reason.TIME if late else None

    def is_over_time(self, history: Sequence[dict[str, Any]]) -> bool:
        """Whether the rounds took all the time there was."""
        return self.time_budget is not None and sum(row["seconds"] for row in history) >= self.time_budget


def _score(row: dict[str, Any]) -> float:
    return float(row["global_accuracy"] if "global_accuracy" in row else -row["global_test_loss"])
