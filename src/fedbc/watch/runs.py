"""What a run's folder tells about it at a moment: simulated or deployed, running or over."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open

from fedbc.runs import RunFolder, State, deployed, live

RECENT = 20
"""Rounds that the pace is judged by."""
DEVICE_COLUMNS = ("round", "device", "multiplier", "tolerance", "drift", "coefficient")
NOT_BEGUN, NOT_FINISHED = "not begun", "not finished"
"""States of runs without a live history: one that waits for its turn, and an older one that was not finished."""


@dataclass(frozen=True)
class View:
    """A run at a moment."""

    name: str
    state: str
    why: str
    round: int
    rounds: int | None
    """how many are wanted; None if nobody says"""
    seconds: float
    """wall time of all rounds"""
    seconds_a_round: float | None
    seconds_left: float | None
    history: pd.DataFrame = field(repr=False)
    devices: pd.DataFrame = field(repr=False)
    """the diagnostics of devices up to the last checkpoint, or the end"""
    spec: dict[str, Any] = field(repr=False)


class WatchedRun:
    """A run folder that is looked at again and again; only what has changed is read."""

    def __init__(self, name: str, folder: RunFolder) -> None:
        self.name, self.folder = name, folder
        self._follower = live.Follower(folder)
        self._read: dict[Path, tuple[Any, Any]] = {}

    def look(self) -> View:
        """The run as it is now."""
        has_live = self._follower.refresh()
        state = self._follower.state if has_live else self._state()
        rows = self._rows()
        spec = self._spec()
        wanted = self._follower.begun.get("rounds") or spec.get("run", {}).get("rounds")
        last = int(rows[-1]["round"]) if rows else 0
        times = [float(r["seconds"]) for r in rows if isinstance(r.get("seconds"), int | float)]
        # The median: a process's first round takes long, because it compiles.
        pace = statistics.median(times[-RECENT:]) if times else None
        left = None
        if state == State.RUNNING and pace is not None and wanted:
            left = max(0.0, (wanted - last) * pace - self._age())
        return View(
            self.name,
            state,
            self._why(state, has_live),
            last,
            wanted if isinstance(wanted, int) else None,
            sum(times),
            pace,
            left,
            pd.DataFrame(rows),
            self._devices(),
            spec,
        )

    def _state(self) -> str:
        if self.folder.is_finished:
            return State.FINISHED
        return NOT_FINISHED if self.folder.has_checkpoint else NOT_BEGUN

    def _age(self) -> float:
        return max(0.0, time.time() - (_stamp(self.folder.live) or 0) / 1e9)

    def _rows(self) -> list[dict[str, Any]]:
        """The live history; what it lacks at the front, as for runs that were begun without one, from elsewhere."""
        rows = self._follower.rows
        first = rows[0]["round"] if rows else None
        if first == 1:
            return rows
        earlier = self._cached(self.folder.history, _read_table)
        without = self._deployed()[0] or self._checkpoint()[0].get("history", [])
        found = earlier.to_dict("records") if earlier is not None else without
        return [r for r in found if first is None or r["round"] < first] + rows

    def _spec(self) -> dict[str, Any]:
        """The specification; empty if it is damaged: that is no reason not to show the others."""
        spec = self._cached(self.folder.spec, lambda path: json.loads(path.read_text()))
        found = spec if spec is not None else self._checkpoint()[0].get("spec", {})
        return found if isinstance(found, dict) and isinstance(found.get("run", {}), dict) else {}

    def _deployed(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The rows of a deployment that goes on: of its history, and of its devices."""
        found = self._cached(self.folder.path / deployed.ROUNDS, deployed.read_rounds)
        return found if found is not None else ([], [])

    def _why(self, state: str, has_live: bool) -> str:
        """Why a run stopped or failed; what a deployment is about, while it goes on."""
        if state == State.RUNNING and (status := deployed.read_status(self.folder.path)) is not None:
            return deployed.in_words(status)
        return self._follower.why if has_live else ""

    def _devices(self) -> pd.DataFrame:
        """The latest diagnostics, with the devices' names if they have some."""
        rows = self._device_rows()
        meaning = self._cached(self.folder.meaning, lambda _: self.folder.read_meaning())
        if meaning is None or not meaning.device_names or "device" not in rows:
            return rows
        by_number = dict(enumerate(meaning.device_names))
        return rows.assign(device=[by_number.get(d, str(d)) for d in rows["device"]])

    def _device_rows(self) -> pd.DataFrame:
        table, checkpoint = _stamp(self.folder.devices), _stamp(self.folder.checkpoint)
        if table is not None and (checkpoint is None or table >= checkpoint):
            found = self._cached(self.folder.devices, _read_table)
            if found is not None:
                return found[[c for c in DEVICE_COLUMNS if c in found]]
        rows = pd.DataFrame(self._deployed()[1])
        return rows[[c for c in DEVICE_COLUMNS if c in rows]] if len(rows) else self._checkpoint()[1]

    def _checkpoint(self) -> tuple[dict[str, Any], pd.DataFrame]:
        """A checkpoint's facts and its devices' rows; the models in it are not read."""
        found = self._cached(self.folder.checkpoint, _read_checkpoint)
        return found if found is not None else ({}, pd.DataFrame())

    def _cached(self, path: Path, read: Any) -> Any:
        """A file's content, read when it changes; None if it is not there or cannot be read at the moment."""
        stamp = _stamp(path)
        if stamp is None:
            return None
        if path not in self._read or self._read[path][0] != stamp:
            try:
                self._read[path] = (stamp, read(path))
            except (OSError, ValueError, KeyError, SafetensorError):
                return None
        return self._read[path][1]


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _read_table(path: Path) -> pd.DataFrame:
    return pd.read_csv(path)


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    with safe_open(path, framework="numpy") as file:
        facts = json.loads((file.metadata() or {})["facts"])
        kept = [c for c in DEVICE_COLUMNS if c in facts.get("device_columns", ())]
        return facts, pd.DataFrame({c: file.get_tensor(f"device_rows.{c}") for c in kept})
