"""The errors a user can meet, each with one line that says what to do."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from typing import Any


class FedBCError(Exception):
    """Base of all errors that fedbc raises on purpose; the command line prints them as one line."""


class InputError(FedBCError, ValueError):
    """An argument, a file or a data set that cannot be used: it names the argument, its value and what would do."""


class Diverged(FedBCError, ArithmeticError):
    """Training produced a value that is not finite. `result` holds the run up to the last good round."""

    def __init__(self, message: str, *, round: int, device: int | None, result: Any = None) -> None:
        super().__init__(message)
        self.round = round
        self.device = device
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process gets the words: the result is in the run's folder.
        return functools.partial(Diverged, str(self), round=self.round, device=self.device), ()


class RunsFailed(FedBCError, RuntimeError):
    """Some of many runs failed for another reason than divergence; the others are kept."""


class MachineLost(FedBCError, ConnectionError):
    """Another machine of the run died, or can no longer be reached."""


class DeviceError(FedBCError, RuntimeError):
    """Debug mode's error: it names the device, the round and the stage of local work that failed."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, raised after the running round was finished and kept. `result` holds the run so far."""

    def __init__(self, message: str, *, round: int, result: Any = None) -> None:
        super().__init__(message)
        self.round = round
        self.result = result


class Notice(UserWarning):
    """A warning of fedbc's, for people; the command line prints it as one line."""


def first_line(error: Exception) -> str:
    """Of what an error says; its kind, where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def unknown(what: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a list, with the nearest match if there is one."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name).lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    hint = ""
    if near:
        match = next(n for n in names if n.lower() == near[0])
        hint = f"; did you mean {match!r}?"
    return InputError(f"{what}={name!r} is unknown: choose one of {', '.join(names)}{hint}")
