"""Results as a file that grows: one line of JSON per run, whole or not there at all."""

from __future__ import annotations

import contextlib
import enum
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedbc import storage
from fedbc.errors import Diverged, InputError
from fedbc.runs.spec import identity

Line = dict[str, Any]
"""One line of results: hash, spec, seconds, and summary or error."""


class State(enum.StrEnum):
    """How far a run is, or how it ended."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    DIVERGED = "diverged"


def state_of(line: Line) -> State:
    """How the run of a line of results ended."""
    if "summary" in line:
        return State.FINISHED
    # Lines from before there was `diverged` say it by the kind of their error.
    kind, _, _ = str(line.get("error", "")).partition(":")
    return State.DIVERGED if "diverged" in line or kind == Diverged.__name__ else State.FAILED


def is_result(line: Line) -> bool:
    """Whether a line counts: a divergence is a result, what failed for another reason is run again."""
    return state_of(line) is not State.FAILED


def key_of(line: Line) -> str:
    """What a line is found by: its specification's identity, or the hash that it states where it has none."""
    return identity(line["spec"]) if "spec" in line else str(line["hash"])


class Lines:
    """A results file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Line]:
        """Its lines by key; a last one that was cut off in writing is passed over."""
        if not self.path.exists():
            return {}
        lines: dict[str, Line] = {}
        texts = self.path.read_text().splitlines()
        for number, text in enumerate(texts, 1):
            try:
                line = json.loads(text)
                lines[key_of(line)] = line
            except (ValueError, KeyError, TypeError, AttributeError):
                if number < len(texts):
                    raise InputError(f"{self.path} is damaged in line {number}: it is not a result") from None
        return lines

    def append(self, line: Line) -> None:
        """Add a line, for good once this returns; one that was cut off before gives way."""
        text = json.dumps(storage.plain(line), allow_nan=False)
        with storage.explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                storage.drop_torn_line(file)
                file.write(text.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def forget(self, keys: Collection[str]) -> None:
        """Take lines out, so that their runs are run again."""
        kept = [json.dumps(line) for key, line in self.read().items() if key not in keys]
        storage.write_atomically(self.path, "".join(text + "\n" for text in kept))

    def reserve(self) -> contextlib.AbstractContextManager[None]:
        """Keep the file to this process; an InputError if another one writes it."""
        return storage.hold(
            self.path, f"{self.path} is being written by another process: wait for it, or stop it first"
        )
