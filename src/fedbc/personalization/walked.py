"""Every device's walk, held out, chosen and walked again: for networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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


class Choice(NamedTuple):
    """How far a device goes, and from where."""

    start: str
    epochs: int
    alone: int
    """how far it would go if it knew nothing of z"""


def decide(scores: dict[str, Array]) -> Choice:
    """From a device's held-out scores, (epochs + 1, examples) for each of STARTS."""
    z, alone = scores["z"], scores["alone"]
    number, last = choose(_sums(np.concatenate([z, alone[1:]]))), len(z) - 1
    without = 1 + choose(_sums(alone[1:])) if alone.shape[1] and len(alone) > 1 else 0
    return Choice("z", number, without) if number <= last else Choice("alone", number - last, without)


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
    statistics: dict[str, Any] | None = None
    """of a model that keeps some: those that each device begins with, stacked, by the names in STARTS"""

    def run(self) -> Walked:
        """Held out, chosen, walked again."""
        fold_of = folds(self.federation.train, self.how.seed, ordered=self.federation.ordered, few=FEW)
        z = self._held_out("z", fold_of, None)
        scores = {"z": z, "alone": self._held_out("alone", fold_of, z)}
        devices = self.federation.devices
        chosen, alone = np.zeros((devices, 2), int), np.zeros(devices, int)
        owner = np.repeat(np.arange(devices), self.federation.train.sizes)
        for device in range(devices):
            rows = (owner == device) & (fold_of >= 0)
            choice = decide({start: scores[start][:, rows] for start in STARTS})
            chosen[device] = int(choice.start == "z"), choice.epochs
            alone[device] = choice.alone
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

    def _held_out(self, start: str, fold_of: Array, rival: Array | None) -> Array:
        """(epochs + 1, rows): the scores of held-out examples after each epoch, the first before any; what a device had
        last goes on after it stopped. `rival` is the other walk's table."""
        kept = self.folder / f"held-out-{start}.safetensors" if self.folder is not None else None
        if kept is not None and kept.exists():
            return storage.read_arrays(kept)[0]["scores"]
        table = np.full((self.how.epochs + 1, len(fold_of)), np.nan)
        for fold in range(FOLDS):
            rows = fold_of == fold
            if not rows.any():
                continue
            federation, who = held_out_by(self.federation, fold_of, fold)
            ends = federation.test.offsets
            lowest = None if rival is None else by_device(rival[:, rows], ends).min(0)
            scores = self._walk(start, fold, federation, who, lowest)
            table[: len(scores), rows], table[len(scores) :, rows] = scores, scores[-1]
        if kept is not None:
            storage.write_arrays(kept, {"scores": table}, {})
        return table

    def _walkers(self, start: str, federation: Federation, who: Array) -> Walkers:
        """`federation` are devices with the numbers `who`."""
        own = None if self.statistics is None else jax.tree.map(lambda a: a[who], self.statistics[start])
        return Walkers(self.model, federation, self.starts[start], self.how, lanes=self.lanes, statistics=own)

    def _walk(self, start: str, fold: int, federation: Federation, who: Array, lowest: Array | None) -> Array:
        walkers = self._walkers(start, federation, who)
        scores, name = [walkers.scores()], f"{start}, fold {fold + 1}"
        going = np.arange(federation.devices)
        while len(scores) <= self.how.epochs and len(going):
            walkers.go_on(going)
            walkers.epoch()
            scores.append(walkers.scores())
            self._tell(name, len(scores) - 1)
            means = by_device(np.asarray(scores), federation.test.offsets)
            stop = has_stopped(means, self.how.patience, self.how.epochs, lowest)
            going = np.flatnonzero(~stop & np.isin(np.arange(federation.devices), going))
        return np.asarray(scores)

    def _again(self, start: str, epochs: Array, name: str = "") -> Any:
        """Each device's model after so many epochs on all of its examples."""
        z = self.starts[start]
        out = jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], len(epochs), axis=0), z)
        if self.statistics is not None:
            out = {**out, "statistics": jax.tree.map(np.array, self.statistics[start])}
        going = np.flatnonzero(epochs > 0)
        if not len(going):
            return out
        kept = self.folder / f"again-{name or start}.safetensors" if self.folder is not None else None
        if kept is not None and kept.exists():
            return storage.restored(z, storage.read_arrays(kept)[0])
        walkers = self._walkers(start, subset(self.federation, going), going)
        for epoch in range(1, int(epochs.max()) + 1):
            walkers.go_on(np.flatnonzero(epochs[going] >= epoch))
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


def by_device(scores: Array, ends: Array) -> Array:
    """(epochs, devices): the mean scores of devices' stretches of rows."""
    return np.add.reduceat(scores, ends[:-1], axis=1) / np.diff(ends)


def has_stopped(means: Array, patience: int, epochs: int, lowest: Array | None = None) -> Array:
    """Which walks are over, by their mean scores after each epoch: those whose best score is `patience` epochs old, and
    those that, at the pace of their last `patience` epochs, would not come down to `lowest` in all of theirs."""
    done = len(means) - 1
    stopped = done - means.argmin(0) >= patience
    if lowest is not None and done >= patience:
        pace = (means[-1 - patience] - means[-1]) / patience
        stopped |= means[-1] - pace * (epochs - done) > lowest
    return stopped


def _sums(scores: Array) -> Scores:
    return Scores(scores.sum(1), scores @ scores.T, scores.shape[1])


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
