"""PyTorch devices in a Flower deployment: an existing model, DataLoader and training loop behind fedbc's messages.

    model = initial_model(Net())
    server = fedbc.flower.server_app(model)
    client = client_app(Net, load_data, train, model=model)

On a device, weights arrive and leave as arrays by the names of the module's trained parameters. Its state (x_i,
lambda_i, gamma_i, and the module's buffers) is kept on its disk as every device's is, and never sent beyond the
summand; with `initial_model(module, statistics="averaged")` that has the buffers, too.
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

from fedbc import checks
from fedbc.algorithms import base
from fedbc.algorithms.base import Algorithm, Finished
from fedbc.algorithms.fedavg import FedAvg
from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.statistics import WithStatistics
from fedbc.errors import InputError
from fedbc.flower.client import Device, Latest, Mod, Part, app_of
from fedbc.flower.messages import Order
from fedbc.flower.settings import AlgorithmSource, Deployment, RunConfig, algorithm_from, for_model, resolve
from fedbc.flower.worker import Scores
from fedbc.models.base import Model
from fedbc.personalization import Personalized
from fedbc.simulation.schedule import SHUFFLE, generator
from fedbc.torch.local import LocalRound
from fedbc.torch.personal import PersonalWalks, check_personal
from fedbc.torch.weights import Arrays, buffers, load_arrays, parameters

__all__ = ["Scores", "classified", "client_app", "initial_model"]

Loaders = tuple[DataLoader, DataLoader]
LoadLoaders = Callable[[int, Context], Loaders]
Train = Callable[[nn.Module, DataLoader, LocalRound, RunConfig], None]


class State(NamedTuple):
    """What a PyTorch device keeps: the method's state, and the module's buffers."""

    method: Any
    buffers: Arrays


def initial_model(module: nn.Module, *, statistics: str = "local") -> Model:
    """The server's model: it starts from this module's parameters, whatever the seed, and is never evaluated there.

    statistics: of a module with buffers, such as the running statistics of a BatchNorm: "local" if they stay with each
        device, "averaged" if the server averages them with the model.
    """
    checks.choice("statistics", statistics, ["local", "averaged"])
    start = _jax(parameters(module))
    kept = _jax(buffers(module)) if statistics == "averaged" else {}

    def init(key: Any) -> dict[str, Any]:
        del key
        return {"params": start, "statistics": kept} if kept else start

    def apply(params: Any, x: Any) -> Any:
        raise InputError("a model of fedbc.torch is evaluated on the devices, by PyTorch")

    return Model(init, apply, name=type(module).__name__, statistics="averaged" if kept else None)


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

    known: Latest[Loaders] = Latest()

    def find(order: Order, context: Context) -> Device:
        def make(number: int) -> Part:
            chosen = for_model(resolve(algorithm, context.run_config), model)
            loaders = known.get(order, number, lambda number: data(number, context))
            # The module is new each time: what a round that does not count left in its buffers must not stay.
            own = module()
            if Deployment.from_config(context.run_config).personalize:
                check_personal(own, loaders)  # before the first round, not after the last one
            return Part(chosen, model, TorchWorker(chosen, model, own, loaders, train, test, context.run_config))

        return Device.at(order, context, make, state_dir)

    return app_of(find, mods)


@dataclasses.dataclass(frozen=True)
class TorchWorker:
    """A device whose local steps PyTorch takes (`fedbc.flower.worker.Worker`)."""

    algorithm: Algorithm
    model: Model
    """the server's, which says where training began"""
    module: nn.Module
    loaders: Loaders
    loop: Train
    test: Callable[[nn.Module, DataLoader], Scores]
    config: RunConfig

    def examples(self, on: str) -> int:
        """How many examples it has."""
        return _size(self._loader(on))

    def new_state(self, method: Any) -> State:
        """The buffers are the module's own at first."""
        return State(method, buffers(self.module))

    shape_state = new_state

    def method_state(self, state: State) -> Any:
        """The method's part of what it keeps."""
        return state.method

    def train(self, order: Order, context: base.Context, message: Any, state: State) -> Finished:
        """The user's loop between the method's `begin` and `finish`."""
        index, examples = int(context.index), max(int(context.examples), 1)
        algorithm, z, method = self.algorithm, message, state.method
        if isinstance(algorithm, WithStatistics):
            message = {"params": message.inner, "statistics": message.statistics}
            algorithm, z, method = algorithm.algorithm, message["params"], state.method.inner
        self._load(message, state)
        local = LocalRound(algorithm, self.module, z, method, index=index, examples=examples)
        self.module.train()
        seed = generator(order.seed, SHUFFLE, order.round, index).integers(2**63)
        with torch.random.fork_rng():
            torch.manual_seed(int(seed))
            self.loop(self.module, self.loaders[0], local, self.config)
        done = local.finish()
        if Deployment.from_config(self.config).diagnostics and not np.isfinite(done.info["loss"]):
            raise InputError("the training loop noted no loss, or one that is not finite: call local.record(loss)")
        if isinstance(self.algorithm, WithStatistics):
            done = self.algorithm.finished(done, _jax(buffers(self.module)), context.examples)
        return done._replace(device=self.new_state(done.device))

    def score(self, params: Any, state: State, on: str) -> Scores:
        """A model on its examples, by the user's test."""
        self._load(params, state)
        self.module.eval()
        return Scores(*map(float, self.test(self.module, self._loader(on))))

    def score_tuned(self, params: Any, tune: FineTune, seed: int) -> Scores:
        """No method with plain steps asks for it."""
        raise InputError("a PyTorch device does not fine-tune")

    def personalize(self, order: Order, z: Any) -> Personalized:
        """By the user's loop, called epoch by epoch (`fedbc.torch.personal`)."""
        origin = self.model.init(jax.random.key(order.seed))
        starts = {name: jax.tree.map(np.asarray, start) for name, start in (("z", z), ("alone", origin))}
        rates = {name: getattr(self.algorithm, name) for name in ("lr", "momentum") if hasattr(self.algorithm, name)}
        walks = PersonalWalks(
            self.module, self.loaders, self.loop, self.test, self.config, FedAvg(**rates), starts, order.seed
        )
        return walks.run()

    def _loader(self, on: str) -> DataLoader:
        return self.loaders[0] if on == "train" else self.loaders[1]

    def _load(self, weights: Any, state: State) -> None:
        """Weights, with the buffers that come with them, or the device's own."""
        averaged = isinstance(self.algorithm, WithStatistics)
        params, kept = (weights["params"], weights["statistics"]) if averaged else (weights, state.buffers)
        load_arrays(self.module, jax.tree.map(np.asarray, params))
        own = dict(self.module.named_buffers())
        for name, array in kept.items():
            own[name].copy_(torch.as_tensor(np.array(array)))


def _jax(arrays: Arrays) -> dict[str, jax.Array]:
    return {name: jnp.asarray(array) for name, array in arrays.items()}


def _size(loader: DataLoader) -> int:
    """The number of examples behind a loader."""
    dataset: Any = loader.dataset
    if not hasattr(dataset, "__len__"):
        raise InputError("a DataLoader's dataset has no length: give one that knows its number of examples")
    return checks.integer("examples", len(dataset), at_least=0)
