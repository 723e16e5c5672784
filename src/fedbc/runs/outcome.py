"""How a run ends, and who looks on while it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedbc import runtime
from fedbc.errors import Diverged
from fedbc.runs.lines import Line, State
from fedbc.runs.spec import RunSpec
from fedbc.simulation.result import Result
from fedbc.simulation.rounds import Simulation

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    spec: RunSpec
    state: State
    seconds: float
    result: Result | None = None
    """of a run that diverged or was stopped: up to its last good round"""
    error: BaseException | None = None

    @property
    def why(self) -> str:
        """Why it did not finish, in words."""
        return "" if self.error is None else str(self.error) or type(self.error).__name__

    def finished(self) -> Result:
        """The result; a run that did not finish raises its error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def line(self) -> Line:
        """As a line of results."""
        line: Line = {"hash": self.spec.identity, "spec": self.spec.to_dict()}
        if self.error is not None:
            line["error"] = f"{type(self.error).__name__}: {self.error}"
        elif self.result is not None:
            line["summary"] = self.result.summary()
        if isinstance(self.error, Diverged):
            line["diverged"] = self.error.round
        return line | {"seconds": self.seconds, "versions": runtime.versions()}


class Observer:
    """Looks on at a run; what is of no interest is left out."""

    def begin(self, run: Simulation, rounds: int) -> None:
        """The run begins, or goes on after `run.round` rounds."""

    def on_round(self, row: Row) -> None:
        """A round is done."""

    def end(self, outcome: Outcome) -> None:
        """The run has ended, in whatever way. Observers end in the opposite order of their beginning."""


@dataclass(frozen=True)
class CallEachRound(Observer):
    """Calls a function with each row of history."""

    function: Callable[[Row], object]

    def on_round(self, row: Row) -> None:
        """Call it."""
        self.function(row)
