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
from pathlib import Path
from typing import IO, Any

from fedbc import storage
from fedbc.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "live.jsonl"
WRITE_SECONDS = 1.0
_LOCK_SECONDS = 2.0  # a watcher holds the lock for a moment now and then

Row = dict[str, Any]
RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"


@contextlib.contextmanager
def recorded(folder: Path, rounds: int, *, every: int | None = None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Record a run of `rounds` rounds while it goes: call the result with each row of history.

    Every so many rounds, when checkpoints are due, what was recorded is written whatever the time.
    """
    record = _Record(folder / FILE, every)
    record.event(begin=time.time(), rounds=rounds)
    state, why = FAILED, ""
    try:
        yield record.row
        state = FINISHED
    except KeyboardInterrupt as error:  # Interrupted is one
        state, why = STOPPED, str(error)
        raise
    except Exception as error:
        why = str(error) or type(error).__name__
        raise
    finally:
        record.event(end=time.time(), state=state, why=why)
        record.close()


class _Record:
    def __init__(self, path: Path, every: int | None) -> None:
        self.path, self.every = path, every
        self.waiting: list[str] = []
        self.file: IO[bytes] | None = None
        self.written_at = 0.0
        with self._guarded():
            self.file = path.open("a+b")
            taken = f"{path.parent} is being run by another process: wait for it, or stop it first"
            storage.lock(self.file, taken, seconds=_LOCK_SECONDS)
            if self.file.tell() > 0:
                self.file.seek(-1, 2)
                if self.file.read(1) != b"\n":  # a line was cut off when a process was killed
                    self.file.write(b"\n")

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
            warnings.warn(f"{self.path} cannot be written ({error.strerror}): the run goes on without", stacklevel=2)


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not a finite number is null."""
    return value if not isinstance(value, float) or math.isfinite(value) else None


class Follower:
    """Reads a live history as it grows, only what is new each time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._anew()

    def _anew(self) -> None:
        self.rows: list[Row] = []
        """one a round, the last one that was written"""
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
    def state(self) -> str:
        """running, finished, stopped or failed."""
        if self.ended is None:
            if _held(self.path):
                return RUNNING
            self.refresh()  # it may have ended since it was read
        return STOPPED if self.ended is None else str(self.ended.get("state", STOPPED))

    @property
    def why(self) -> str:
        """Why a run stopped or failed."""
        if self.state == STOPPED and self.ended is None:
            return "its process was killed"
        return str(self.ended.get("why", "")) if self.ended is not None else ""


def _held(path: Path) -> bool:
    """Whether a process holds the lock; where there are no locks, whether the file was written of late."""
    try:
        with path.open("rb") as file:
            if fcntl is None:
                return time.time() - path.stat().st_mtime < 600
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def read_rows(folder: Path) -> list[Row]:
    """The rounds that a folder's live history holds."""
    follower = Follower(folder)
    follower.refresh()
    return follower.rows
