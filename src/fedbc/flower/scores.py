"""How well the models do on one device: sums that the server adds up into a row of history.

| metric | sum over which examples, of which model |
| --- | --- |
| test_examples, train_examples | how many there are |
| global_correct, global_loss | z on the test set: right answers, loss |
| global_train_loss | z on the training set |
| local_correct, local_loss | x_i on the test set; z's where the device has no x_i yet |
| tuned_correct | the fine-tuned model on the test set |
| local_train_loss | x_i on the training set |
| drift, multiplier, tolerance | ‖x_i - z‖², lambda_i, gamma_i |

Which of them are sent depends on what the run evaluates (`fedbc.simulate` tells the words).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbc import trees
from fedbc.algorithms.base import Algorithm
from fedbc.algorithms.finetune import FineTune
from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.simulation import batches, metrics
from fedbc.simulation.evaluation import TunedModels
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.scoring import Scorer, Sums

DUALS = ("multiplier", "tolerance")


def names(what: tuple[str, ...], tune: FineTune | None, device_shapes: Any) -> tuple[str, ...]:
    """The metrics that an answer to "evaluate" holds."""
    sent = ["test_examples", "train_examples", "global_correct", "global_loss"]
    if "train" in what or "lagrangian" in what:
        sent.append("global_train_loss")
    if "local" in what:
        sent += ["local_correct", "local_loss"]
        if tune is not None:
            sent.append("tuned_correct")
    if "lagrangian" in what:
        sent += ["local_train_loss", "drift", *(n for n in DUALS if hasattr(device_shapes, n))]
    return tuple(sent)


class DeviceScorer:
    """Scores models on one device's data, which lies in its place among empty devices."""

    def __init__(
        self, algorithm: Algorithm, model: Model, federation: Federation, device: int, tune: FineTune | None, seed: int
    ) -> None:
        self.algorithm, self.device, self.tune = algorithm, device, tune
        self.lanes = Lanes(1)
        self.test = Scorer(model, federation, federation.test, self.lanes, 1)
        self.train = Scorer(model, federation, federation.train, self.lanes, 1)
        self.data = {
            "train": self.lanes.put(batches.host_data(federation.train, federation.shared)),
            "test": self.lanes.put(batches.host_data(federation.test, federation.shared)),
        }
        if tune is not None:
            self.tuned = self.test.own(TunedModels(tune, model, federation, None, seed))

    def __call__(self, what: tuple[str, ...], z: Any, state: Any | None, fresh: Any) -> dict[str, float]:
        """The metrics; `state` is the device's, `fresh` the one that it would start from."""
        x = self.algorithm.local_model(state) if state is not None else z
        values = self._scores(self.test, z, "test", "global_correct", "global_loss")
        values |= {"test_examples": self._size(self.test), "train_examples": self._size(self.train)}
        values |= self._scores(self.test, x, "test", "local_correct", "local_loss")
        sent = names(what, self.tune, fresh)
        if "global_train_loss" in sent:
            values |= self._scores(self.train, z, "train", None, "global_train_loss")
        if self.tune is not None and "tuned_correct" in sent:
            values["tuned_correct"] = self._tuned(self.tune, z if self.tune.of == "global" else x)
        if "lagrangian" in what:
            values |= self._scores(self.train, x, "train", None, "local_train_loss")
            values["drift"] = float(trees.sqdist(x, z))
            current = state if state is not None else fresh
            values |= {name: float(getattr(current, name)) for name in DUALS if hasattr(current, name)}
        return {name: values[name] for name in sent}

    def _size(self, scorer: Scorer) -> float:
        return float(scorer.split.sizes[self.device])

    def _scores(self, scorer: Scorer, params: Any, on: str, correct: str | None, loss: str) -> dict[str, float]:
        if not self._size(scorer):
            return ({correct: 0.0} if correct else {}) | {loss: 0.0}
        sums = scorer.by_device(*scorer.one(self.lanes.put(params), self.data[on]))
        found = {loss: float(sums.loss[self.device])}
        return found | ({correct: float(sums.correct[self.device])} if correct else {})

    def _tuned(self, tune: FineTune, params: Any) -> float:
        if not self._size(self.test):
            return 0.0
        own = np.asarray([self.device])
        return float(self.tuned(own, self.lanes.put(params), self.data["test"], self.data[tune.on]).correct[0])


def row(
    answers: Mapping[int, Mapping[str, float]], what: tuple[str, ...], tune: FineTune | None, accuracy: bool
) -> dict[str, float]:
    """The columns of history, from the metrics of the devices that answered; the others are left out."""
    column = {
        name: np.asarray([answers[device][name] for device in sorted(answers)])
        for name in next(iter(answers.values()), {})
    }
    if not column:
        return {}
    examples, train_examples = column["test_examples"], column["train_examples"]
    found: dict[str, float] = {}
    if not examples.any():  # nobody has test data: there is nothing to say of accuracy
        what = tuple(w for w in what if w not in ("global", "local"))
    elif "global" in what:
        found |= metrics.global_row(Sums(column["global_correct"], column["global_loss"], examples), train_examples)
    else:
        found["global_test_loss"] = column["global_loss"].sum() / examples.sum()
    if "global_train_loss" in column:
        none = np.zeros_like(train_examples)
        found |= metrics.train_row(Sums(none, column["global_train_loss"], train_examples))
    if "local" in what:
        found |= metrics.local_row(Sums(column["local_correct"], column["local_loss"], examples))
        if tune is not None:
            correct = column["tuned_correct"]
            found |= metrics.tuned_row(Sums(correct, correct, examples), tune.column)
    if "lagrangian" in what:
        missing = np.full(len(examples), np.nan)
        duals = (column.get(name, missing) for name in DUALS)
        found |= metrics.lagrangian_row(column["local_train_loss"] / train_examples, column["drift"], *duals)
    found = {name: float(value) for name, value in found.items()}
    return found if accuracy else metrics.without_accuracy(found)
