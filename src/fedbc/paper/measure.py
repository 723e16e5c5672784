"""One run of the paper's, and what is kept of it: a line of JSON small enough to be committed.

Every line has the specification, its hash, the summary (means over the last 20 rounds), versions and wall time; a
method with multipliers adds them at the end. The first reported seed's runs (of synthetic data: on the first draw) add
what the figures draw: curves, the coefficients and the accuracies of the round's smallest and largest device,
multipliers on the way.
"""

from __future__ import annotations

import functools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedbc.errors import Diverged, FedBCError
from fedbc.experiments.spec import RunSpec
from fedbc.experiments.sweep import fingerprint
from fedbc.experiments.workers import Line, tell_round
from fedbc.paper.catalogue import DRAWS, FIRST_SEED
from fedbc.simulation.result import Result
from fedbc.simulation.settings import Settings
from fedbc.simulation.simulate import Simulation, versions

CURVES = ("global_accuracy", "local_accuracy", "global_loss", "accuracy_variance")
POINTS = 100
"""A curve is thinned to about so many points."""
SNAPSHOTS = (1, 50, 100, 200)
"""The rounds at which the paper shows the multipliers."""
CHECKPOINT_SECONDS = 60


def carry_out(text: str, unfinished: str | None = None) -> Line:
    """Run one specification, given as JSON; long runs keep their state in the folder `unfinished`, to go on."""
    began = time.perf_counter()
    spec = RunSpec.from_dict(json.loads(text))
    line: Line = {"hash": fingerprint(spec), "spec": spec.to_dict()}
    checkpoint = Path(unfinished) / f"{line['hash']}.safetensors" if unfinished else None
    try:
        line |= _measured(spec, checkpoint)
    except FedBCError as error:
        line["error"] = f"{type(error).__name__}: {error}"
        if isinstance(error, Diverged):
            line["diverged"] = error.round
    if checkpoint is not None and ("summary" in line or "diverged" in line):  # what failed otherwise is tried again
        checkpoint.unlink(missing_ok=True)
    return line | {"seconds": round(time.perf_counter() - began, 2), "versions": versions()}


def _measured(spec: RunSpec, checkpoint: Path | None) -> dict[str, Any]:
    arguments = spec.run_arguments()
    rounds = arguments.pop("rounds")
    settings = Settings(**arguments | {"evaluate": tuple(arguments["evaluate"])})
    algorithm, model = spec.build_part("algorithm"), spec.build_part("model")
    run = Simulation(algorithm, model, _federation(json.dumps(dict(spec.data))), settings)
    synthetic = spec.data["name"] == "synthetic"
    drawn = settings.seed == FIRST_SEED and not (synthetic and spec.data["seed"] != DRAWS[0])
    watch = drawn and synthetic
    accuracies: list[np.ndarray] = []
    before = 0.0
    if checkpoint is not None and checkpoint.exists():
        run.restore(checkpoint)
        before = sum(row["seconds"] for row in run.history)
    kept_at = time.perf_counter()
    while run.round < rounds:
        tell_round(run.advance(last=run.round + 1 == rounds, ahead=rounds - run.round - 1))
        if watch:
            accuracies.append(run.evaluator.global_scores(run.server).accuracy)
        if checkpoint is not None and not watch and time.perf_counter() - kept_at > CHECKPOINT_SECONDS:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            run.save(checkpoint)
            kept_at = time.perf_counter()
    result = run.result()
    kept: dict[str, Any] = {"summary": _rounded(result.summary())}
    if before:
        kept["seconds_before"] = round(before, 2)
    if not np.isnan(result.multipliers).any():
        kept["multipliers"] = _rounded(result.multipliers.tolist())
        kept["tolerances"] = _rounded(result.tolerances.tolist())
    if drawn:
        kept["sizes"] = run.federation.train.sizes.tolist()
        kept["curves"] = curves(result)
        kept["coefficients"] = coefficients(result, accuracies)
        if "multiplier" in result.devices:
            kept["snapshots"] = snapshots(result, run.federation.devices)
    return kept


@functools.lru_cache(maxsize=2)
def _federation(text: str) -> Any:
    """A worker runs many specifications on the same data."""
    return RunSpec({"name": "fedavg"}, json.loads(text)).build_part("data")


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
