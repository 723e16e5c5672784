"""Rounds of training in which PyTorch takes the local steps, for any method (`fedbc.simulation.training.Training`).

A device's `begin` and `finish`, the server's `update` and all state are JAX's, as for any model; between the two a
worker process takes the steps: the method's own `step`, traced (`fedbc.torch.program`), on the module
(`fedbc.torch.oracle`). To it travels what the steps read, once a round what begins alike on all devices, such as z; and
back what the method's end needs. Who trains, on which rows, in which lane, with which random numbers, is the same as
for a model of JAX; a lane is a worker.
"""

from __future__ import annotations

from multiprocessing.connection import wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fedbc import trees
from fedbc.algorithms.base import Algorithm, Context, Finished
from fedbc.algorithms.statistics import Carry, WithStatistics
from fedbc.errors import DeviceError
from fedbc.simulation.engine import Engine
from fedbc.simulation.lanes import Copies
from fedbc.simulation.packing import Packed
from fedbc.simulation.schedule import Plan, Planner, Plans
from fedbc.simulation.store import DeviceStore
from fedbc.simulation.training import Meanwhile, SingleRounds, Trained, Training
from fedbc.torch import workers
from fedbc.torch.data import DeviceData
from fedbc.torch.equations import inputs_needed, results_following
from fedbc.torch.network import Network
from fedbc.torch.operations import Unknown
from fedbc.torch.oracle import Batch, Oracle, TorchLoss, loss
from fedbc.torch.program import trace
from fedbc.torch.vectors import Vectors

Array = np.ndarray


def training(
    network: Network,
    mean_loss: TorchLoss,
    engine: Engine,
    planner: Planner,
    store: DeviceStore,
    data: Copies,
    key: Copies,
) -> Training:
    """PyTorch's way to run rounds; JAX's, with the module called from its loop, for what PyTorch cannot run.

    That is a step of unknown operations, one whose rates a schedule moves, and local work that ends by its residual.
    """
    if engine.algorithm.in_round(jnp.asarray(1)) is not engine.algorithm or engine.work.until is not None:
        return SingleRounds(engine, store, data, key)
    try:
        return TorchRounds(network, mean_loss, engine, planner, store, data, key)
    except Unknown:
        return SingleRounds(engine, store, data, key)


