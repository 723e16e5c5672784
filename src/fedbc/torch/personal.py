"""A model for a PyTorch device of its own, by the user's training loop: the walk of `fedbc.personalization`.

The package says which examples the loop sees and when it stops. Both walks, from z and from the common initial model,
go on epoch by epoch, each a call of the loop with `run.epochs` = 1 on the training DataLoader, but for the examples
that the device holds out (a `Subset` of its dataset). What is held out is scored after each epoch, one example after
the other, by the user's own test. Then the chosen walk is done again with all examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset

from fedbc.algorithms.fedavg import FedAvg
from fedbc.data.federation import Split
from fedbc.errors import InputError
from fedbc.flower.settings import RunConfig
from fedbc.flower.worker import Scores
from fedbc.personalization import Personalized
from fedbc.personalization.folds import FOLDS, folds
from fedbc.personalization.walked import FEW, decide, has_stopped
from fedbc.torch.local import LocalRound
from fedbc.torch.weights import Arrays, buffers, load_arrays, parameters

EPOCHS = 10
"""The most epochs of a walk."""
PATIENCE = 4
"""Epochs without a better score that end it."""
Array = np.ndarray


def check_personal(module: nn.Module, loaders: tuple[DataLoader, DataLoader]) -> None:
    """Raise an InputError if examples could not be held out of the training DataLoader, or models not be compared."""
    why = None
    if buffers(module):
        why = "its module has buffers, such as running statistics, beside its parameters"
    elif loaders[0].batch_size is None:
        why = "its training DataLoader has no batch_size: one with a batch_sampler of its own cannot be cut"
    elif type(loaders[0].sampler) not in (RandomSampler, SequentialSampler):
        why = f"its training DataLoader draws by a {type(loaders[0].sampler).__name__}, which cannot be cut"
    if why is not None:
        raise InputError(f"run.personalize = true is not for this PyTorch device: {why}")


@dataclass
class PersonalWalks:
    """One device's."""

    module: nn.Module
    loaders: tuple[DataLoader, DataLoader]
    loop: Callable[[nn.Module, DataLoader, LocalRound, RunConfig], None]
    test: Callable[[nn.Module, DataLoader], Scores]
    config: RunConfig
    method: FedAvg
    """whose rate and momentum `local.sgd()` has"""
    starts: dict[str, Arrays]
    """z and w^0, by their names in `fedbc.personalization.walked.STARTS`"""
    seed: int

    def run(self) -> Personalized:
        """Held out, chosen, walked again."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self._run()

    def _run(self) -> Personalized:
        size = len(self.loaders[0].dataset)  # type: ignore[arg-type]
        nothing = np.zeros(size)
        fold_of = folds(Split(nothing, nothing, np.asarray([0, size])), self.seed, few=FEW)
        z = self._held_out(self.starts["z"], fold_of, None)
        table = {"z": z, "alone": self._held_out(self.starts["alone"], fold_of, z)}
        choice = decide({start: scores[:, fold_of >= 0] for start, scores in table.items()})
        alone = self._after("alone", choice.alone)
        same = choice.start == "alone" and choice.epochs == choice.alone
        personal = alone if same else self._after(choice.start, choice.epochs)
        models = {"global": self.starts["z"], "alone": alone, "personal": personal}
        drift = sum(float(np.sum((np.asarray(personal[k], float) - z) ** 2)) for k, z in self.starts["z"].items())
        gamma = drift if choice.start == "z" else np.inf
        return Personalized(
            local_models={name: a[None] for name, a in personal.items()},
            alone_models={name: a[None] for name, a in alone.items()},
            tolerances=np.asarray([gamma]),
            multipliers=np.asarray([np.inf if gamma == 0 else np.nan]),
            residuals=np.asarray([np.nan]),
            epochs=np.asarray([float(choice.epochs)]),
            right={name: self._each(model, self.loaders[1])[0] for name, model in models.items()},
            train_examples=np.asarray([size]),
            test_examples=np.asarray([len(self.loaders[1].dataset)]),  # type: ignore[arg-type]
            names=("0",),
            unseen=np.asarray([False]),
            how={"how": "walk", "seed": self.seed, "classes": True, "epochs": EPOCHS, "patience": PATIENCE},
        )

    def _held_out(self, start: Arrays, fold_of: Array, rival: Array | None) -> Array:
        """(epochs + 1, examples): the scores of the examples held out after each epoch, the first before any; what the
        device had last goes on after it stopped. `rival` is the other walk's table."""
        table = np.full((EPOCHS + 1, len(fold_of)), np.nan)
        for fold in range(FOLDS):
            out = np.flatnonzero(fold_of == fold)
            if not len(out):
                continue
            rest, held_out = np.flatnonzero(fold_of != fold), Subset(self.loaders[0].dataset, out.tolist())
            lowest = None if rival is None else rival[:, out].mean(1).min(keepdims=True)
            scores: list[Array] = []
            for model in self._walk(start, rest):
                loss = self._each(model, DataLoader(held_out, collate_fn=self.loaders[0].collate_fn))[1]
                scores.append(-np.expm1(-loss))
                means = np.asarray([[row.mean()] for row in scores])
                if len(scores) > EPOCHS or has_stopped(means, PATIENCE, EPOCHS, lowest)[0]:
                    break
            table[: len(scores), out], table[len(scores) :, out] = scores, scores[-1]
        return table

    def _walk(self, start: Arrays, rows: Array | None) -> Iterator[Arrays]:
        """The models before and after each epoch on these examples; all of them for None."""
        now, loader = start, self.loaders[0] if rows is None else _part(self.loaders[0], rows)
        while True:
            yield now
            local = LocalRound(self.method, self.module, now)
            self.module.train()
            self.loop(self.module, loader, local, {**self.config, "run.epochs": 1})
            local.finish()
            now = parameters(self.module)

    def _after(self, start: str, epochs: int) -> Arrays:
        walk = self._walk(self.starts[start], None)
        return [next(walk) for _ in range(epochs + 1)][-1]

    def _each(self, model: Arrays, loader: DataLoader) -> tuple[Array, Array]:
        """Whether the model answers each example rightly, and its loss on each."""
        load_arrays(self.module, model)
        self.module.eval()
        found = []
        for row in range(len(loader.dataset)):  # type: ignore[arg-type]
            one = DataLoader(Subset(loader.dataset, [row]), collate_fn=loader.collate_fn)
            found.append(self.test(self.module, one))
        both = np.asarray(found, float).reshape(-1, 2)
        return both[:, 0], both[:, 1]


def _part(loader: DataLoader, rows: Array) -> DataLoader:
    """The same for some of its examples; batches that would be dropped for want of a few are not, if all would be."""
    size = loader.batch_size or 1
    return DataLoader(
        Subset(loader.dataset, rows.tolist()),
        batch_size=size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last and len(rows) >= size,
    )
