"""What computes on a device: the part of a Flower device that knows its data, apart from messages and files."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedbc.algorithms.base import Algorithm, Context, Finished
from fedbc.algorithms.finetune import FineTune
from fedbc.data.federation import Federation
from fedbc.flower.messages import Order
from fedbc.models.base import Model
from fedbc.personalization import Personalized, personalize
from fedbc.rewriting import rewritten
from fedbc.simulation import batches
from fedbc.simulation.device import LocalWork, Rows, run_key
from fedbc.simulation.evaluation import TunedModels
from fedbc.simulation.lanes import Copies, Lanes
from fedbc.simulation.schedule import NOISE, Batching
from fedbc.simulation.scoring import Scorer, Sums


class Scores(NamedTuple):
    """How a model did on a device's examples: sums over them."""

    correct: float
    loss: float


class Worker(Protocol):
    """One device's computations, for the time of one message. `on` is "train" or "test", a part of its data."""

    def examples(self, on: str) -> int:
        """How many examples it has."""

    def shape_state(self, method: Any) -> Any:
        """The shapes of what it keeps, from those of the method's state."""

    def new_state(self, method: Any) -> Any:
        """What it keeps before it first trains, from the method's state."""

    def method_state(self, state: Any) -> Any:
        """The method's part of what it keeps."""

    def train(self, order: Order, context: Context, message: Any, state: Any) -> Finished:
        """The local work of a round."""

    def score(self, params: Any, state: Any, on: str) -> Scores:
        """A model on its examples, of which there are some."""

    def score_tuned(self, params: Any, tune: FineTune, seed: int) -> Scores:
        """A model, fine-tuned, on its test examples, of which there are some."""

    def personalize(self, order: Order, z: Any) -> Personalized:
        """The model that serves it best, from the final global one and its own examples."""


@dataclass(frozen=True)
class JaxWorker:
    """A device that trains a model of JAX as the simulator does; its federation holds itself alone."""

    algorithm: Algorithm
    model: Model
    federation: Federation
    number: int
    """the device's number in the run"""

    def examples(self, on: str) -> int:
        """How many examples it has."""
        return len((self.federation.train if on == "train" else self.federation.test).y)

    def shape_state(self, method: Any) -> Any:
        """The method's state is all that it keeps."""
        return method

    new_state = method_state = shape_state

    def train(self, order: Order, context: Context, message: Any, state: Any) -> Finished:
        """The local work of a round."""
        batching = Batching(order.batch_size or None, order.epochs, self.algorithm.batches)
        table = batching.table(order.seed, order.round, self.number, self.examples("train"))
        round_key = jax.random.fold_in(run_key(order.seed, NOISE), order.round)
        message, state = jax.tree.map(jnp.asarray, (message, state))
        return self._compiled(batching)(message, state, context, Rows(table, np.int32(0)), self._train_data, round_key)

    def _compiled(self, batching: Batching) -> Any:
        """The local work of a round, compiled for the messages to come."""
        if batching not in self._programs:
            work = LocalWork(self.algorithm, self.model, self.federation, batching)
            self._programs[batching] = jax.jit(rewritten(work.train))
        return self._programs[batching]

    @functools.cached_property
    def _programs(self) -> dict[Batching, Any]:
        return {}

    @functools.cached_property
    def _train_data(self) -> Any:
        return jax.device_put(batches.host_data(self.federation.train, self.federation.shared))

    def score(self, params: Any, state: Any, on: str) -> Scores:
        """A model on its examples."""
        del state
        scorer, data = self._scorers[on]
        return _only(scorer.by_device(*scorer.one(self._lanes.put(params), data)))

    def score_tuned(self, params: Any, tune: FineTune, seed: int) -> Scores:
        """A model, fine-tuned, on its test examples."""
        models = TunedModels(tune, self.model, self.federation, None, seed, self.number)
        scorer, data = self._scorers["test"]
        own = np.zeros(1, int)
        return _only(scorer.own(models)(own, self._lanes.put(params), data, self._scorers[tune.on][1]))

    def personalize(self, order: Order, z: Any) -> Personalized:
        """As `fedbc.personalize` does, on the device's own examples."""
        rate = getattr(self.algorithm, "lr", None)
        batch_size = order.batch_size or None
        return personalize(z, self.model, self.federation, seed=order.seed, lr=rate, batch_size=batch_size, lanes=1)

    @functools.cached_property
    def _lanes(self) -> Lanes:
        return Lanes(1)

    @functools.cached_property
    def _scorers(self) -> dict[str, tuple[Scorer, Copies]]:
        """A scorer for each part of the data, and where the data are."""
        splits = {"train": self.federation.train, "test": self.federation.test}
        return {
            on: (
                Scorer(self.model, self.federation, split, self._lanes, 1),
                self._lanes.put(batches.host_data(split, self.federation.shared)),
            )
            for on, split in splits.items()
        }


def _only(sums: Sums) -> Scores:
    """The sums of a single device."""
    return Scores(float(sums.correct[0]), float(sums.loss[0]))
