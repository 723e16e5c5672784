"""What a run is described by, and whether a checkpoint is that of the same run."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedbc import runtime, trees
from fedbc.algorithms.base import Algorithm
from fedbc.data.federation import Federation
from fedbc.errors import InputError
from fedbc.machines.world import Machines
from fedbc.models.base import Model
from fedbc.simulation.ending import Ending
from fedbc.simulation.settings import Settings

ENDINGS = {("run", field.name) for field in dataclasses.fields(Ending)}
"""Arguments that say when a run ends."""


def describe_run(
    algorithm: Algorithm, model: Model, params: Any, *, data: dict[str, Any], run: dict[str, Any]
) -> dict[str, Any]:
    """A run as plain values, with the versions that compute it."""
    return {
        "algorithm": {"name": algorithm.name, **algorithm.hyperparameters()},
        "model": {"name": model.name, "parameters": trees.size(params)},
        "data": data,
        "run": run,
        "versions": runtime.versions(),
    }


def checksum(federation: Federation, machines: Machines | None = None) -> str:
    """Tells federations apart by their data."""
    value = 0
    if federation.owned is None:
        for split in (federation.train, federation.test):
            for array in (split.x, split.y, split.offsets):
                value = _crc(array, value)
        return f"{value:08x}"
    # No machine has all: a sum over devices, whoever owns them.
    for device in federation.owned:
        number = np.asarray(device, np.int64)
        for split in (federation.train, federation.test):
            x, y = split.of(device)
            value += _crc(y, _crc(x, _crc(number)))
    total = np.asarray([value % 2**32], np.int64)
    return f"{int((machines.sum(total) if machines is not None else total)[0]) % 2**32:08x}"


def _crc(array: Any, value: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, value)


def check_same_run(file: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A checkpoint continues the same run only: algorithm, model, data and run must agree, versions need not.

    When a run is to end says nothing of its rounds: like their number, it may be another than before.
    """
    for part in ("algorithm", "model", "data", "run"):
        old, new = stored.get(part, {}), _as_json(wanted[part])
        if part == "run":  # an argument that is newer than the checkpoint had its default
            defaults = _as_json(Settings().described())
            old = {key: value for key, value in defaults.items() if key in new} | old  # a deployment has fewer
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key) and (part, key) not in ENDINGS:
                raise InputError(
                    f"{file} belongs to another run: its {part} {key} is {old.get(key)!r}, here it is {new.get(key)!r}"
                )


def _as_json(value: Any) -> Any:
    """As it comes back from a JSON file: tuples are lists there."""
    if isinstance(value, dict):
        return {k: _as_json(v) for k, v in value.items()}
    return [_as_json(v) for v in value] if isinstance(value, list | tuple) else value
