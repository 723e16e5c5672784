"""Every device's walk, held out, chosen and walked again: for networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedbc import storage
from fedbc.data.federation import Federation, subset
from fedbc.models.base import Model
from fedbc.personalization.choice import Scores, choose
from fedbc.personalization.folds import FOLDS, folds
from fedbc.personalization.walk import Steps, Walkers, held_out_by

Array = np.ndarray
FEW = 200
"""Devices with more examples than this hold a fifth of them out, once; to train a network five times takes long."""
STARTS = ("z", "alone")
OnEpoch = Callable[[str, int], None]


@dataclass(frozen=True)
class Walked:
    """What came out, all devices side by side."""

    personal: Any
    own: Any
    epochs: Array
    """of each device's personal model; 0 is z itself, or w^0"""
    from_z: Array
    """whether the personal model's walk began at z"""


@dataclass
class Walks:
    """All walks of a federation, with what is kept of them in a folder."""

    model: Model
    federation: Federation
    starts: dict[str, Any]
    """z and w^0, by their names in STARTS"""
    how: Steps
    lanes: int | None
    folder: Path | None = None
    on_epoch: OnEpoch | None = None

    def run(self) -> Walked:
        """Held out, chosen, walked again."""
        fold_of = folds(self.federation.train, self.how.seed, ordered=self.federation.ordered, few=FEW)
        scores = {start: self._held_out(start, fold_of) for start in STARTS}
        devices = self.federation.devices
        chosen, alone = np.zeros((devices, 2), int), np.zeros(devices, int)
        owner = np.repeat(np.arange(devices), self.federation.train.sizes)
        for device in range(devices):
            rows = (owner == device) & (fold_of >= 0)
            table = {start: scores[start][:, rows] for start in STARTS}
            both = np.concatenate([table["z"], table["alone"][1:]])
            number, last = choose(_sums(both)), len(table["z"]) - 1
            chosen[device] = (1, number) if number <= last else (0, number - last)
            alone[device] = 1 + choose(_sums(table["alone"][1:])) if rows.any() else 0
        from_z = chosen[:, 0] == 1
        needed = {"z": np.where(from_z, chosen[:, 1], 0), "alone": alone}
        ends = {start: self._again(start, needed[start]) for start in STARTS}
        also = np.where(from_z, 0, chosen[:, 1])
        if (same := also == alone).all() or from_z.all():
            other = ends["alone"]
        else:
            other = self._again("alone", np.where(from_z | same, 0, also), name="chosen")
            other = jax.tree.map(lambda a, b: _where(same, a, b), ends["alone"], other)
        personal = jax.tree.map(lambda a, b: _where(from_z, a, b), ends["z"], other)
        return Walked(personal, ends["alone"], chosen[:, 1], from_z)

    def _held_out(self, start: str, fold_of: Array) -> Array:
        """(epochs + 1, rows): the scores of held-out examples after each epoch, the first before any."""
        kept = self.folder / f"held-out-{start}.safetensors" if self.folder is not None else None
        if kept is not None and kept.exists():
            return storage.read_arrays(kept)[0]["scores"]
        parts = []
        for fold in range(FOLDS):
            if not (fold_of == fold).any():
                continue
            federation, devices = held_out_by(self.federation, fold_of, fold)
            parts.append((fold, devices, self._walk(start, fold, federation)))
        epochs = min((len(scores) for _, _, scores in parts), default=1)
        table = np.full((epochs, len(fold_of)), np.nan)
        for fold, _, scores in parts:
            table[:, fold_of == fold] = scores[:epochs]
        if kept is not None:
            storage.write_arrays(kept, {"scores": table}, {})
        return table

    def _walk(self, start: str, fold: int, federation: Federation) -> Array:
        walkers = Walkers(self.model, federation, self.starts[start], self.how, lanes=self.lanes)
        scores, name = [walkers.scores()], f"{start}, fold {fold + 1}"
        while len(scores) <= self.how.epochs:
            walkers.epoch()
            scores.append(walkers.scores())
            self._tell(name, len(scores) - 1)
            if self._goes_nowhere(np.asarray(scores), federation):
                break
        return np.asarray(scores)

    def _goes_nowhere(self, scores: Array, federation: Federation) -> bool:
        """Whether no device has had its best score within the last epochs."""
        ends = federation.test.offsets
        means = np.asarray([np.add.reduceat(row, ends[:-1]) for row in scores])
        return bool((len(scores) - 1 - means.argmin(0) >= self.how.patience).all())

    def _again(self, start: str, epochs: Array, name: str = "") -> Any:
        """Each device's model after so many epochs on all of its examples."""
        z = self.starts[start]
        out = jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], len(epochs), axis=0), z)
        going = np.flatnonzero(epochs > 0)
        if not len(going):
            return out
        kept = self.folder / f"again-{name or start}.safetensors" if self.folder is not None else None
        if kept is not None and kept.exists():
            return storage.restored(z, storage.read_arrays(kept)[0])
        walkers = Walkers(self.model, subset(self.federation, going), z, self.how, lanes=self.lanes)
        for epoch in range(1, int(epochs.max()) + 1):
            walkers.epoch()
            self._tell(f"{start}, on all examples", epoch)
            done = np.flatnonzero(epochs[going] == epoch)
            if len(done):
                now = walkers.models()
                for whole, part in zip(jax.tree.leaves(out), jax.tree.leaves(now), strict=True):
                    whole[going[done]] = part[done]
        if kept is not None:
            storage.write_arrays(kept, storage.named(out), {})
        return out

    def _tell(self, name: str, epoch: int) -> None:
        if self.on_epoch is not None:
            self.on_epoch(name, epoch)


def _sums(scores: Array) -> Scores:
    return Scores(scores.sum(1), scores @ scores.T, scores.shape[1])


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