class Steps:
    """A method's local step on vectors, and what of its carry the steps read and change."""

    def __init__(self, engine: Engine) -> None:
        self.algorithm, shapes = engine.algorithm, engine.shapes
        self.statistics: Any = shapes.params["statistics"] if engine.model.statistics else {}
        """of the module, by name; they go from device to device beside what the method carries"""
        self.vectors = Vectors(engine.model.trained(shapes.params))
        number: Any = jax.ShapeDtypeStruct((), np.int32)
        context = Context(number, number, number)
        method = self._method(self.algorithm)
        carry, statistics = jax.eval_shape(
            lambda *given: self._parts(self.algorithm.begin(*given)), shapes.broadcast, shapes.device, context
        )
        dtype = jnp.result_type(float)
        batch = Batch(jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), dtype))
        count = self.algorithm.batches
        given = batch if count == 1 else (batch,) * count
        # A schedule may move a method's rates from round to round.
        self.program = trace(
            lambda carry, batch, round: method.in_round(round).step(loss, carry, batch), carry, given, number
        )
        leaves, structure = jax.tree.flatten(carry)
        self.structure: Any = structure
        self.carried = len(leaves)
        self.leaves: list[Any] = leaves + jax.tree.leaves(statistics)
        """what the method carries, then the statistics"""
        beside = list(range(self.carried, len(self.leaves)))
        forwarded = self.program.forwarded()
        self.moved = [i for i in range(self.carried) if forwarded[i] != i] + beside
        used = self.program.used | {f for i, f in enumerate(forwarded) if f is not None and f != i}
        read = sorted(i for i in used if i < self.carried) + beside
        begins_with = (shapes.broadcast, shapes.device, context, number)
        before, of_device = (len(jax.tree.leaves(part)) for part in (begins_with[0], begins_with[1:3]))
        following = results_following(jax.make_jaxpr(self.begin)(*begins_with), range(before, before + of_device))
        self.common = [i for i in read if self.leaves[i].ndim and i not in following]
        """of what the steps read, the vectors that are the same on all devices of a round"""
        self.own = [i for i in read if i not in self.common]
        self.changed = self.moved
        ended = jax.make_jaxpr(self.finish)(*begins_with, [self.leaves[i] for i in self.moved])
        needs, first = inputs_needed(ended), before + of_device + 1
        self.changed = [i for place, i in enumerate(self.moved, first) if place in needs]
        """of what the steps change, what the method's end needs"""

    def begin(self, message: Any, state: Any, context: Context, round: Any) -> list[Any]:
        """The leaves, vectors joined."""
        return jax.tree.leaves(self._parts(self.algorithm.in_round(round).begin(message, state, context)))

    def finish(self, message: Any, state: Any, context: Context, round: Any, changed: list[Any]) -> Finished:
        """The method's end, from what the steps changed."""
        leaves = self.begin(message, state, context, round)
        for i, value in zip(self.changed, changed, strict=True):
            leaves[i] = jnp.asarray(value, self.leaves[i].dtype)
        carry = self.vectors.split(jax.tree.unflatten(self.structure, leaves[: self.carried]))
        if self.statistics:
            statistics = dict(zip(self.statistics, leaves[self.carried :], strict=True))
            carry = Carry(carry, statistics, context.examples)
        return self.algorithm.in_round(round).finish(carry)

    def _method(self, algorithm: Algorithm) -> Algorithm:
        """The method that takes the steps."""
        return algorithm.algorithm if isinstance(algorithm, WithStatistics) else algorithm

    def _parts(self, carry: Any) -> tuple[Any, Any]:
        """What the method carries, vectors joined, and the statistics."""
        own, statistics = (carry.inner, carry.statistics) if isinstance(carry, Carry) else (carry, {})
        return self.vectors.joined(own), statistics


class Facts(NamedTuple):
    """What travels through the pipe to a worker."""

    numbers: list[Any]
    """the device's own leaves that are numbers, in the order of those that steps read; None for an array"""
    steps: int
    rows: int
    """rows of the device's table; for full-batch descent, its examples"""
    first: int
    """for full-batch descent, the device's first row in the data"""
    seeds: Array | None
    """of the batches' random numbers"""
    round: int


