"""What is known of each device at the end of a run, its scores computed anew from the stored models."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
import pandas as pd

from fedbc import runtime, storage
from fedbc.algorithms.finetune import FineTune
from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.simulation import batches
from fedbc.simulation.evaluation import GlobalModelAtHome, TunedModels
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.result import Result
from fedbc.simulation.scoring import Scorer, StoredModels, Sums

DEPTH = 8
"""Devices a lane at once."""

SCORES = ("global_accuracy", "local_accuracy", "global_test_loss", "local_test_loss")
"""Of z and of x_i on a device's own test set."""

NEAR = 0.05
"""A drift within so much of the tolerance, as a share, is at the constraint."""


def device_rows(result: Result, federation: Federation | None, scores: DeviceScores | None) -> pd.DataFrame:
    """One row per device; what cannot be known is NaN."""
    count = federation.devices if federation is not None else len(result.multipliers)
    names = federation.device_names if federation is not None else result.meaning.device_names
    rows = pd.DataFrame({"device": list(names) if len(names) == count else np.arange(count)})
    if federation is not None:
        rows = rows.assign(examples=federation.train.sizes, test_examples=federation.test.sizes)
    rows = rows.assign(**dict.fromkeys(SCORES, np.nan) | (scores(result) if scores is not None else {}))
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
        elif np.isfinite(tolerance) and abs(drift - tolerance) <= NEAR * tolerance:
            words.append("at it")
        else:
            words.append("beyond" if drift > tolerance else "inside")
    return words


class DeviceScores:
    """Scores finished runs of one model device by device; compiled once for all of them."""

    def __init__(self, federation: Federation, model: Model) -> None:
        self.federation, self.model, self.has_accuracy = federation, model, model.correct is not None
        self.like = jax.eval_shape(model.init, jax.random.key(0))
        self.lanes = Lanes(min(runtime.default_lanes(), federation.devices))
        self.data = self.lanes.put(batches.host_data(federation.test, federation.shared))
        self.scorer = Scorer(model, federation, federation.test, self.lanes, DEPTH)
        self.stored = StoredModels(federation.devices)
        self.of_stored = self.scorer.own(self.stored)
        # A device knows its own running statistics alone.
        self.z_at_home = self.scorer.own(GlobalModelAtHome(self.stored)) if model.statistics == "local" else None

    def __call__(self, result: Result) -> dict[str, np.ndarray]:
        """The columns of SCORES, after the last round; without those of x_i where local models are elsewhere."""
        z = self.lanes.put(storage.restored(self.like, storage.named(result.global_model)))
        devices = np.arange(self.federation.devices)
        has_own = result.participants_models is not None and len(result.multipliers) == len(devices)
        if self.z_at_home is None or not has_own:
            columns = self._columns("global", self.scorer.by_device(*self.scorer.one(z, self.data)))
        if not has_own:
            return columns
        self.stored.put(storage.restored(self.like, storage.named(result.participants_models)), result.participants)
        if self.z_at_home is not None:
            columns = self._columns("global", self.z_at_home(devices, z, self.data, self.data))
        return columns | self._columns("local", self.of_stored(devices, z, self.data, self.data))

    def tuned(self, result: Result, how: FineTune) -> np.ndarray:
        """The accuracy of each device's model after fine-tuning, as a run measures it in its last round."""
        z = self.lanes.put(storage.restored(self.like, storage.named(result.global_model)))
        self.stored.put(storage.restored(self.like, storage.named(result.participants_models)), result.participants)
        adapted = TunedModels(
            how,
            self.model,
            self.federation,
            self.stored if how.of == "local" else None,
            int(result.spec["run"].get("seed", 0)),
        )
        split = self.federation.train if how.on == "train" else self.federation.test
        adapt_to = self.lanes.put(batches.host_data(split, self.federation.shared))
        devices = np.arange(self.federation.devices)
        return self.scorer.own(adapted)(devices, z, self.data, adapt_to).accuracy

    def _columns(self, whose: str, sums: Sums) -> dict[str, np.ndarray]:
        loss = {f"{whose}_test_loss": sums.mean_loss}
        return loss | ({f"{whose}_accuracy": sums.accuracy} if self.has_accuracy else {})


class Scorers:
    """For each method and federation what scores its runs; the same one where model and federation are the same."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self.models = models
        self._made: dict[tuple[int, int], tuple[Federation, DeviceScores]] = {}

    def of(self, name: str, federation: Federation | None) -> DeviceScores | None:
        """The scorer of a method's runs; None if its model or its data are not known."""
        if federation is None or name not in self.models:
            return None
        key = id(federation), id(self.models[name])
        if key not in self._made:  # kept with the federation, so that its id stays its own
            self._made[key] = federation, DeviceScores(federation, self.models[name])
        return self._made[key][1]
