"""The runs that lie in a folder, in a short list, and their removal."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbc import storage
from fedbc.errors import InputError
from fedbc.runs import live
from fedbc.runs.lines import State
from fedbc.simulation.result import RunFolder
from fedbc.simulation.telling import data_name

if TYPE_CHECKING:
    import pandas as pd

CURVES = "curves.png"
"""The picture that `fedbc run` leaves beside its runs."""
COLUMNS = ("run", "state", "method", "data", "rounds", "global_accuracy", "local_accuracy", "changed")


def list_runs(folder: str | Path = "runs") -> pd.DataFrame:
    """One row per run: where it is, how far, on which data, and its accuracies; the latest last."""
    import pandas as pd

    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder with runs")
    rows = sorted((_row(found, root) for found in RunFolder.find(root)), key=lambda row: row["changed"])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def delete(folder: str | Path) -> list[Path]:
    """Remove a run, or all runs of a folder, and nothing else that lies there; gives the folders that were removed.

    One that is running, or a folder without runs, is refused. Folders that held nothing but the runs and the picture of
    their curves go with them.
    """
    root = Path(folder)
    if not root.is_dir() or not (found := RunFolder.find(root)):
        raise InputError(f"{root} holds no runs: nothing is removed")
    for run in found:
        if _state(run)[0] == State.RUNNING:
            raise InputError(f"{run.path} is running: stop it first; nothing is removed")
    with storage.explained(root):
        for run in found:
            shutil.rmtree(run.path)
            _remove_empty(run.path.parent, root)
    return [run.path for run in found]


def _remove_empty(folder: Path, root: Path) -> None:
    """A folder that has nothing left but the curves of what was in it, and those around it, up to `root`."""
    while folder.is_relative_to(root) and not {p.name for p in folder.iterdir()} - {CURVES}:
        if folder.samefile(Path.cwd()):
            return
        (folder / CURVES).unlink(missing_ok=True)
        folder.rmdir()
        folder = folder.parent


def _row(run: RunFolder, root: Path) -> dict[str, Any]:
    state, rounds, scores = _state(run)
    try:
        spec = run.read_spec()
    except InputError:
        spec = {}
    inner = run.path.relative_to(root)
    return {
        "run": str(inner) if inner.parts else root.name,
        "state": state,
        "method": str(spec.get("algorithm", {}).get("name", "")),
        "data": data_name(spec.get("data", {})) if spec else "",
        "rounds": rounds,
        "global_accuracy": scores.get("global_accuracy", float("nan")),
        "local_accuracy": scores.get("local_accuracy", float("nan")),
        "changed": time.strftime("%Y-%m-%d %H:%M", time.localtime(_changed(run))),
    }


def _summary(run: RunFolder) -> dict[str, Any]:
    try:
        found = json.loads(run.summary.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _changed(run: RunFolder) -> float:
    files = [f for f in (run.spec, run.live, run.checkpoint, run.summary) if f.exists()]
    return max((f.stat().st_mtime for f in files), default=0.0)


def _state(run: RunFolder) -> tuple[str, int, dict[str, Any]]:
    """Its state, its rounds so far, and the scores of a finished one or of the last measured round."""
    if run.is_finished:
        summary = _summary(run)
        follower = live.Follower(run)
        state = follower.state if follower.refresh() else State.FINISHED
        # What failed and has a result all the same is a run that diverged, of which the rounds before are kept.
        return "diverged" if state == State.FAILED else str(state), int(summary.get("rounds", 0)), summary
    follower = live.Follower(run)
    if not follower.refresh():
        return ("not finished" if run.has_checkpoint else "not begun"), 0, {}
    rows = follower.rows
    measured = [row for row in rows if "global_accuracy" in row]
    return str(follower.state), int(rows[-1]["round"]) if rows else 0, dict(measured[-1]) if measured else {}
