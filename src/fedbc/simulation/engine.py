"""What is compiled of a round: a lane's devices, trained in one loop, and the server's update."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import trees
from fedbc.algorithms.base import Algorithm, Context, Loss
from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.models.layers import LONGEST_UNROLLED
from fedbc.simulation import batches
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.local import train_device
from fedbc.simulation.packing import Packed, Packing
from fedbc.simulation.schedule import Batching, Plan

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

    def __init__(self, algorithm: Algorithm, model: Model, federation: Federation, batching: Batching, lanes: Lanes):
        self.algorithm, self.batching, self.lanes = algorithm, batching, lanes
        self.population = federation.devices
        self.gather = batches.gatherer(federation)
        self.loss: Loss
        if batching.batch_size is None:
            self.loss = batches.whole_loss_on(model, federation, int(federation.train.sizes.max()))
        else:
            self.loss = batches.loss_on(model)
        params = jax.eval_shape(model.init, jax.random.key(0))
        self.server_shapes = jax.eval_shape(algorithm.init_server, params)
        self.state_shapes = jax.eval_shape(algorithm.init_device, params, no_context())
        self.packing = Packing(self.state_shapes)
        self.info_names: tuple[str, ...] = ()
        self.compilations = 0
        self.tiny = model.tiny and batching.batch_size is not None and batching.batch_size <= LONGEST_UNROLLED

    def conclude(self, server: Any, totals: list[Any]) -> tuple[Any, Array]:
        """The server's part of a round: the lanes' totals added, the server updated, and whether z is finite."""
        total = jax.tree.map(lambda *parts: sum(part.sum(0) for part in parts), *totals)
        server = self.algorithm.update(server, total, jnp.asarray(self.population, float))
        leaves = jax.tree.leaves(self.algorithm.global_model(server))
        return server, jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]))

    def lane(self, lane: LaneInput, server: Any, data: batches.Data, key_data: Array) -> tuple[Any, Packed, Array]:
        """Train the lane's devices one after the other; their summands' total, new states and diagnostics."""
        self.compilations += 1  # this line runs only while JAX traces the function
        algorithm = self.algorithm
        key = jax.random.fold_in(jax.random.wrap_key_data(key_data), lane.round)
        message = algorithm.broadcast(server)
        z = algorithm.global_model(server)

        def device(place: Array, sofar: tuple[Any, Packed, Array]) -> tuple[Any, Packed, Array]:
            total, new_states, info = sofar
            facts = Facts(*lane.facts[place])
            context = Context(facts.index, facts.examples, facts.steps)
            kept = self.packing.unpack({kind: rows[place] for kind, rows in lane.states.items()})
            state = trees.where(facts.fresh > 0, algorithm.init_device(z, context), kept)
            own_key = jax.random.fold_in(key, context.index)

            def batch(k: Array) -> Any:
                return self.batch(lane, facts, data, own_key, k)

            done = train_device(algorithm, self.loss, batch, message, state, context)
            packed = self.packing.pack(done.device)
            return (
                trees.add(total, done.summand),
                {kind: rows.at[place].set(packed[kind]) for kind, rows in new_states.items()},
                info.at[place].set(self._info_row(done.info)),
            )

        summand, info = self.outcome_shapes
        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), summand)
        self.info_names = tuple(info)
        blank = jnp.zeros((len(lane.facts), len(info)))
        # The new states are written to a place of their own: where XLA reads too, it copies them all for each device.
        unset = jax.tree.map(jnp.zeros_like, lane.states)
        taken = jnp.sum(lane.facts[:, 0] >= 0)
        return jax.lax.fori_loop(0, taken, device, (empty, unset, blank))

    def _info_row(self, info: dict[str, Array]) -> Array:
        return jnp.stack([jnp.asarray(info[name], float) for name in self.info_names])

    def batch(self, lane: LaneInput, facts: Facts, data: batches.Data, key: Array, k: Array) -> Any:
        """What step k of a device takes: a batch, or a tuple of them."""
        key = jax.random.fold_in(key, k)
        first, number = facts.first, self.batching.per_step
        parts: list[Any]
        if self.batching.batch_size is None:
            parts = [batches.WholeDevice(data, first, facts.examples.astype(float), key)] * number
        else:
            parts = [
                self.gather(data, lane.rows[first + number * k + j], jax.random.fold_in(key, j)) for j in range(number)
            ]
        return parts[0] if number == 1 else tuple(parts)

    @functools.cached_property
    def outcome_shapes(self) -> tuple[Any, dict[str, Any]]:
        """Shapes of a summand and of the diagnostics, found without computing."""
        algorithm = self.algorithm

        def outcome(server: Any) -> tuple[Any, Any]:
            context = no_context()
            state = algorithm.init_device(algorithm.global_model(server), context)
            done = algorithm.finish(algorithm.begin(algorithm.broadcast(server), state, context))
            return done.summand, done.info

        return jax.eval_shape(outcome, self.server_shapes)


def lane_input(states: Packed, fresh: Any, plan: Plan) -> LaneInput:
    """A plan and its devices' states, laid out for the lanes."""
    facts = np.stack([plan.devices, plan.examples, plan.steps, plan.first, fresh.astype(np.int32)], axis=-1)
    return LaneInput(states, facts, plan.rows, np.full(len(facts), plan.round, np.int32))


def no_context() -> Context:
    """A context to find shapes with."""
    return Context(jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32), jnp.ones((), jnp.int32))
