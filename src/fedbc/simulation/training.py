"""How rounds are run: one a call, or, for tiny models, several in one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedbc.simulation import batches
from fedbc.simulation.engine import Engine, LaneInput, lane_input
from fedbc.simulation.lanes import LANE, Copies, exchanged
from fedbc.simulation.packing import Packed, Packing
from fedbc.simulation.schedule import Planner, Plans
from fedbc.simulation.store import DeviceStore

Array = jax.Array
Meanwhile = Callable[[], object]

MOST_ROUNDS = 16
"""In one call: more gain little, and a run's first round waits for all of them."""
MOST_NUMBERS = 2**20
"""Row numbers in one call: about a quarter of a second's work on two cores, and a table that caches hold."""


class Trained(NamedTuple):
    """The outcome of a round."""

    server: Any
    states: list[Packed]
    """new device states, packed, in parts of (lanes, places, width)"""
    info: list[Any]
    """diagnostics, parts of (lanes, places, number of them); `Engine.shapes.info` has their names"""
    finite: Any
    """whether the new global model has no infinite or undefined value"""


class Training(Protocol):
    """Runs rounds."""

    at_once: int
    """the most rounds per call"""

    def train(self, server: Any, plans: Plans, meanwhile: Meanwhile) -> list[Trained]:
        """Run the planned rounds; `meanwhile` is called while the lanes compute. The store is read, not changed."""

    def close(self) -> None:
        """Release what outlives a run; another round may follow."""
        return


