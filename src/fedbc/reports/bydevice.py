"""What is known of each device at the end of a run, its accuracies computed anew from the stored models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedbc import runtime, storage
from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.simulation import batches
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.result import Result
from fedbc.simulation.scoring import Scorer

DEPTH = 8
"""Devices a lane at once."""

NEAR = 0.05
"""A drift within so much of the tolerance, as a share, is at the constraint."""


def device_rows(result: Result, federation: Federation | None, accuracies: Accuracies | None) -> pd.DataFrame:
    """One row a device; what cannot be known is NaN."""
    count = federation.devices if federation is not None else len(result.multipliers)
    rows = pd.DataFrame({"device": np.arange(count)})
    if federation is not None:
        rows = rows.assign(examples=federation.train.sizes, test_examples=federation.test.sizes)
    rows = rows.assign(global_accuracy=np.nan, local_accuracy=np.nan)
    if accuracies is not None:
        z, own = accuracies(result)
        rows = rows.assign(global_accuracy=z, local_accuracy=own)
    if len(result.multipliers) != count:  # a pooled run: it has one device, which is none of these
        return rows.assign(rounds=0)
    steps = result.devices
    last = steps.drop_duplicates("device", keep="last").set_index("device")
    means = steps.groupby("device")
    seen = pd.DataFrame({"rounds": means.size()})
    for name in ("coefficient", "coefficient_by_examples"):
        seen[name] = means[name].mean()
    seen["multiplier_mean"] = means["multiplier"].mean() if "multiplier" in steps else np.nan
    for name in ("drift", "multiplier", "tolerance"):
        seen[name] = last.get(name, np.nan)
    rows = rows.join(seen, on="device")
    return rows.assign(rounds=rows["rounds"].fillna(0).astype(int), constraint=constraint(rows))


def constraint(rows: pd.DataFrame) -> list[str]:
    """Where a device's drift stood to its tolerance when it last took part."""
    words = []
    for drift, tolerance in zip(rows["drift"], rows["tolerance"], strict=True):
        if np.isnan(drift) or np.isnan(tolerance):
            words.append("")
        elif abs(drift - tolerance) <= NEAR * tolerance:
            words.append("at it")
        else:
            words.append("beyond" if drift > tolerance else "inside")
    return words


class Accuracies:
    """Scores finished runs of one model device by device; compiled once for all of them."""

    def __init__(self, federation: Federation, model: Model) -> None:
        self.federation = federation
        self.like = jax.eval_shape(model.init, jax.random.key(0))
        self.lanes = Lanes(min(runtime.default_lanes(), federation.devices))
        self.data = self.lanes.put(batches.host_data(federation.test, federation.shared))
        self.scorer = Scorer(model, federation, federation.test, self.lanes, DEPTH)
        self.stored = StoredModels(federation.devices)
        self.of_stored = self.scorer.own(self.stored)

    def __call__(self, result: Result) -> tuple[np.ndarray, np.ndarray]:
        """z and x_i on each device's test set, after the last round; NaN for x_i where local models are elsewhere."""
        z = self.lanes.put(storage.restored(self.like, storage.named(result.global_model)))
        of_z = self.scorer.by_device(*self.scorer.one(z, self.data)).accuracy
        devices = np.arange(self.federation.devices)
        if result.participants_models is None or len(result.multipliers) != len(devices):
            return of_z, np.full(len(devices), np.nan)
        self.stored.put(storage.restored(self.like, storage.named(result.participants_models)), result.participants)
        return of_z, self.of_stored(devices, z, self.data, self.data).accuracy


def scorers(federation: Federation | None, models: Mapping[str, Model]) -> dict[str, Accuracies]:
    """For each name whose model has accuracies; the same one where the model is the same object."""
    if federation is None:
        return {}
    having = {id(model): model for model in models.values() if model.correct is not None}
    made = {key: Accuracies(federation, model) for key, model in having.items()}
    return {name: made[id(model)] for name, model in models.items() if id(model) in made}


class StoredModels:
    """The local models of a finished run; z for a device that never took part."""

    def __init__(self, devices: int) -> None:
        self.slot = np.full(devices, -1)
        self.stack: Any = None

    def put(self, stack: Any, participants: np.ndarray) -> None:
        """Take the models of these devices, in the same order."""
        self.stack = jax.tree.map(np.asarray, stack)
        self.slot[:] = -1
        self.slot[participants] = np.arange(len(participants))

    def inputs(self, places: np.ndarray) -> Any:
        """Their rows of the stack, and whether a device has none."""
        slots = np.where(places >= 0, self.slot[places], -1)
        return jax.tree.map(lambda a: a[np.maximum(slots, 0)], self.stack), slots < 0

    def form(self, own: Any, z: Any, data: batches.Data) -> Any:
        """The models of one lane's places."""
        del data
        models, fresh = own
        return jax.tree.map(lambda x, zz: jnp.where(fresh.reshape(-1, *(1,) * zz.ndim), zz, x), models, z)
