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
from fedbc.algorithms.base import Context
from fedbc.errors import DeviceError
from fedbc.simulation.batches import Data
from fedbc.simulation.engine import Engine, Facts, lane_input
from fedbc.simulation.lanes import Copies
from fedbc.simulation.packing import Packed
from fedbc.simulation.schedule import Plan, Plans
from fedbc.simulation.store import DeviceStore
from fedbc.simulation.training import Trained

T = TypeVar("T")


class ByHand:
    """Rounds in plain Python (see `fedbc.simulation.training`)."""

    at_once = 1

    def __init__(self, engine: Engine, store: DeviceStore, data: Copies, key: Copies) -> None:
        self.engine, self.store, self.data, self.key = engine, store, data[0], key[0]

    def train(self, server: Any, plans: Plans, meanwhile: Callable[[], object]) -> list[Trained]:
        """One round."""
        del meanwhile
        (plan,) = plans.rounds
        return [_train(self.engine, server, *self.store.take(plan.devices), plan, self.data, self.key)]


def _train(engine: Engine, server: Any, states: Packed, fresh: Any, plan: Plan, data: Data, key_data: Any) -> Trained:
    algorithm, packing = engine.algorithm, engine.packing
    key = jax.random.fold_in(jax.random.wrap_key_data(key_data), plan.round)
    lanes = lane_input(states, fresh, plan)
    total, info = None, None
    for lane, place in zip(*plan.places, strict=True):
        here = jax.tree.map(lambda a, lane=lane: jnp.asarray(a[lane]), lanes)
        facts = Facts(*here.facts[place])
        context = Context(facts.index, facts.examples, facts.steps)
        stage = _Stage(plan.round, int(facts.index))
        state = packing.unpack({kind: rows[place] for kind, rows in here.states.items()})
        if facts.fresh:
            state = stage("init_device", algorithm.init_device, algorithm.global_model(server), context)
        carry = stage("begin", algorithm.begin, algorithm.broadcast(server), state, context)
        own_key = jax.random.fold_in(key, facts.index)
        for k in range(int(facts.steps)):
            batch = stage(f"batch of step {k}", engine.batch, here, facts, data, own_key, jnp.asarray(k))
            carry = stage(f"step {k}", algorithm.step, engine.loss, carry, batch)
        done = stage("finish", algorithm.finish, carry)
        total = done.summand if total is None else trees.add(total, done.summand)
        for kind, row in packing.pack(done.device).items():
            states[kind][lane, place] = row
        engine.info_names = tuple(done.info)
        info = np.zeros((*plan.devices.shape, len(done.info))) if info is None else info
        info[lane, place] = list(done.info.values())
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