def training(engine: Engine, planner: Planner, store: DeviceStore, data: Copies, key: Copies) -> Training:
    """The faster way to run rounds."""
    if engine.model.rounds is not None:
        return engine.model.rounds(engine, planner, store, data, key)
    rounds = min(MOST_ROUNDS, MOST_NUMBERS // int(np.prod(planner.table_shape)))
    if engine.tiny and engine.lanes.mesh is not None and rounds > 1 and engine.machines.alone:
        return Strides(engine, planner, store, data, key, rounds)
    return SingleRounds(engine, store, data, key)


class SingleRounds(Training):
    """One round a call: the lanes train, each in a thread; then the server is updated."""

    at_once = 1

    def __init__(self, engine: Engine, store: DeviceStore, data: Copies, key: Copies) -> None:
        self.lanes, self.store, self.data, self.key = engine.lanes, store, data, key
        self._train = engine.lanes.compiled(engine.lane, tiny=engine.tiny)
        self._conclude = engine.concluding()

    def train(self, server: Any, plans: Plans, meanwhile: Meanwhile) -> list[Trained]:
        """One round."""
        (plan,) = plans.rounds
        own = lane_input(*self.store.take(plan.devices), plan)
        outcomes = self._train(own, self.lanes.share(server), self.data, self.key, meanwhile=meanwhile)
        totals, states, info = zip(*outcomes, strict=True)
        new_server, finite = self._conclude(server, self.lanes.gathered(list(totals)))
        return [Trained(new_server, list(states), list(info), finite)]


class Strides(Training):
    """Several rounds per call, for tiny models: their rounds take less time than Python needs to start and end them.

    The lanes go from round to round by themselves. At the end of a round they exchange what they computed, and each
    updates the server and the devices' states for itself. Every round's outcome is handed out.
    """

    def __init__(
        self, engine: Engine, planner: Planner, store: DeviceStore, data: Copies, key: Copies, at_once: int
    ) -> None:
        self.engine, self.store, self.at_once = engine, store, at_once
        self.slots = min(planner.population, at_once * planner.sample)
        """rows of the table of states: one for each device of a stride"""
        self.data, self.key = engine.lanes.everywhere(data), engine.lanes.everywhere(key)
        states = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, store.packing.empty(planner.depth)))
        rows = jax.eval_shape(lambda: jnp.zeros((planner.depth, len(engine.shapes.info))))
        # One array of each type of number: the lanes meet once for each array that they exchange.
        self.told, self.servers = Packing((engine.shapes.summand, states, rows)), Packing(engine.shapes.server)
        self._train = engine.lanes.meeting(self.lane, tiny=True)

    def train(self, server: Any, plans: Plans, meanwhile: Meanwhile) -> list[Trained]:
        """A stride."""
        own, shared = self.arguments(server, plans)
        outcome = self._train(own, *shared, meanwhile=meanwhile)
        told, servers, finite = jax.tree.map(np.asarray, outcome)
        return [self._trained(told, servers, finite, r) for r in range(len(plans.rounds))]

    def _trained(self, told: Packed, servers: Packed, finite: np.ndarray, r: int) -> Trained:
        _, states, info = self.told.unpack({kind: rows[r] for kind, rows in told.items()})
        server = self.servers.unpack({kind: rows[r] for kind, rows in servers.items()})
        return Trained(server, [states], [info], finite[r])

    def arguments(self, server: Any, plans: Plans) -> tuple[Any, Any]:
        """What a stride takes: each lane's own, and what all share."""
        rounds = plans.rounds
        count, room = len(rounds), self.at_once
        devices = np.full((room, *rounds[0].devices.shape), -1, np.int32)
        devices[:count] = [plan.devices for plan in rounds]
        known, earliest, slot = np.unique(devices, return_index=True, return_inverse=True)
        empty = int(known[0] < 0)
        table = np.full(self.slots, -1, np.int32)
        table[: len(known) - empty] = known[empty:]
        states, fresh = self.store.take(table)
        # A place without a device has a slot beyond the table: nothing is read from there, or written.
        slots = np.where(devices >= 0, slot.reshape(devices.shape) - empty, self.slots)
        first = np.arange(devices.size).reshape(devices.shape) == earliest[slot].reshape(devices.shape)
        facts = np.zeros((*devices.shape, 5), np.int32)
        facts[:count, ..., :4] = [
            np.stack([plan.devices, plan.examples, plan.steps, plan.first], axis=-1) for plan in rounds
        ]
        facts[..., 4] = first & np.append(fresh, True)[slots]
        own = facts.swapaxes(0, 1), plans.rows
        shared = slots, states, jax.tree.map(np.asarray, server), np.int32(rounds[0].round), np.int32(count)
        return own, (*shared, self.data, self.key)

    def lane(
        self,
        own: tuple[Array, Array],
        slots: Array,
        states: Packed,
        server: Any,
        first_round: Array,
        count: Array,
        data: batches.Data,
        key: Array,
    ) -> tuple[Packed, Packed, Array]:
        """One lane's part of a stride, and all that the lanes told each other; servers and whether they are finite."""
        facts, table = own
        engine, me, lanes = self.engine, jax.lax.axis_index(LANE), slots.shape[1]

        def one_round(r: Array, sofar: tuple[Any, ...]) -> tuple[Any, ...]:
            states, server, told, servers, finite = sofar
            taken = {kind: rows[slots[r, me]] for kind, rows in states.items()}
            done = engine.lane(LaneInput(taken, facts[r], table[r], first_round + r), server, data, key)
            all_told = exchanged(self.told.pack(done))
            totals, new_states, _ = self.told.unpack(all_told)
            server, fine = engine.conclude(server, [totals])
            states = {kind: rows.at[slots[r]].set(new_states[kind], mode="drop") for kind, rows in states.items()}
            told = {kind: rows.at[r].set(all_told[kind]) for kind, rows in told.items()}
            packed = self.servers.pack(server)
            servers = {kind: rows.at[r].set(packed[kind]) for kind, rows in servers.items()}
            return states, server, told, servers, finite.at[r].set(fine)

        told = {kind: jnp.zeros((self.at_once, lanes, width), kind) for kind, width in self.told.widths.items()}
        servers = {kind: jnp.zeros((self.at_once, width), kind) for kind, width in self.servers.widths.items()}
        start = states, server, told, servers, jnp.zeros(self.at_once, bool)
        return jax.lax.fori_loop(0, count, one_round, start)[2:]
