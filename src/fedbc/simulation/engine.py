"""The compiled round: lanes of devices, each trained in one loop, their summands added, the server updated.

Lanes are spread over XLA devices (`shard_map`); on a CPU each core is one (see `fedbc.runtime`). Several lanes on one
device, as an accelerator wants them, are batched (`vmap`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedbc import trees
from fedbc.algorithms.base import Algorithm, Context, Loss
from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.simulation import batches
from fedbc.simulation.local import train_device
from fedbc.simulation.schedule import Batching, Plan

Array = jax.Array


class LaneInput(NamedTuple):
    """What one lane works through; arrays (of the host or of JAX) have a leading axis of places,
    `rows` one of table rows."""

    states: Any
    fresh: Any
    """whether the device takes part for the first time"""
    taken: Any
    """how many places are taken"""
    index: Any
    examples: Any
    steps: Any
    first: Any
    rows: Any


class Trained(NamedTuple):
    """The outcome of a round."""

    server: Any
    states: Any
    """new device states, (lanes, places, ...)"""
    info: Any
    """diagnostics, each (lanes, places)"""


class Engine:
    """Compiles and runs rounds of one algorithm on one federation."""

    def __init__(self, algorithm: Algorithm, model: Model, federation: Federation, batching: Batching, lanes: int):
        self.algorithm, self.batching, self.lanes = algorithm, batching, lanes
        self.population = federation.devices
        self.mesh = lane_mesh(lanes)
        self.everywhere = NamedSharding(self.mesh, PartitionSpec())
        self.by_lane = NamedSharding(self.mesh, PartitionSpec("lane"))
        self.gather = batches.gatherer(federation)
        self.loss: Loss
        if batching.batch_size is None:
            self.loss = batches.whole_loss_on(model, federation, int(federation.train.sizes.max()))
        else:
            self.loss = batches.loss_on(model)
        self.compilations = 0
        self._round = jax.jit(self._round_on_lanes)

    def put(self, tree: Any) -> Any:
        """Place a pytree on every lane's device."""
        return jax.device_put(tree, self.everywhere)

    def train(self, server: Any, states: Any, fresh: np.ndarray, plan: Plan, data: batches.Data, key: Array) -> Trained:
        """Run one round; returns at once, the arrays are ready later."""
        lanes = LaneInput(states, fresh, plan.counts, plan.devices, plan.examples, plan.steps, plan.first, plan.rows)
        return self._round(server, lanes, data, key, np.int32(plan.round))

    def _round_on_lanes(self, server: Any, lanes: LaneInput, data: batches.Data, key: Array, round: Array) -> Trained:
        self.compilations += 1  # this line runs only while JAX traces the function
        everywhere, by_lane = PartitionSpec(), PartitionSpec("lane")

        def on_device(server: Any, lanes: LaneInput, data: batches.Data, key: Array, round: Array) -> Trained:
            key = jax.random.fold_in(key, round)
            if self.lanes == self.mesh.size:
                total, states, info = self._lane(server, jax.tree.map(lambda a: a[0], lanes), data, key)
                states, info = jax.tree.map(lambda a: a[None], (states, info))
            else:
                total, states, info = jax.vmap(lambda lane: self._lane(server, lane, data, key))(lanes)
                total = jax.tree.map(lambda a: a.sum(0), total)
            total = jax.lax.psum(total, "lane")
            population = jnp.asarray(self.population, float)
            return Trained(self.algorithm.update(server, total, population), states, info)

        return jax.shard_map(
            on_device,
            mesh=self.mesh,
            in_specs=(everywhere, by_lane, everywhere, everywhere, everywhere),
            out_specs=Trained(everywhere, by_lane, by_lane),
            check_vma=False,
        )(server, lanes, data, key, round)

    def _lane(self, server: Any, lane: LaneInput, data: batches.Data, key: Array) -> tuple[Any, Any, dict[str, Array]]:
        """Train the lane's devices one after the other; their summands' total, new states and diagnostics."""
        algorithm = self.algorithm
        message = algorithm.broadcast(server)
        z = algorithm.global_model(server)

        def device(place: Array, sofar: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            total, states, info = sofar
            context = Context(lane.index[place], lane.examples[place], lane.steps[place])
            kept = jax.tree.map(lambda a: a[place], states)
            state = trees.where(lane.fresh[place], algorithm.init_device(z, context), kept)
            own_key = jax.random.fold_in(key, context.index)

            def batch(k: Array) -> Any:
                return self.batch(lane, place, context, data, own_key, k)

            done = train_device(algorithm, self.loss, batch, message, state, context)
            return (
                trees.add(total, done.summand),
                jax.tree.map(lambda a, new: a.at[place].set(new), states, done.device),
                jax.tree.map(lambda a, new: a.at[place].set(new), info, done.info),
            )

        summand, info = self._shapes(server, lane)
        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), summand)
        blank = jax.tree.map(lambda s: jnp.zeros((len(lane.index), *s.shape), s.dtype), info)
        return jax.lax.fori_loop(0, lane.taken, device, (empty, lane.states, blank))

    def batch(self, lane: LaneInput, place: Array, context: Context, data: batches.Data, key: Array, k: Array) -> Any:
        """What step k of the device at this place takes: a batch, or a tuple of them."""
        key = jax.random.fold_in(key, k)
        first, number = lane.first[place], self.batching.per_step
        parts: list[Any]
        if self.batching.batch_size is None:
            parts = [batches.WholeDevice(data, first, context.examples.astype(float), key)] * number
        else:
            parts = [
                self.gather(data, lane.rows[first + number * k + j], jax.random.fold_in(key, j)) for j in range(number)
            ]
        return parts[0] if number == 1 else tuple(parts)

    def _shapes(self, server: Any, lane: LaneInput) -> tuple[Any, Any]:
        """Shapes of a summand and of the diagnostics, found without computing."""
        algorithm = self.algorithm

        def outcome() -> tuple[Any, Any]:
            context = Context(lane.index[0], lane.examples[0], lane.steps[0])
            state = algorithm.init_device(algorithm.global_model(server), context)
            done = algorithm.finish(algorithm.begin(algorithm.broadcast(server), state, context))
            return done.summand, done.info

        return jax.eval_shape(outcome)


def lane_mesh(lanes: int) -> Mesh:
    """The XLA devices that lanes are spread over: as many as divide the lanes evenly."""
    devices = jax.devices()
    count = max(d for d in range(1, min(lanes, len(devices)) + 1) if lanes % d == 0)
    return Mesh(np.asarray(devices[:count]), ("lane",))
