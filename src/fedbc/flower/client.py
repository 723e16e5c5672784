"""The ClientApp: one device's part in a run, by the same functions that the simulator calls."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedbc import storage
from fedbc.algorithms import base
from fedbc.algorithms.base import Algorithm
from fedbc.algorithms.statistics import method_name
from fedbc.flower import masking, messages, scores
from fedbc.flower.data import LoadData, check_one_device, device_number
from fedbc.flower.messages import Answer, Kind, MessageError, Order, Parts, Shapes, layout
from fedbc.flower.settings import AlgorithmSource, Deployment, ModelSource, algorithm_from, for_model, resolve
from fedbc.flower.state import DeviceState, Kept, default_folder
from fedbc.flower.sums import ScoreSum, TrainSum
from fedbc.flower.worker import JaxWorker, Worker
from fedbc.models.base import Model
from fedbc.privacy.private import Private
from fedbc.simulation.schedule import Batching
from fedbc.simulation.settings import check_together

PERSONAL = "personal"
"""The folder within a device's own that holds its personal model."""
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
    data: a function from the device's number and Flower's context to its data ((x, y), (x, y)), training and test. A
        process that goes on from message to message calls it once for a run.
    algorithm: the algorithm, or a function from the run-config to it; by default what the run-config names.
    mods: Flower's mods, which see every message before and after the device's work.
    state_dir: where the device keeps its state; the SuperNode's own `state-dir` goes first.
    """

    known: Latest[Part] = Latest()

    def find(order: Order, context: Context) -> Device:
        def make(number: int) -> Part:
            network = resolve(model, context.run_config)
            chosen = for_model(resolve(algorithm, context.run_config), network)
            own = check_one_device(data(number, context), number)
            check_together(chosen, network, own)
            quiet = chosen.without_noise() if _adds_noise_to_sums(chosen, context) else chosen
            return Part(chosen, network, JaxWorker(quiet, network, own, number))

        return Device.at(order, context, lambda number: known.get(order, number, make), state_dir)

    return app_of(find, mods)


def _adds_noise_to_sums(algorithm: Algorithm, context: Context) -> TypeGuard[Private]:
    return isinstance(algorithm, Private) and Deployment.from_config(context.run_config).secure


class Part(NamedTuple):
    """What a device computes with, apart from messages and files."""

    algorithm: Algorithm
    model: Model
    worker: Worker


T = TypeVar("T")


class Latest(Generic[T]):
    """What a device made for the run that it worked for last: data, and what was compiled, serve many messages."""

    def __init__(self) -> None:
        self._made: tuple[tuple[str, int], T] | None = None

    def get(self, order: Order, number: int, make: Callable[[int], T]) -> T:
        """What was made for this order's run; made anew if it is another one."""
        of = (order.run, number)
        if self._made is None or self._made[0] != of:
            self._made = of, make(number)
        return self._made[1]