class TorchRounds(Training):
    """One round a call: a worker for each lane takes its devices' steps, one device after the other."""

    at_once = 1

    def __init__(
        self,
        network: Network,
        mean_loss: TorchLoss,
        engine: Engine,
        planner: Planner,
        store: DeviceStore,
        data: Copies,
        key: Copies,
    ) -> None:
        self.network, self.engine, self.store = network, engine, store
        self.steps = Steps(engine)
        self.data = DeviceData(network, engine.work, planner, data[0], key[0])
        layout = workers.Layout()
        leaves = self.steps.leaves
        self._given = {i: layout.add(leaves[i].shape, leaves[i].dtype) for i in self.steps.own if leaves[i].ndim}
        self._taken = {i: layout.add(leaves[i].shape, leaves[i].dtype) for i in self.steps.changed if leaves[i].ndim}
        self.data.lay_out(layout)
        self._bytes, self._mean_loss = layout.bytes, mean_loss
        layout = workers.Layout()
        self._shared = {i: layout.add(leaves[i].shape, leaves[i].dtype) for i in self.steps.common}
        self._common = workers.Slots(layout.bytes, 1)
        self._workers: list[Any] = []
        self._begin, self._finish = jax.jit(self._begun), jax.jit(self._finished, donate_argnums=(0,))
        self._begin_common = jax.jit(self._begun_alike)
        self._conclude = engine.concluding()

    # In JAX.

    def _begun(self, server: Any, row: Packed, facts: Array) -> list[Any]:
        """What the steps read of the device's own."""
        leaves = self.steps.begin(*self._device(server, row, facts))
        return [leaves[i] for i in self.steps.own]

    def _begun_alike(self, server: Any, round: Any) -> list[Any]:
        """What they read that is the same on all devices: any device will do."""
        none = jnp.zeros((), np.int32)
        state = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.engine.shapes.device)
        message = self.engine.algorithm.broadcast(server)
        leaves = self.steps.begin(message, state, Context(none, none, none), round)
        return [leaves[i] for i in self.steps.common]

    def _finished(self, total: Any, server: Any, row: Packed, facts: Array, changed: list[Any]) -> tuple[Any, ...]:
        """The lane's total with the device's summand, its new state and its diagnostics."""
        done = self.steps.finish(*self._device(server, row, facts), changed)
        total = jax.tree.map(lambda t, s: t + s[None], total, done.summand)
        told = dict.fromkeys(self.engine.work.told, facts[2])  # the number of steps, if it differs
        return total, self.engine.packing.pack(done.device), self.engine.info_row({**done.info, **told})

    def _device(self, server: Any, row: Packed, facts: Array) -> tuple[Any, Any, Context, Any]:
        algorithm = self.engine.algorithm
        context = Context(facts[0], facts[1], facts[2])
        new = algorithm.init_device(algorithm.global_model(server), context)
        state = trees.where(facts[3] > 0, new, self.engine.packing.unpack(row))
        return algorithm.broadcast(server), state, context, facts[4]

    # A round.

    def train(self, server: Any, plans: Plans, meanwhile: Meanwhile) -> list[Trained]:
        """One round."""
        (plan,) = plans.rounds
        if not self._workers:
            self._workers = [workers.start(self._serve(), self._bytes) for _ in range(self.engine.lanes.count)]
        try:
            return [self._round(server, plan, meanwhile)]
        except BaseException:
            self.close()  # what they still compute is nobody's
            raise

    def close(self) -> None:
        """End the workers; another round starts new ones."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _round(self, server: Any, plan: Plan, meanwhile: Meanwhile) -> Trained:
        rows, fresh = self.store.take(plan.devices)
        rounds = np.full_like(plan.devices, plan.round)
        facts = np.stack([plan.devices, plan.examples, plan.steps, fresh.astype(np.int32), rounds], axis=-1)
        lanes = [_Lane(i, np.flatnonzero(plan.devices[i] >= 0).tolist()) for i in range(len(plan.devices))]
        totals = [jax.tree.map(lambda s: jnp.zeros((1, *s.shape), s.dtype), self.engine.shapes.summand) for _ in lanes]
        states = {kind: np.zeros_like(values) for kind, values in rows.items()}
        info = np.zeros((*plan.devices.shape, len(self.engine.shapes.info)))

        def send(lane: _Lane) -> None:
            while lane.places and lane.ahead < workers.SLOTS:
                place = lane.places.pop(0)
                row = {kind: values[lane.number, place] for kind, values in rows.items()}
                self._send(lane.number, lane.next_slot(place), server, row, facts[lane.number, place], plan, place)

        def receive(lane: _Lane) -> None:
            slot, place = lane.waiting.pop(0)
            changed = self._receive(lane.number, slot, plan, place)
            send_later = lane.places and lane.ahead < workers.SLOTS
            row = {kind: values[lane.number, place] for kind, values in rows.items()}
            totals[lane.number], state, told = self._finish(
                totals[lane.number], server, row, facts[lane.number, place], changed
            )
            for kind, values in state.items():
                states[kind][lane.number, place] = values
            info[lane.number, place] = told
            if send_later:
                send(lane)

        for i, leaf in zip(self.steps.common, self._begin_common(server, np.int32(plan.round)), strict=True):
            self._common.array(0, self._shared[i])[...] = leaf
        for _ in range(workers.SLOTS):
            for lane in lanes:
                send(lane)
        meanwhile()
        while busy := [lane for lane in lanes if lane.waiting]:
            for lane in self._ready(busy):
                receive(lane)
        new_server, finite = self._conclude(server, totals)
        return Trained(new_server, [states], [info], finite)

    def _ready(self, busy: list[_Lane]) -> list[_Lane]:
        """Lanes whose workers have answered."""
        pipes = {lane.number: self._workers[lane.number].pipe for lane in busy}
        if any(pipe is None for pipe in pipes.values()):
            return busy
        answered = wait(list(pipes.values()))
        return [lane for lane in busy if pipes[lane.number] in answered]

    def _send(self, lane: int, slot: int, server: Any, row: Packed, facts: Array, plan: Plan, place: int) -> None:
        worker = self._workers[lane]
        leaves = self._begin(server, row, facts)
        numbers: list[Any] = []
        for i, leaf in zip(self.steps.own, leaves, strict=True):
            if i in self._given:
                worker.slots.array(slot, self._given[i])[...] = leaf
                numbers.append(None)
            else:
                numbers.append(np.asarray(leaf).item())
        rows, seeds = self.data.fill(worker.slots, slot, plan, lane, place)
        sent = Facts(numbers, int(facts[2]), rows, int(plan.first[lane, place]), seeds, plan.round)
        with _where(plan, lane, place):
            worker.send(slot, sent)

    def _receive(self, lane: int, slot: int, plan: Plan, place: int) -> list[Any]:
        worker = self._workers[lane]
        with _where(plan, lane, place):
            numbers = worker.receive()
        return [
            worker.slots.array(slot, self._taken[i]) if i in self._taken else number
            for i, number in zip(self.steps.changed, numbers, strict=True)
        ]

    # In a worker.

    def _serve(self) -> workers.Serve:
        """A device's steps; what it refers to is forked with it."""
        steps, data = self.steps, self.data
        given, taken, common, shared = self._given, self._taken, self._common, self._shared
        network, mean_loss = self.network, self._mean_loss
        kept: list[Oracle] = []

        def serve(slots: workers.Slots, slot: int, facts: Facts) -> list[Any]:
            if not kept:
                module = network.copy().train()
                own = dict(module.named_parameters())
                kept.append(Oracle(module, [own[name] for name in network.trained], network.forward, mean_loss))
            (oracle,) = kept
            oracle.spare.clear()
            buffers = dict(oracle.module.named_buffers())
            values: list[Any] = [None] * len(steps.leaves)
            for i, number in zip(steps.own, facts.numbers, strict=True):
                values[i] = torch.from_numpy(slots.array(slot, given[i])) if i in given else number
            for i, place in shared.items():
                vector = torch.from_numpy(common.array(0, place))
                values[i] = vector.clone() if i in steps.moved else vector
            for name, value in zip(steps.statistics, values[steps.carried :], strict=True):
                buffers[name].copy_(torch.as_tensor(value))
            values = values[: steps.carried]
            for batch in data.batches(slots, slot, facts.rows, facts.first, facts.steps, facts.seeds):
                values = steps.program(oracle, [*values, *batch, facts.round])
            values += [buffers[name] for name in steps.statistics]
            told = []
            for i in steps.changed:
                if i in taken:
                    slots.array(slot, taken[i])[...] = values[i]
                value = values[i].item() if isinstance(values[i], torch.Tensor) and i not in taken else values[i]
                told.append(None if i in taken else value)
            return told

        return serve


class _Lane:
    """Which of a lane's places wait, are being worked on, and in which slot."""

    def __init__(self, number: int, places: list[int]) -> None:
        self.number, self.places = number, places
        self.waiting: list[tuple[int, int]] = []
        self._slot = 0

    @property
    def ahead(self) -> int:
        """Requests that were not answered yet."""
        return len(self.waiting)

    def next_slot(self, place: int) -> int:
        """The slot for one more request."""
        slot, self._slot = self._slot, (self._slot + 1) % workers.SLOTS
        self.waiting.append((slot, place))
        return slot


class _where:  # noqa: N801 (used as a phrase)
    """An error in a device's work names round and device."""

    def __init__(self, plan: Plan, lane: int, place: int) -> None:
        self.text = f"round {plan.round}, device {plan.devices[lane, place]}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, Exception):
            raise DeviceError(f"{self.text}: {error}") from error
