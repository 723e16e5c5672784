"""What a calibration keeps of a run, in a worker: scores device by device, and what personalising its z gives."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedbc import runtime, storage
from fedbc.data import trained_on
from fedbc.data.federation import Federation
from fedbc.errors import FedBCError, InputError
from fedbc.personalization import personalize
from fedbc.reports.device_rows import DeviceScores
from fedbc.runs import Line, RunSpec, execute
from fedbc.simulation.result import Result

Array = np.ndarray


def kept(result: Result, *, models: Path | None = None) -> Line:
    """What a line has beside the summary: the drift of the devices in their rounds, and their scores at the end.

    models: a folder to keep z in, under the name of its run.
    """
    spec = RunSpec.from_dict(result.spec)
    scores = DeviceScores(result.part("data"), result.part("model"))
    found = scores(result)
    rows = {"global": found["global_accuracy"], "own": found["local_accuracy"]}
    how = spec.settings()[1].fine_tune or spec.build_part("algorithm").fine_tune()
    if how is not None:
        rows["tuned"] = scores.tuned(result, how)
    if models is not None:
        with storage.explained(models):
            models.mkdir(parents=True, exist_ok=True)
        storage.write_arrays(_place(models, spec), storage.named(result.global_model), {})
    drift = result.devices["drift"]
    return {"drift_median": float(drift.median()), "drift_max": float(drift.max()), "devices": _plain(rows)}


def personal_line(spec: RunSpec, *, models: Path | None = None) -> Line:
    """Personalise the z of a run, which is trained again if it was not kept."""
    began = time.perf_counter()
    line: Line = {"hash": spec.identity, "spec": spec.to_dict()}
    algorithm, run = line["spec"]["algorithm"], line["spec"]["run"]
    try:
        model, federation = spec.build_part("model"), trained_on(spec.build_part("data"), run)
        found = personalize(
            _z(spec, model, models),
            model,
            federation,
            seed=run["seed"],
            lr=algorithm.get("lr"),
            momentum=algorithm.get("momentum"),
            batch_size=run["batch_size"],
        )
    except FedBCError as error:
        line["error"] = f"{type(error).__name__}: {error}"
    else:
        rows = {"global": found.global_accuracy, "personal": found.local_accuracy, "alone": found.accuracy("alone")}
        line |= {"summary": {"local_accuracy": float(np.nanmean(rows["personal"]))}, "devices": _plain(rows)}
    return line | {"seconds": time.perf_counter() - began, "versions": runtime.versions()}


def personal_work(models: Path | None) -> Callable[[RunSpec], Line]:
    """What a worker does with a run's z."""
    return functools.partial(personal_line, models=models)


def part_of(federation: Federation, run: Mapping[str, Any]) -> Federation:
    """The devices that take part in a run, with all of their training data."""
    return trained_on(federation, {key: value for key, value in run.items() if key != "validation"})


def _place(models: Path, spec: RunSpec) -> Path:
    return models / f"{spec.identity}.safetensors"


def _z(spec: RunSpec, model: Any, models: Path | None) -> Any:
    if models is not None and _place(models, spec).exists():
        try:
            arrays, _ = storage.read_arrays(_place(models, spec))
            return storage.restored(jax.eval_shape(model.init, jax.random.key(0)), arrays)
        except InputError:  # a damaged file is no loss: the run is known
            pass
    return execute(spec).finished().global_model


def _plain(rows: dict[str, Array]) -> dict[str, list[float | None]]:
    """Without NaN, which JSON has not: devices without examples have no score."""
    return {name: [None if v != v else float(v) for v in values] for name, values in rows.items()}
