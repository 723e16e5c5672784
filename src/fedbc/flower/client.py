"""The ClientApp: one device's part in a run, by the same functions that the simulator calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedbc import storage
from fedbc.algorithms import base
from fedbc.algorithms.base import Algorithm, Finished
from fedbc.data.federation import Federation
from fedbc.flower import messages
from fedbc.flower.data import LoadData, device_number, placed
from fedbc.flower.messages import Answer, MessageError, Order, Shapes, layout
from fedbc.flower.scores import DeviceScorer
from fedbc.flower.settings import AlgorithmSource, Deployment, ModelSource, algorithm_from, built
from fedbc.flower.state import DeviceState, Kept, default_folder
from fedbc.models.base import Model
from fedbc.simulation import batches
from fedbc.simulation.engine import Engine, Facts, LaneInput
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.local import train_device
from fedbc.simulation.schedule import NOISE, Batching, generator

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
log = logging.getLogger("flwr.fedbc")


def client_app(
    model: ModelSource,
    data: LoadData,
    *,
    algorithm: AlgorithmSource = algorithm_from,
    mods: Sequence[Mod] = (),
    state_dir: str | Path | None = None,
) -> ClientApp:
    """A device's Flower app.

    model: the model, or a function from the run-config to it.
    data: a function from the device's number and Flower's context to its data ((x, y), (x, y)), training and test.
    algorithm: the algorithm, or a function from the run-config to it; by default what the run-config names.
    mods: Flower's mods, which see every message before and after the device's work.
    state_dir: where the device keeps its state; the SuperNode's own `state-dir` goes first.
    """

    def device(order: Order, context: Context) -> Device:
        return Device.at(order, context, model, algorithm, data, state_dir)

    return app_of(device, mods)


def app_of(find: Callable[[Order, Context], Device], mods: Sequence[Mod] = ()) -> ClientApp:
    """A Flower app that answers with the device that `find` gives for an order."""
    app = ClientApp(mods=list(mods))

    def device(message: Message, context: Context) -> Device:
        return find(messages.from_config(Order, messages.parts(message).config), context)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(device(message, context).introduce(), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(device(message, context).train(messages.parts(message).arrays), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(device(message, context).evaluate(messages.parts(message).arrays), reply_to=message)

    return app


@dataclass(frozen=True)
class Device:
    """One device, for the time of one message."""

    order: Order
    number: int
    algorithm: Algorithm
    model: Model
    federation: Federation
    shapes: Shapes
    files: DeviceState
    diagnostics: bool

    @classmethod
    def at(
        cls,
        order: Order,
        context: Context,
        model: ModelSource,
        algorithm: AlgorithmSource,
        data: LoadData,
        state_dir: str | Path | None,
    ) -> Device:
        """The device that a message of the server is for."""
        number = device_number(context.node_config, order.devices)
        if order.device not in (-1, number):
            raise MessageError(f"an order for device {order.device} reached device {number}")
        chosen, network = built(algorithm, context.run_config), built(model, context.run_config)
        if chosen.name != order.algorithm:
            raise MessageError(f"the server runs {order.algorithm}, this device {chosen.name}")
        federation = placed(data(number, context), number, order.devices)
        Deployment.from_config(context.run_config).as_simulated().check(chosen, network, federation)
        shapes = Shapes.of(chosen, network)
        folder = context.node_config.get("state-dir") or state_dir or default_folder()
        files = DeviceState(Path(str(folder)).expanduser(), order.run, number, shapes.device)
        diagnostics = Deployment.from_config(context.run_config).diagnostics
        return cls(order, number, chosen, network, federation, shapes, files, diagnostics)

    @property
    def examples(self) -> int:
        """n_i"""
        return int(self.federation.train.sizes[self.number])

    @property
    def test_examples(self) -> int:
        """How many examples its test set has."""
        return int(self.federation.test.sizes[self.number])

    def introduce(self) -> Any:
        """The answer to "query": who this is."""
        sizes = {"train_examples": self.examples, "test_examples": self.test_examples}
        return messages.content(self._answer(anew=False), metrics=sizes)

    def train(self, arrays: Any) -> Any:
        """The answer to "train": the summand, after the new state is safe on disk."""
        wanted = {**layout(self.shapes.broadcast, "broadcast"), **layout(self.shapes.params, "global")}
        received = messages.from_arrays(arrays, wanted)
        kept = self.files.settle(self.order)
        message = storage.restored(self.shapes.broadcast, received, "broadcast")
        done = self._work(message, self._state(kept, self._global(received)))
        summand = messages.to_arrays(done.summand, "summand")
        info = {name: float(value) for name, value in done.info.items()} if self.diagnostics else None
        # Only now: a device whose training failed keeps no trace of it.
        self.files.keep_pending(self.order.round, done.device)
        return messages.content(self._answer(anew=self._is_anew(kept)), arrays=summand, metrics=info)

    def evaluate(self, arrays: Any) -> Any:
        """The answer to "evaluate": sums of scores; nothing is measured if nothing was asked for."""
        received = messages.from_arrays(arrays, layout(self.shapes.params, "global"))
        kept = self.files.settle(self.order)
        what = tuple(self.order.evaluate.split(",")) if self.order.evaluate else ()
        scores = self._scores(what, self._global(received), kept) if what else {}
        return messages.content(self._answer(anew=self._is_anew(kept)), metrics=scores)

    def _scores(self, what: tuple[str, ...], z: Any, kept: Kept | None) -> dict[str, float]:
        tune = self.algorithm.fine_tune()
        scorer = DeviceScorer(self.algorithm, self.model, self.federation, self.number, tune, self.order.seed)
        return scorer(what, z, kept.state if kept else None, self._state(None, z))

    def _answer(self, *, anew: bool) -> Answer:
        return Answer(self.order.run, self.order.round, self.number, self.examples, int(anew))

    def _is_anew(self, kept: Kept | None) -> bool:
        if kept is not None or self.order.accepted == 0:
            return False
        log.warning("device %d has no state of round %d: it starts anew", self.number, self.order.accepted)
        return True

    def _global(self, received: storage.Arrays) -> Any:
        return jax.tree.map(jnp.asarray, storage.restored(self.shapes.params, received, "global"))

    def _state(self, kept: Kept | None, z: Any) -> Any:
        return kept.state if kept is not None else self.algorithm.init_device(z, self._context())

    def _batching(self) -> Batching:
        return Batching(self.order.batch_size or None, self.order.epochs, self.algorithm.batches)

    def _context(self) -> base.Context:
        steps = self._batching().steps(np.asarray(self.examples))
        return base.Context(*(jnp.asarray(value, jnp.int32) for value in (self.number, self.examples, steps)))

    def _work(self, message: Any, state: Any) -> Finished:
        """begin, step, finish: a lane of the simulator with this device alone."""
        batching, order = self._batching(), self.order
        engine = Engine(self.algorithm, self.model, self.federation, batching, Lanes(1))
        (data,) = engine.lanes.put(batches.host_data(self.federation.train, self.federation.shared))
        rows = (
            batching.table(order.seed, order.round, self.number, self.examples)
            if batching.batch_size is not None
            else np.zeros((1, 1), np.int32)
        )
        context = self._context()
        zero = jnp.zeros((), jnp.int32)

        def work(message: Any, state: Any, context: base.Context, rows: Any, data: Any, key: Any, round: Any) -> Any:
            own_key = jax.random.fold_in(jax.random.fold_in(key, round), context.index)
            facts = Facts(context.index, context.examples, context.steps, zero, zero)
            lane = LaneInput({}, None, rows, None)

            def batch(k: Any) -> Any:
                return engine.batch(lane, facts, data, own_key, k)

            return train_device(self.algorithm, engine.loss, batch, message, state, context)

        key = jax.random.key(int(generator(order.seed, NOISE).integers(2**31)))
        message, state = jax.tree.map(jnp.asarray, (message, state))
        return jax.jit(work)(message, state, context, rows, data, key, np.int32(order.round))
