"""What a run's folder tells about it at a moment: simulated or deployed, running or over."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open

from fedbc.experiments import live
from fedbc.experiments.runs import is_finished
from fedbc.simulation.result import has_checkpoint
from fedbc.simulation.simulate import CHECKPOINT

MARKS = ("spec.json", live.FILE, CHECKPOINT)
"""A folder with one of these is a run's; a deployment writes its specification at the end only."""
DEPTH = 3
RECENT = 20
"""Rounds that the pace is judged by."""
DEVICE_COLUMNS = ("round", "device", "multiplier", "tolerance", "drift", "coefficient")
NOT_BEGUN, NOT_FINISHED = "not begun", "not finished"
"""States of runs without a live history: one that waits for its turn, and an older one that was not finished."""


def find(root: Path) -> list[Path]:
    """The run folders at a place: itself, or those within it, a few levels down."""
    return list(_found(root, DEPTH))


def _found(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / name).exists() for name in MARKS):
        yield folder
    elif depth:
        for inner in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
            yield from _found(inner, depth - 1)


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

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._follower = live.Follower(folder)
        self._read: dict[str, tuple[Any, Any]] = {}

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
        if state == live.RUNNING and pace is not None and wanted:
            left = max(0.0, (wanted - last) * pace - self._age())
        return View(
            self.name,
            state,
            self._follower.why if has_live else "",
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
        if is_finished(self.folder):
            return live.FINISHED
        return NOT_FINISHED if has_checkpoint(self.folder) else NOT_BEGUN

    def _age(self) -> float:
        return max(0.0, time.time() - (_stamp(self.folder / live.FILE) or 0) / 1e9)

    def _rows(self) -> list[dict[str, Any]]:
        """The live history; what it lacks at the front, as for runs that were begun without one, from elsewhere."""
        rows = self._follower.rows
        first = rows[0]["round"] if rows else None
        if first == 1:
            return rows
        earlier = self._cached("history.csv", _read_table)
        found = earlier.to_dict("records") if earlier is not None else self._checkpoint()[0].get("history", [])
        return [r for r in found if first is None or r["round"] < first] + rows

    def _spec(self) -> dict[str, Any]:
        spec = self._cached("spec.json", lambda path: json.loads(path.read_text()))
        return spec if spec is not None else self._checkpoint()[0].get("spec", {})

    def _devices(self) -> pd.DataFrame:
        table, checkpoint = _stamp(self.folder / "devices.csv"), _stamp(self.folder / CHECKPOINT)
        if table is not None and (checkpoint is None or table >= checkpoint):
            found = self._cached("devices.csv", _read_table)
            if found is not None:
                return found[[c for c in DEVICE_COLUMNS if c in found]]
        return self._checkpoint()[1]

    def _checkpoint(self) -> tuple[dict[str, Any], pd.DataFrame]:
        """A checkpoint's facts and its devices' rows; the models in it are not read."""
        found = self._cached(CHECKPOINT, _read_checkpoint)
        return found if found is not None else ({}, pd.DataFrame())

    def _cached(self, name: str, read: Any) -> Any:
        """A file's content, read when it changes; None if it is not there or cannot be read at the moment."""
        path = self.folder / name
        stamp = _stamp(path)
        if stamp is None:
            return None
        if name not in self._read or self._read[name][0] != stamp:
            try:
                self._read[name] = (stamp, read(path))
            except (OSError, ValueError, KeyError, SafetensorError):
                return None
        return self._read[name][1]


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
        if "device_rows" in facts:  # a deployment's
            rows = pd.DataFrame(facts["device_rows"])
            return facts, rows[[c for c in DEVICE_COLUMNS if c in rows]]
        kept = [c for c in DEVICE_COLUMNS if c in facts.get("device_columns", ())]
        return facts, pd.DataFrame({c: file.get_tensor(f"device_rows.{c}") for c in kept})