def app_of(find: Callable[[Order, Context], Device], mods: Sequence[Mod] = ()) -> ClientApp:
    """A Flower app that answers with the device that `find` gives for an order."""
    app = ClientApp(mods=list(mods))

    def device(message: Message, context: Context) -> Device:
        order = messages.from_config(Order, messages.parts(message).config)
        late = time.time() - message.metadata.created_at - order.seconds
        if late > 0:
            raise MessageError(f"an order of round {order.round} is not worked on: its time was over {late:.0f} s ago")
        return find(order, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(device(message, context).answer(Kind.TRAIN, messages.parts(message)), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(device(message, context).answer(Kind.EVALUATE, messages.parts(message)), reply_to=message)

    return app


@dataclass(frozen=True)
class Device:
    """One device, for the time of one message: messages and files around a worker."""

    order: Order
    number: int
    algorithm: Algorithm
    shapes: Shapes
    worker: Worker
    files: DeviceState
    deployment: Deployment
    model: Model
    node_config: Mapping[str, Any]

    @classmethod
    def at(cls, order: Order, context: Context, find: Callable[[int], Part], state_dir: str | Path | None) -> Device:
        """The device that a message of the server is for; `find` gives its part by its number."""
        number = device_number(context.node_config, order.devices)
        if order.device != number:
            raise MessageError(f"an order for device {order.device} reached device {number}: its key is another one's")
        algorithm, model, worker = find(number)
        if method_name(algorithm) != order.algorithm:
            raise MessageError(f"the server runs {order.algorithm}, this device {method_name(algorithm)}")
        algorithm.check_population(order.devices)
        shapes = Shapes.of(algorithm, model)
        folder = context.node_config.get("state-dir") or state_dir or default_folder()
        files = DeviceState(Path(str(folder)).expanduser(), order.run, number, worker.shape_state(shapes.device))
        settings, config = Deployment.from_config(context.run_config), context.node_config
        if config.get("secure") and not settings.secure:
            raise MessageError("run.secure is false, and this device takes part in secure sums only (its node-config)")
        return cls(order, number, algorithm, shapes, worker, files, settings, model, config)

    def answer(self, kind: Kind, received: Parts) -> Any:
        """The answer to an order."""
        if not self.deployment.secure:
            return self.train(received.arrays) if kind == Kind.TRAIN else self.evaluate(received.arrays)
        if kind == Kind.EVALUATE and not self.order.evaluate:
            self._score(received.arrays)  # the word which round was taken, and maybe to personalise
            return messages.content(self._answer(anew=False))
        found: list[bool] = []

        def vector() -> np.ndarray:
            values, anew = self._masked_train(received) if kind == Kind.TRAIN else self._masked_scores(received)
            found.append(anew)
            return values

        layout = self._train_sum.layout if kind == Kind.TRAIN else self._score_sum.layout
        place = self.files.own_folder()
        given = masking.answer(
            self.order, kind, received.config, layout, self.deployment, place, self.node_config, vector
        )
        return messages.content(self._answer(anew=any(found)), arrays=given)

    def _masked_train(self, received: Parts) -> tuple[np.ndarray, bool]:
        z, kept, done = self._trained(received.arrays)
        values = self._train_sum.encode(z, done.summand, done.info)
        self.files.keep_pending(self.order.round, done.device)
        return values, self._is_anew(kept)

    def _masked_scores(self, received: Parts) -> tuple[np.ndarray, bool]:
        kept, measured = self._score(received.arrays)
        return self._score_sum.encode(measured), self._is_anew(kept)

    @functools.cached_property
    def _train_sum(self) -> TrainSum:
        return TrainSum(self.algorithm, self.shapes, self.deployment)

    @functools.cached_property
    def _score_sum(self) -> ScoreSum:
        what, tune = tuple(self.order.evaluate.split(",")), self.algorithm.fine_tune()
        accuracy = self.model.correct is not None
        return ScoreSum(what, tune, self.deployment, duals=self.shapes.duals, accuracy=accuracy)

    def train(self, arrays: bytes) -> Any:
        """The answer to "train": the summand, after the new state is safe on disk."""
        _, kept, done = self._trained(arrays)
        summand = messages.named_pack(summand=done.summand)
        info = {name: float(value) for name, value in done.info.items()} if self.deployment.diagnostics else None
        # Only now: a device whose training failed keeps no trace of it.
        self.files.keep_pending(self.order.round, done.device)
        return messages.content(self._answer(anew=self._is_anew(kept)), arrays=summand, metrics=info)

    def _trained(self, arrays: bytes) -> tuple[Any, Kept | None, base.Finished]:
        """z, the state before, and the outcome of the round's local work."""
        wanted = {**layout(self.shapes.broadcast, "broadcast"), **layout(self.shapes.params, "global")}
        received = messages.unpack(arrays, wanted)
        kept = self.files.settle(self.order)
        message = storage.restored(self.shapes.broadcast, received, "broadcast")
        z = self._global(received)
        return z, kept, self.worker.train(self.order, self._context(), message, self._state(kept, z))

    def evaluate(self, arrays: bytes) -> Any:
        """The answer to "evaluate": sums of scores; nothing is measured if nothing was asked for."""
        kept, measured = self._score(arrays)
        return messages.content(self._answer(anew=self._is_anew(kept)), metrics=measured)

    def _score(self, arrays: bytes) -> tuple[Kept | None, dict[str, float]]:
        """The state, and the scores that were asked for; after the last round the device may personalise z."""
        z = self._global(messages.unpack(arrays, layout(self.shapes.params, "global")))
        kept = self.files.settle(self.order)
        measured: dict[str, float] = {}
        if self.order.evaluate:
            what, state = tuple(self.order.evaluate.split(",")), self._state(kept, z)
            measured = scores.measure(
                self.worker, self.algorithm, what, z, state, seed=self.order.seed, fresh=kept is None
            )
        if self.deployment.personalize and self.order.round == self.deployment.rounds:
            self._personalize(z)
        return kept, measured

    def _personalize(self, z: Any) -> None:
        """The model that serves this device best, from the final z; it stays here, and so does all that led to it."""
        place = self.files.own_folder() / PERSONAL
        found = self.worker.personalize(self.order, z)
        found.save(place, private=True)
        log.info("device %d keeps a personal model in %s", self.number, place)

    def _answer(self, *, anew: bool) -> Answer:
        examples = 1 if self.deployment.secure else self.worker.examples("train")  # n_i is within the sum, if at all
        return Answer(self.order.run, self.order.round, self.number, examples, int(anew))

    def _is_anew(self, kept: Kept | None) -> bool:
        if kept is not None or self.order.accepted == 0:
            return False
        log.warning("device %d has no state of round %d: it starts anew", self.number, self.order.accepted)
        return True

    def _global(self, received: storage.Arrays) -> Any:
        return jax.tree.map(jnp.asarray, storage.restored(self.shapes.params, received, "global"))

    def _state(self, kept: Kept | None, z: Any) -> Any:
        if kept is not None:
            return kept.state
        return self.worker.new_state(self.algorithm.init_device(z, self._context()))

    def _context(self) -> base.Context:
        examples = self.worker.examples("train")
        batching = Batching(self.order.batch_size or None, self.order.epochs, self.algorithm.batches)
        steps = batching.steps(np.asarray(examples), self.order.epochs)
        return base.Context(*(jnp.asarray(value, jnp.int32) for value in (self.number, examples, steps)))
