"""What all trackers share: when they open and close, that a resumed run goes on in its tracker run, and that a tracker
which fails does not take the run with it."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from fedbc import storage
from fedbc.errors import InputError, Notice

MEMORY = "trackers.json"
"""The file of a run folder that says in which tracker runs its history is."""

Identity = dict[str, str]
Scalars = dict[str, float]


class TrackerWarning(Notice):
    """A tracker that failed; the run goes on without it."""


class Tracker(ABC):
    """Follows one run: pass it to `simulate` as `on_round`, within `with`, or let `fedbc run` do so.

    name: what the tracker calls the run.
    config: the specification, as nested tables; its values become hyper-parameters.
    memory: the run's folder. A run that is resumed with the same folder goes on in the same tracker run.
    """

    label: ClassVar[str]
    module: ClassVar[str]
    """the library, which is imported when the tracker is made"""
    extra: ClassVar[str]
    """the extra of fedbc's that brings it"""

    def __init__(
        self, name: str = "run", config: Mapping[str, Any] | None = None, memory: str | Path | None = None
    ) -> None:
        self.name, self.config = name, dict(config or {})
        self.memory = Path(memory) if memory is not None else None
        self._status = "new"
        self._last = 0
        """the last round that the tracker has"""
        self.library = self._imported()

    @property
    @abstractmethod
    def target(self) -> str:
        """Where it writes to, without secrets; with the label, what `memory` finds the tracker run by."""

    @abstractmethod
    def _open(self, known: Identity | None, first: int) -> tuple[Identity, int]:
        """Go on in the tracker run that is known, or begin one, for rows from round `first` on.

        Gives what identifies it, and the last round that it holds already.
        """

    @abstractmethod
    def _log(self, number: int, scalars: Scalars) -> None:
        """Write a round's columns."""

    @abstractmethod
    def _close(self, summary: Mapping[str, Any], state: str) -> None:
        """Write the summary, and say how the run ended: finished, stopped or failed."""

    @abstractmethod
    def check(self) -> None:
        """Raise an InputError if the tracker cannot be used at all; before a run, because later that is a warning."""

    @property
    def remembered(self) -> bool:
        """Whether the run's folder says that this run has a tracker run there."""
        return self._key in _remembered(self.memory)

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Write a row of history; the first one opens the tracker run."""
        with self._guarded():
            if self._status == "new":
                self._begin(row["round"])
            if self._status == "open" and row["round"] > self._last:
                self._last = row["round"]
                self._log(row["round"], finite(row))

    def replay(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write earlier rounds that the tracker has not: those of a run that was begun without it."""
        rows = list(rows)
        if rows and self._status == "new":
            with self._guarded():
                self._begin(int(rows[-1]["round"]) + 1)
        for row in rows:
            self(row)

    def finish(self, summary: Mapping[str, Any] | None = None, state: str = "finished") -> None:
        """Close the tracker run; nothing more can be written to it."""
        if self._status == "open":
            with self._guarded():
                self._close(dict(summary or {}), state)
        self._status = "closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.finish(state="finished" if kind is None else "stopped" if stopped else "failed")

    def _begin(self, first: int) -> None:
        kept = _remembered(self.memory)
        identity, self._last = self._open(kept.get(self._key), first)
        self._status = "open"
        if self.memory is not None:
            storage.write_atomically(self.memory / MEMORY, storage.to_json(kept | {self._key: identity}))

    @property
    def _key(self) -> str:
        return f"{self.label} {self.target}"

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a tracker's library can raise
            self._status = "closed"
            said = f"{self.label} ({self.target}) failed, the run goes on without it: {in_short(error)}"
            warnings.warn(said, TrackerWarning, stacklevel=4)

    def _imported(self) -> Any:
        try:
            return importlib.import_module(self.module)
        except ImportError:
            raise InputError(f"{self.label} needs its library: pip install 'fedbc[{self.extra}]'") from None


def in_short(error: Exception) -> str:
    """An error's first line; libraries add queries and traces to it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with names such as `algorithm.lr`."""
    values: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def finite(row: Mapping[str, Any]) -> Scalars:
    """A row's numbers; rounds that were not evaluated lack some."""
    return {
        k: float(v) for k, v in row.items() if k != "round" and isinstance(v, int | float) and math.isfinite(float(v))
    }


def _remembered(folder: Path | None) -> dict[str, Identity]:
    if folder is None or not (folder / MEMORY).exists():
        return {}
    try:
        return dict(json.loads((folder / MEMORY).read_text()))
    except ValueError:
        raise InputError(f"{folder / MEMORY} is damaged: remove it to begin new tracker runs") from None
