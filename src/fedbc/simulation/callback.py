"""What is called after each round: it sees the run so far, may add numbers to history, and may end the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbc.errors import InputError

if TYPE_CHECKING:
    from fedbc.simulation.result import Result

Row = dict[str, Any]
OnRound = Callable[..., Any]
"""Of a row of history, or of the row and a function that gives the result so far."""


def call(on_round: OnRound, row: Row, result: Callable[[], Result]) -> bool:
    """Call it with a round's row, which gets the numbers that it adds; whether the run is to end with this round."""
    shown = dict(row)
    answer = on_round(shown, result) if _takes_two(on_round) else on_round(shown)
    for name, value in shown.items():
        if name not in row:
            row[name] = _number(name, value)
        elif value is not row[name]:
            raise InputError(f"on_round changed {name!r} of history: it may add columns, under names of their own")
    return isinstance(answer, bool | np.bool_) and bool(answer)


def _takes_two(on_round: OnRound) -> bool:
    try:
        inspect.signature(on_round).bind(None, None)
    except (TypeError, ValueError):  # the latter of functions of C, which tell nothing
        return False
    return True


def _number(name: str, value: Any) -> float:
    if isinstance(value, str) or np.ndim(value) != 0:
        raise InputError(f"on_round added {name!r} of type {type(value).__name__} to history: give a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"on_round added {name!r} of type {type(value).__name__} to history: give a number") from None
