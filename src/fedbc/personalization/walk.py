"""The path of a network's constrained problem, walked by mini-batch descent and stopped early.

A network's f_i is not convex, and to solve many constrained problems of it costs many times a training run. Descent
from z passes through the same models, from gamma = 0 on: after each epoch the model is a little farther from z, at the
tolerance gamma = ‖x - z‖². How far a device should go is chosen on examples that it held out, and then walked again on
all of them. A second walk starts at the common initial model, so that training alone is among the choices.

The epochs are rounds of local-only training in the simulator, in which every device takes part, so that its lanes and
PyTorch modules serve here, too. Statistics that a model keeps besides its parameters go along with the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc.algorithms.base import Context
from fedbc.algorithms.localonly import LocalOnly
from fedbc.data.federation import Federation, Split
from fedbc.models.base import Model
from fedbc.personalization.choice import judged
from fedbc.simulation.evaluation import OwnModels
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.scoring import Scorer
from fedbc.simulation.settings import Settings

Array = np.ndarray


@dataclass(frozen=True)
class Steps:
    """How the walk is done."""

    lr: float
    momentum: float
    batch_size: int | None
    epochs: int
    """the most, from each start"""
    patience: int
    """epochs without a better score after which a device's walk ends"""
    seed: int


class Walkers:
    """The walks of a federation's devices from one model."""

    def __init__(
        self, model: Model, federation: Federation, start: Any, how: Steps, *, lanes: int | None, statistics: Any = None
    ) -> None:
        """`start` is the model that all begin at, and `statistics` are their own, stacked."""
        if model.statistics is not None:  # while walking, nobody hears of anybody else's
            model = replace(model, statistics="local")
        settings = Settings(
            epochs=1, batch_size=how.batch_size, seed=how.seed, evaluate=(), evaluate_every=2**30, lanes=lanes
        )
        algorithm = LocalOnly(lr=how.lr, momentum=how.momentum)
        self.run = Simulation(algorithm, model, federation, settings, initial=start)
        if model.statistics is not None:
            self._begin_with(statistics)
        self._judge = Scorer(
            judged(model), federation, federation.test, self.run.engine.lanes, self.run.planner.depth
        ).own_rows(OwnModels(self.run.algorithm, self.run.store))
        self.devices = np.arange(federation.devices)

    def _begin_with(self, statistics: Any) -> None:
        """Every device is there, with statistics of its own."""
        z, none = self.run.algorithm.global_model(self.run.server), jnp.zeros((), np.int32)
        count = self.run.federation.devices

        def one(statistics: Any) -> Any:
            return self.run.algorithm.init_device({**z, "statistics": statistics}, Context(none, none, none))

        self.run.store.restore(np.arange(count), jax.tree.map(np.asarray, jax.vmap(one)(statistics)))

    def epoch(self) -> None:
        """The devices that have not stopped go on for one epoch."""
        self.run.advance()

    def go_on(self, devices: Array) -> None:
        """The other devices stop."""
        if len(devices) < len(self.devices):
            self.run.train_only(devices)

    def scores(self) -> Array:
        """How each device's model answers its held-out examples now, one score per row."""
        lanes, test = self.run.engine.lanes, self.run.evaluator.test_data
        z = lanes.share(self.run.algorithm.global_model(self.run.server))
        return self._judge(self.devices, z, test, test)[1]

    def models(self) -> Any:
        """The devices' models now, stacked."""
        store = self.run.store
        order = np.argsort(store.devices)
        models = jax.vmap(self.run.algorithm.local_model)(store.stacks)
        return jax.tree.map(lambda a: np.asarray(a)[order], models)


def held_out_by(federation: Federation, fold_of: Array, fold: int) -> tuple[Federation, Array]:
    """The devices that hold examples out in a fold, these being their test sets; and their numbers."""
    train, out = federation.train, fold_of == fold
    owner = np.repeat(np.arange(federation.devices), train.sizes)
    taken = np.bincount(owner[out], minlength=federation.devices)
    some = np.flatnonzero(taken)
    mine = np.isin(owner, some)

    def split(rows: Array) -> Split:
        sizes = np.bincount(owner[rows], minlength=federation.devices)[some]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(train.offsets.dtype)
        return Split(train.x[rows], train.y[rows], offsets)

    names = federation.names_of(some)
    return replace(federation, train=split(mine & ~out), test=split(mine & out), origin=None, device_names=names), some
