"""What is compiled of a round: a lane's devices, trained in one loop, and the server's update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import trees
from fedbc.algorithms.base import Algorithm, Context, Finished
from fedbc.algorithms.domains import Domain
from fedbc.data.federation import Federation
from fedbc.machines.world import Machines
from fedbc.models.base import Model
from fedbc.models.layers import LONGEST_UNROLLED
from fedbc.simulation import batches
from fedbc.simulation.device import LocalWork, Rows, Stage, run_stage
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.packing import Packed, Packing
from fedbc.simulation.schedule import Batching, Plan
from fedbc.simulation.shapes import Shapes
from fedbc.simulation.stopping import Stopping

Array = jax.Array


class LaneInput(NamedTuple):
    """What the lanes work through: arrays of the host or of JAX, few of them because each costs time to move."""

    states: Packed
    """(places, width): device states, packed"""
    facts: Any
    """(places, 5): Facts of the devices"""
    rows: Any
    """(length, batch_size): row numbers of the training data"""
    round: Any


class Facts(NamedTuple):
    """The columns of LaneInput.facts."""

    index: Any
    """-1 where a place is empty"""
    examples: Any
    steps: Any
    first: Any
    """the first row of the device in the table, or in the data"""
    fresh: Any
    """1 if the device takes part for the first time"""


class Engine:
    """The parts of a round of one algorithm on one federation, as functions to be compiled."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        federation: Federation,
        batching: Batching,
        lanes: Lanes,
        machines: Machines | None = None,
        stopping: Stopping | None = None,
        domain: Domain | None = None,
    ) -> None:
        self.algorithm, self.model, self.lanes = algorithm, model, lanes
        self.machines = machines or Machines()
        self.population, self.domain = federation.devices, domain
        self.work = LocalWork(algorithm, model, federation, batching, stopping)
        shapes = Shapes.of(algorithm, model)
        self.shapes = dataclasses.replace(shapes, info=(*shapes.info, *self.work.told))
        self.packing = Packing(self.shapes.device)
        self.compilations = 0
        self.tiny = model.tiny and batching.batch_size is not None and batching.batch_size <= LONGEST_UNROLLED

    def concluding(self) -> Callable[[Any, list[Any]], tuple[Any, Any]]:
        """The server's part of a round, compiled; where there are several machines they meet in it."""
        if self.machines.alone:
            return jax.jit(self.conclude)
        add, update = jax.jit(self.total), jax.jit(self.update)
        return lambda server, totals: update(server, self.machines.sum(add(totals)))

    def conclude(self, server: Any, totals: list[Any]) -> tuple[Any, Array]:
        """The server's part of a round: the lanes' totals added, the server updated, and whether z is finite."""
        return self.update(server, self.total(totals))

    def total(self, totals: list[Any]) -> Any:
        """The sum of the lanes' totals."""
        return jax.tree.map(lambda *parts: sum(part.sum(0) for part in parts), *totals)

    def update(self, server: Any, total: Any) -> tuple[Any, Array]:
        """The server's new state, and whether z is finite."""
        server = self.algorithm.update(server, total, jnp.asarray(self.population, float))
        if self.domain is not None:
            z = self.domain.project(self.algorithm.global_model(server))
            server = self.algorithm.with_global_model(server, z)
        leaves = jax.tree.leaves(self.algorithm.global_model(server))
        return server, jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]))

    def lane(self, lane: LaneInput, server: Any, data: batches.Data, key_data: Array) -> tuple[Any, Packed, Array]:
        """Train the lane's devices one after the other; their summands' total, new states and diagnostics."""
        self.compilations += 1  # this line runs only while JAX traces the function
        train = self.place_trainer(lane, server, data, key_data)

        def device(place: Array, sofar: tuple[Any, Packed, Array]) -> tuple[Any, Packed, Array]:
            total, new_states, info = sofar
            done = train(place)
            packed = self.packing.pack(done.device)
            return (
                trees.add(total, done.summand),
                {kind: rows.at[place].set(packed[kind]) for kind, rows in new_states.items()},
                info.at[place].set(self.info_row(done.info)),
            )

        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.shapes.summand)
        blank = jnp.zeros((len(lane.facts), len(self.shapes.info)))
        # The new states are written to a place of their own: where XLA reads too, it copies them all for each device.
        unset = jax.tree.map(jnp.zeros_like, lane.states)
        taken = jnp.sum(lane.facts[:, 0] >= 0)
        return jax.lax.fori_loop(0, taken, device, (empty, unset, blank))

    def place_trainer(
        self, lane: LaneInput, server: Any, data: batches.Data, key_data: Array
    ) -> Callable[..., Finished]:
        """A function that trains the device in one of the lane's places."""
        round_key = jax.random.fold_in(jax.random.wrap_key_data(key_data), lane.round)
        message, z = self.algorithm.broadcast(server), self.algorithm.global_model(server)

        work = self.work.in_round(lane.round)

        def train(place: Array, stage: Stage = run_stage) -> Finished:
            facts = Facts(*lane.facts[place])
            context = Context(facts.index, facts.examples, facts.steps)
            kept = self.packing.unpack({kind: rows[place] for kind, rows in lane.states.items()})
            new = stage("init_device", self.algorithm.init_device, z, context)
            state = trees.where(facts.fresh > 0, new, kept)
            rows = Rows(lane.rows, facts.first)
            return work.train(message, state, context, rows, data, round_key, stage)

        return train

    def info_row(self, info: dict[str, Array]) -> Array:
        """The diagnostics, in the order of `shapes.info`."""
        return jnp.stack([jnp.asarray(info[name], float) for name in self.shapes.info])


def lane_input(states: Packed, fresh: Any, plan: Plan) -> LaneInput:
    """A plan and its devices' states, laid out for the lanes."""
    facts = np.stack([plan.devices, plan.examples, plan.steps, plan.first, fresh.astype(np.int32)], axis=-1)
    return LaneInput(states, facts, plan.rows, np.full(len(facts), plan.round, np.int32))
