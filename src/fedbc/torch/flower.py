"""PyTorch devices in a Flower deployment: an existing model, DataLoader and training loop behind fedbc's messages.

    model = initial_model(Net())
    server = fedbc.flower.server_app(model)
    client = client_app(Net, load_data, train, model=model)

On a device, weights arrive and leave as arrays by the names of the module's parameters. Its state (x_i, lambda_i,
gamma_i, and the module's buffers) is kept on its disk as every device's is, and never sent beyond the summand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader

from fedbc import checks, trees
from fedbc.algorithms.base import Algorithm, Finished
from fedbc.errors import InputError
from fedbc.flower import scores
from fedbc.flower.client import Device, Mod, app_of
from fedbc.flower.data import device_number
from fedbc.flower.messages import MessageError, Order, Shapes
from fedbc.flower.settings import AlgorithmSource, Deployment, RunConfig, algorithm_from, built
from fedbc.flower.state import DeviceState, Kept, default_folder
from fedbc.models.base import Model
from fedbc.simulation.schedule import SHUFFLE, generator
from fedbc.torch.local import LocalRound
from fedbc.torch.weights import Arrays, buffers, load_arrays, parameters

__all__ = ["Scores", "classified", "client_app", "initial_model"]

Loaders = tuple[DataLoader, DataLoader]
LoadLoaders = Callable[[int, Context], Loaders]
Train = Callable[[nn.Module, DataLoader, LocalRound, RunConfig], None]


class Scores(NamedTuple):
    """How a model did on a loader: sums over its examples."""

    correct: float
    loss: float


class State(NamedTuple):
    """What a PyTorch device keeps: the method's state, and the module's buffers."""

    method: Any
    buffers: Arrays


def initial_model(module: nn.Module) -> Model:
    """The server's model: it starts from this module's parameters, whatever the seed, and is never evaluated there."""
    start = parameters(module)

    def init(key: Any) -> dict[str, jax.Array]:
        del key
        return {name: jnp.asarray(array) for name, array in start.items()}

    def apply(params: Any, x: Any) -> Any:
        raise InputError("a model of fedbc.torch is evaluated on the devices, by PyTorch")

    return Model(init, apply, name=type(module).__name__)


def classified(module: nn.Module, loader: DataLoader) -> Scores:
    """The default test of a classifier: right answers, and the cross-entropy, on batches (x, y)."""
    device = next(module.parameters()).device
    correct, loss = 0.0, 0.0
    with torch.no_grad():
        for x, y in loader:
            outputs, labels = module(x.to(device)), y.to(device)
            correct += float((outputs.argmax(1) == labels).sum())
            loss += float(nn.functional.cross_entropy(outputs, labels, reduction="sum"))
    return Scores(correct, loss)


def client_app(
    module: Callable[[], nn.Module],
    data: LoadLoaders,
    train: Train,
    *,
    model: Model,
    test: Callable[[nn.Module, DataLoader], Scores] = classified,
    algorithm: AlgorithmSource = algorithm_from,
    mods: Sequence[Mod] = (),
    state_dir: str | Path | None = None,
) -> ClientApp:
    """A PyTorch device's Flower app.

    module: makes the module to train.
    data: a function from the device's number and Flower's context to its DataLoaders, training and test.
    train: your loop: `train(module, loader, local, config)` attaches its optimiser to `local` and takes the round's
        steps, `config["run.epochs"]` passes; `local.record(loss)` notes a batch's loss. PyTorch's random numbers are
        seeded for it by the run's seed, round and device, and afterwards are as before.
    model: what `initial_model` gave, the same as the server's: it has the names and shapes.
    test: gives the `Scores` of a module, in evaluation mode, on a loader.
    algorithm, mods, state_dir: as in `fedbc.flower.client_app`.
    """

    def find(order: Order, context: Context) -> TorchDevice:
        chosen = built(algorithm, context.run_config)
        return TorchDevice.found(order, context, chosen, model, module(), data, train, test, state_dir)

    return app_of(find, mods)


@dataclasses.dataclass(frozen=True)
class TorchDevice(Device):
    """One device whose local steps PyTorch takes, for the time of one message."""

    module: nn.Module
    loaders: Loaders
    loop: Train
    test: Callable[[nn.Module, DataLoader], Scores]
    config: RunConfig

    @classmethod
    def found(
        cls,
        order: Order,
        context: Context,
        algorithm: Algorithm,
        model: Model,
        module: nn.Module,
        data: LoadLoaders,
        train: Train,
        test: Callable[[nn.Module, DataLoader], Scores],
        state_dir: str | Path | None,
    ) -> TorchDevice:
        """The device that a message of the server is for."""
        number = device_number(context.node_config, order.devices)
        if order.device not in (-1, number):
            raise MessageError(f"an order for device {order.device} reached device {number}")
        if algorithm.name != order.algorithm:
            raise MessageError(f"the server runs {order.algorithm}, this device {algorithm.name}")
        algorithm.check_population(order.devices)
        shapes = Shapes.of(algorithm, model)
        # What is kept on disk includes the buffers; what travels does not.
        shapes = dataclasses.replace(shapes, device=State(shapes.device, buffers(module)))
        folder = context.node_config.get("state-dir") or state_dir or default_folder()
        files = DeviceState(Path(str(folder)).expanduser(), order.run, number, shapes.device)
        diagnostics = Deployment.from_config(context.run_config).diagnostics
        none: Any = None  # a federation is what JAX devices train on
        return cls(
            *(order, number, algorithm, model, none, shapes, files, diagnostics),
            *(module, data(number, context), train, test, context.run_config),
        )

    @property
    def examples(self) -> int:
        """n_i"""
        return _size(self.loaders[0])

    @property
    def test_examples(self) -> int:
        """How many examples its test set has."""
        return _size(self.loaders[1])

    def _state(self, kept: Kept | None, z: Any) -> Any:
        if kept is not None:
            return kept.state
        return State(self.algorithm.init_device(z, self._context()), buffers(self.module))

    def _work(self, message: Any, state: State) -> Finished:
        """The user's loop between the method's `begin` and `finish`."""
        self._load(message, state)
        local = LocalRound(
            self.algorithm, self.module, message, state.method, index=self.number, examples=max(self.examples, 1)
        )
        self.module.train()
        seed = generator(self.order.seed, SHUFFLE, self.order.round, self.number).integers(2**63)
        with torch.random.fork_rng():
            torch.manual_seed(int(seed))
            self.loop(self.module, self.loaders[0], local, self.config)
        done = local.finish()
        if self.diagnostics and not np.isfinite(done.info["loss"]):
            raise InputError("the training loop noted no loss, or one that is not finite: call local.record(loss)")
        return done._replace(device=State(done.device, buffers(self.module)))

    def _scores(self, what: tuple[str, ...], z: Any, kept: Kept | None) -> dict[str, float]:
        sent = scores.names(what, None, self.shapes.device.method)
        state = self._state(kept, z)
        x = self.algorithm.local_model(state.method) if kept is not None else z
        values = {"test_examples": float(self.test_examples), "train_examples": float(self.examples)}
        for whose, weights in (("global", z), ("local", x)):
            values |= self._tested(whose, weights, state, sent)
        values["drift"] = float(trees.sqdist(x, z))
        values |= {name: float(getattr(state.method, name)) for name in scores.DUALS if hasattr(state.method, name)}
        return {name: values[name] for name in sent}

    def _tested(self, whose: str, weights: Any, state: State, sent: Sequence[str]) -> dict[str, float]:
        self._load(weights, state)
        self.module.eval()
        values: dict[str, float] = {}
        if f"{whose}_loss" in sent:
            found = self.test(self.module, self.loaders[1]) if self.test_examples else Scores(0.0, 0.0)
            values |= {f"{whose}_correct": float(found.correct), f"{whose}_loss": float(found.loss)}
        if f"{whose}_train_loss" in sent:
            values[f"{whose}_train_loss"] = float(self.test(self.module, self.loaders[0]).loss)
        return values

    def _load(self, weights: Any, state: State) -> None:
        """Weights, with the device's own buffers."""
        load_arrays(self.module, jax.tree.map(np.asarray, weights))
        own = dict(self.module.named_buffers())
        for name, array in state.buffers.items():
            own[name].copy_(torch.as_tensor(np.array(array)))


def _size(loader: DataLoader) -> int:
    """The number of examples behind a loader."""
    dataset: Any = loader.dataset
    if not hasattr(dataset, "__len__"):
        raise InputError("a DataLoader's dataset has no length: give one that knows its number of examples")
    return checks.integer("examples", len(dataset), at_least=0)
