"""A run's live history: a file in its folder that grows with the run, for those who look on while it goes.

`live.jsonl` holds a line of JSON for each round, and one when a process begins and ends its work on the run. It is only
appended to, and written about once a second, so it costs a run next to nothing; nothing is computed from it. A run that
goes back to its checkpoint after a crash writes some rounds again: the later lines count. The process that runs holds a
lock on the file, so that a run whose process was killed is not taken for a running one.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from fedbc import storage
from fedbc.errors import InputError, Notice
from fedbc.runs.lines import State
from fedbc.runs.outcome import Observer, Outcome
from fedbc.simulation.result import RunFolder
from fedbc.simulation.rounds import Simulation

WRITE_SECONDS = 1.0
_LOCK_SECONDS = 2.0  # a watcher holds the lock for a moment now and then

Row = dict[str, Any]


@contextlib.contextmanager
def recorded(folder: RunFolder, rounds: int, *, every: int | None = None) -> Iterator[Callable[[Row], None]]:
    """Record something of `rounds` rounds while it goes: call the result with each row of history.

    Every so many rounds, when checkpoints are due, what was recorded is written whatever the time.
    """
    record = _Record(folder, every, rounds)
    state, why = State.FAILED, ""
    try:
        yield record.row
        state = State.FINISHED
    except KeyboardInterrupt as error:  # Interrupted is one
        state, why = State.STOPPED, str(error)
        raise
    except Exception as error:
        why = str(error) or type(error).__name__
        raise
    finally:
        record.end(state, why)


class Recording(Observer):
    """Records a run in its folder's live history."""

    def __init__(self, folder: RunFolder, every: int) -> None:
        self._folder, self._every = folder, every

    def begin(self, run: Simulation, rounds: int) -> None:
        """Take the folder; an InputError if another process has it."""
        self._record = _Record(self._folder, self._every, rounds)

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Record it."""
        self._record.row(row)

    def end(self, outcome: Outcome) -> None:
        """Say how it ended."""
        # A divergence is a failure to those who look on.
        self._record.end(State.FAILED if outcome.state is State.DIVERGED else outcome.state, outcome.why)


class _Record:
    def __init__(self, folder: RunFolder, every: int | None, rounds: int) -> None:
        self.path, self.every = folder.live, every
        self.waiting: list[str] = []
        self.file: IO[bytes] | None = None
        self.written_at = 0.0
        self.held = contextlib.ExitStack()
        with self._guarded():
            if folder.path.is_dir():
                taken = f"{folder.path} is being run by another process: wait for it, or stop it first"
                self.held.enter_context(storage.hold(self.path, taken, seconds=_LOCK_SECONDS))
            self.file = self.path.open("a+b")
            storage.drop_torn_line(self.file)
        self.event(begin=time.time(), rounds=rounds)

    def end(self, state: State, why: str) -> None:
        self.event(end=time.time(), state=state, why=why)
        self.close()

    def row(self, row: Mapping[str, Any]) -> None:
        self.waiting.append(json.dumps({k: _finite(v) for k, v in row.items()}))
        due = self.every is not None and row["round"] % self.every == 0
        if due or time.monotonic() - self.written_at >= WRITE_SECONDS:
            self.write()

    def event(self, **fields: Any) -> None:
        self.waiting.append(json.dumps(fields))
        self.write()

    def write(self) -> None:
        if self.file is None:
            return
        with self._guarded():
            self.file.write("".join(f"{line}\n" for line in self.waiting).encode())
            self.file.flush()
        self.waiting.clear()
        self.written_at = time.monotonic()

    def close(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):
                self.file.close()
        self.held.close()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """What cannot be recorded is no reason to stop a run."""
        try:
            yield
        except InputError:
            raise
        except OSError as error:
            self.close()
            self.file = None
            said = f"{self.path} cannot be written ({error.strerror}): the run goes on without"
            warnings.warn(said, Notice, stacklevel=2)


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not a finite number is null."""
    return value if not isinstance(value, float) or math.isfinite(value) else None


class Follower:
    """Reads a live history as it grows, only what is new each time."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.live
        self._anew()

    def _anew(self) -> None:
        self.rows: list[Row] = []
        """one per round, the last one that was written"""
        self.begun: Row = {}
        """the last process's first line: `begin` (a time) and `rounds`"""
        self.ended: Row | None = None
        """its last line: `end` (a time), `state`, `why`; None while it runs"""
        self._offset = 0
        self._file: int | None = None

    def refresh(self) -> bool:
        """Read on; whether there is a live history."""
        try:
            with self.path.open("rb") as file:
                number = self.path.stat().st_ino
                if number != self._file or file.seek(0, 2) < self._offset:  # another run took the folder
                    self._anew()
                    self._file = number
                file.seek(self._offset)
                text = file.read()
        except OSError:
            self._anew()
            return False
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):  # cut off when a process was killed
                self._take(json.loads(line))
        return True

    def _take(self, line: Any) -> None:
        if not isinstance(line, dict):
            return
        if "begin" in line:
            self.begun, self.ended = line, None
        elif "end" in line:
            self.ended = line
        elif isinstance(line.get("round"), int):
            while self.rows and self.rows[-1]["round"] >= line["round"]:
                self.rows.pop()
            self.rows.append(line)

    @property
    def state(self) -> State:
        """running, finished, stopped or failed."""
        if self.ended is None:
            if storage.is_held(self.path):
                return State.RUNNING
            self.refresh()  # it may have ended since it was read
        return State.STOPPED if self.ended is None else State(self.ended.get("state", State.STOPPED))

    @property
    def why(self) -> str:
        """Why a run stopped or failed."""
        if self.state is State.STOPPED and self.ended is None:
            return "its process was killed"
        return str(self.ended.get("why", "")) if self.ended is not None else ""


def read_rows(folder: RunFolder) -> list[Row]:
    """The rounds that a folder's live history holds."""
    follower = Follower(folder)
    follower.refresh()
    return follower.rows
