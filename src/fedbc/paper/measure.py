"""One run of the paper's, and what is kept of it: a line of JSON small enough to be committed.

Every line has the specification, its hash, the summary (means over the last 20 rounds), versions and wall time; a
method with multipliers adds them at the end. The first reported seed's runs (of synthetic data: on the first draw) add
what the figures draw: curves, the coefficients and the accuracies of the round's smallest and largest device,
multipliers on the way.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedbc.paper.catalogue import DRAWS, FIRST_SEED
from fedbc.runs import CallEachRound, Line, Observer, RunSpec, execute, is_result, tell_round
from fedbc.simulation.checkpoints import Checkpoint
from fedbc.simulation.result import Result
from fedbc.simulation.rounds import Simulation

CURVES = ("global_accuracy", "local_accuracy", "global_loss", "accuracy_variance")
POINTS = 100
"""A curve is thinned to about so many points."""
SNAPSHOTS = (1, 50, 100, 200)
"""The rounds at which the paper shows the multipliers."""
CHECKPOINT_SECONDS = 60


class Watching(Observer):
    """What is kept of a run beside its history: its time before it was resumed, and z's accuracy on each device."""

    def __init__(self, *, accuracies: bool) -> None:
        self.before = 0.0
        self.accuracies: list[np.ndarray] | None = [] if accuracies else None

    def begin(self, run: Simulation, rounds: int) -> None:
        """Remember the run, to look at it round by round."""
        self._run = run
        self.before = sum(row["seconds"] for row in run.history)
        self.sizes = run.federation.train.sizes

    def on_round(self, row: Any) -> None:
        """z on every device's test set."""
        if self.accuracies is not None:
            self.accuracies.append(self._run.evaluator.global_scores(self._run.server).accuracy)


def run_to_line(spec: RunSpec, unfinished: str | None = None) -> Line:
    """Run one specification; long runs keep their state in the folder `unfinished`, to go on."""
    synthetic = spec.data["name"] == "synthetic"
    drawn = spec.seed == FIRST_SEED and not (synthetic and spec.to_dict()["data"]["seed"] != DRAWS[0])
    watching = Watching(accuracies=drawn and synthetic)
    checkpoint = None
    if unfinished and watching.accuracies is None:  # accuracies on the way are not kept with a run's state
        file = Path(unfinished) / f"{spec.identity}.safetensors"
        checkpoint = Checkpoint(file, seconds=CHECKPOINT_SECONDS, at_the_end=False)
    outcome = execute(spec, [CallEachRound(tell_round), watching], checkpoint)
    line = outcome.line()
    if outcome.error is None and outcome.result is not None:
        line |= _measure(outcome.result, watching, drawn=drawn)
    if checkpoint is not None and is_result(line):  # what failed otherwise is tried again
        checkpoint.file.unlink(missing_ok=True)
    return line | {"seconds": round(outcome.seconds, 2)}


def _measure(result: Result, watching: Watching, *, drawn: bool) -> Line:
    line: Line = {"summary": _rounded(result.summary())}
    if watching.before:
        line["seconds_before"] = round(watching.before, 2)
    if not np.isnan(result.multipliers).any():
        line["multipliers"] = _rounded(result.multipliers.tolist())
        line["tolerances"] = _rounded(result.tolerances.tolist())
    if drawn:
        line["sizes"] = watching.sizes.tolist()
        line["curves"] = curves(result)
        line["coefficients"] = coefficients(result, watching.accuracies or [])
        if "multiplier" in result.devices:
            line["snapshots"] = snapshots(result, len(watching.sizes))
    return line


def curves(result: Result) -> dict[str, list[float]]:
    """The evaluated rounds, thinned, and the columns that figures draw."""
    rows = result.history.dropna(subset=["global_test_loss"])
    rows = rows.iloc[:: max(1, len(rows) // POINTS)]
    columns = [c for c in CURVES if c in rows]
    return {"round": rows["round"].astype(int).tolist()} | {c: _rounded(rows[c].tolist()) for c in columns}


def coefficients(result: Result, accuracies: list[np.ndarray]) -> dict[str, list[float]]:
    """The round's smallest and largest device: weight in the server's mean, weight by size, and z's accuracy there."""
    out: dict[str, list[float]] = {name: [] for name in ("min", "max", "min_by_size", "max_by_size")}
    users: dict[str, list[float]] = {"min_accuracy": [], "max_accuracy": []}
    columns = ("round", "device", "examples", "coefficient", "coefficient_by_examples")
    rounds, device, examples, weight, by_size = (result.devices[c].to_numpy() for c in columns)
    for number in np.unique(rounds):
        here = np.flatnonzero(rounds == number)
        for which, at in (("min", here[np.argmin(examples[here])]), ("max", here[np.argmax(examples[here])])):
            out[which].append(float(weight[at]))
            out[f"{which}_by_size"].append(float(by_size[at]))
            if accuracies:
                users[f"{which}_accuracy"].append(float(accuracies[number - 1][device[at]]))
    return {name: _rounded(values, 3) for name, values in (out | users).items() if values}


def snapshots(result: Result, devices: int) -> dict[str, list[float]]:
    """Every device's multiplier after some rounds, as last stepped; 0 where it never took part."""
    found = {}
    for number in SNAPSHOTS:
        if number <= result.rounds:
            last = result.devices[result.devices["round"] <= number].groupby("device")["multiplier"].last()
            found[str(number)] = _rounded(last.reindex(range(devices), fill_value=0.0).tolist())
    return found


def _rounded(value: Any, digits: int = 5) -> Any:
    """Significant digits enough for tables and figures, so that lines stay small."""
    if isinstance(value, dict):
        return {k: _rounded(v, digits) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v, digits) for v in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return value
