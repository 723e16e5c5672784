"""Debug mode: no compilation, one device after the other, and an error names round, device and stage.

It runs the same algorithm code as the engine on the same plan, so a print or a breakpoint inside `step` just works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import trees
from fedbc.errors import DeviceError
from fedbc.simulation.engine import Engine, lane_input
from fedbc.simulation.lanes import Copies
from fedbc.simulation.schedule import Plan, Plans
from fedbc.simulation.store import DeviceStore
from fedbc.simulation.training import Trained, Training

T = TypeVar("T")


class ByHand(Training):
    """Rounds in plain Python (see `fedbc.simulation.training`)."""

    at_once = 1

    def __init__(self, engine: Engine, store: DeviceStore, data: Copies, key: Copies) -> None:
        self.engine, self.store, self.data, self.key = engine, store, data[0], key[0]

    def train(self, server: Any, plans: Plans, meanwhile: Callable[[], object]) -> list[Trained]:
        """One round."""
        del meanwhile
        (plan,) = plans.rounds
        with jax.disable_jit():
            return [self._train(server, plan)]

    def _train(self, server: Any, plan: Plan) -> Trained:
        engine = self.engine
        states, fresh = self.store.take(plan.devices)
        lanes = lane_input(states, fresh, plan)
        info = np.zeros((*plan.devices.shape, len(engine.shapes.info)))
        total = None
        for lane, place in zip(*plan.places, strict=True):
            here = jax.tree.map(lambda a, lane=lane: jnp.asarray(a[lane]), lanes)
            stage = _Stage(plan.round, int(plan.devices[lane, place]))
            done = engine.place_trainer(here, server, self.data, self.key)(place, stage)
            total = done.summand if total is None else trees.add(total, done.summand)
            for kind, row in engine.packing.pack(done.device).items():
                states[kind][lane, place] = row
            info[lane, place] = engine.info_row(done.info)
        server, finite = engine.conclude(server, [jax.tree.map(lambda a: a[None], total)])
        return Trained(server, [states], [info], finite)


class _Stage:
    """Runs a stage of a device's work; what fails there, or is not finite after it, is told with its place."""

    def __init__(self, round: int, device: int) -> None:
        self.where = f"round {round}, device {device}"

    def __call__(self, name: str, work: Callable[..., T], *arguments: Any) -> T:
        try:
            # As compiled code sees it, where a method's plain numbers become arrays.
            value = jax.tree.map(jnp.asarray, work(*arguments))
        except Exception as error:
            raise DeviceError(f"{self.where}, stage {name}: {type(error).__name__}: {error}") from error
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            if jnp.issubdtype(leaf.dtype, jnp.floating) and bool(jnp.isnan(leaf).any()):
                raise DeviceError(f"{self.where}, stage {name}: NaN in {jax.tree_util.keystr(path)}")
        return value
