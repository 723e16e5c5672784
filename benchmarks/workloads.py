"""The workloads: what is trained, on what, and how much arithmetic a step is.

Contestants' environments import this module too: nothing but the standard library at the top.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 0  # of the runs: initial model, devices of each round, batches


@dataclass(frozen=True)
class Workload:
    """A federated problem and how it is trained: FedAvg's setting, the same for every contestant."""

    name: str
    title: str
    data: tuple[str, dict[str, Any]]
    """a loader of fedbc.data and its arguments"""
    model: tuple[str, dict[str, Any]]
    """a model of fedbc.models and its arguments"""
    epochs: int
    products: tuple[tuple[int, int], ...]
    """(multiplications of an example's forward pass, matrix products of as many in a step: 3, or 2 where no
    derivative with respect to the input is needed), layer by layer"""
    rounds: int
    """how many rounds are measured by default, in each mode"""
    sample: int = 10
    batch_size: int = 20
    lr: float = 0.01
    momentum: float = 0.5
    group: str = "workloads"
    """the section of the results"""
    contestants: tuple[str, ...] = ("fedbc", "pytorch", "flower", "pfl", "fedjax", "limit")
    bar: float | None = None
    """outside of the group "workloads": at least so many times faster than the best of the others"""

    def flops(self, parameters: int) -> int:
        """Floating-point operations of a step: its products, and momentum and descent (4 a parameter)."""
        return self.batch_size * sum(2 * size * times for size, times in self.products) + 4 * parameters

    def job(self, folder: Path, variant: str) -> dict[str, Any]:
        """What a worker must know, as plain values."""
        return {**dataclasses.asdict(self), "folder": str(folder), "variant": variant, "seed": SEED}


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "W1",
            "synthetic, 30 devices (draw 2, as `make run`), logistic 60-10, E = 5",
            ("synthetic", {"seed": 2}),
            ("logistic", {}),
            epochs=5,
            products=((60 * 10, 2),),
            rounds=240,
        ),
        Workload(
            "W2",
            "MNIST, 20 devices, exponent 1.1, MLP 784-128-10, E = 5",
            ("mnist", {}),
            ("mlp", {}),
            epochs=5,
            products=((784 * 128, 2), (128 * 10, 3)),
            rounds=5,
        ),
        Workload(
            "W3",
            "CIFAR-10 without crops, 20 devices, exponent 1.1, the paper's CNN, E = 1",
            ("cifar10", {"crop": False}),
            ("cnn", {}),
            epochs=1,
            products=((28 * 28 * 6 * 75, 2), (10 * 10 * 16 * 150, 3), (400 * 120 + 120 * 84 + 84 * 10, 3)),
            rounds=5,
        ),
        Workload(
            "W4",
            "Shakespeare, 138 devices capped at 200 examples, the paper's LSTM, E = 1",
            ("shakespeare", {"max_samples": 200}),
            ("lstm", {}),
            epochs=1,
            # The first layer's product with its inputs is left out: there are only 80 different ones.
            products=((80 * 3 * 256 * 1024, 3), (256 * 80, 3)),
            rounds=5,
        ),
    )
}


def _own(name: str, title: str, bar: float, examples: int, *, rounds: int = 5, modules: bool = False) -> Workload:
    """A network that a user brings, with made-up data."""
    data, model = ("made_up", {"examples": examples}), (name, {})
    contestants = ("fedbc", "pytorch", "pfl", *(["modules"] if modules else []))
    return Workload(name, title, data, model, 1, (), rounds, group="own_networks", bar=bar, contestants=contestants)


OWN_NETWORKS = {
    w.name: w
    for w in (
        _own("dense", "MLP 100-256-256-256-10", 1.5, 400, rounds=20, modules=True),
        _own("gru", "GRU 128 over 60 steps of 16 numbers", 1.5, 200, rounds=8),
        _own("transformer", "Transformer, 4 layers of 128 with 4 heads, 64 tokens", 1.5, 100),
        _own("mcmahan", "CNN of McMahan et al. 2017, 32×32×3", 1, 100, rounds=8, modules=True),
        _own("resnet", "ResNet-8 with GroupNorm, 32×32×3", 1, 100, rounds=8, modules=True),
        _own("separable", "Depthwise-separable CNN with GroupNorm, 32×32×3", 1, 100, rounds=8),
    )
}
MODULES = {
    w.name: w
    for w in (
        dataclasses.replace(
            WORKLOADS[name],
            name=f"{name}-modules",
            rounds=3,
            group="modules",
            bar=1,
            contestants=("modules", "pytorch", "flower", "pfl"),
        )
        for name in ("W2", "W3", "W4")
    )
}
"""Where PyTorch modules in fedbc's simulator are compared with other ways to simulate with PyTorch."""
ALL = WORKLOADS | OWN_NETWORKS | MODULES


def build(job: dict[str, Any]) -> tuple[Any, Any]:
    """The model and the federation, as fedbc gives them; needs fedbc, and Flax for a user's own network."""
    import fedbc

    if job["group"] == "own_networks":
        from benchmarks import networks

        name = job["model"][0]
        return networks.network(name), networks.made_up(name, **job["data"][1])
    (data, data_arguments), (model, model_arguments) = job["data"], job["model"]
    return getattr(fedbc.models, model)(**model_arguments), getattr(fedbc.data, data)(**data_arguments)


def devices_of(federation: Any, workload: Workload, round: int) -> list[int]:
    """The devices of a round: those that fedbc draws, so that every contestant trains the same ones."""
    from fedbc.simulation.schedule import sample_devices

    return [int(i) for i in sample_devices(SEED, round, federation.devices, workload.sample)]


def prepare(workload: Workload, folder: Path) -> dict[str, Any]:
    """Write the arrays that the peers read, decoded as their models take them; returns facts about the data.

    `train_x.npy`, `train_y.npy`, `test_x.npy`, `test_y.npy`: all devices' examples, one device after the other;
    `offsets.npy`: device i has the training examples from offsets[i] to offsets[i+1];
    `initial.npz`: the initial model that fedbc starts from, by names such as `hidden.w`.
    """
    import jax
    import numpy as np

    import fedbc
    from fedbc import storage
    from fedbc.simulation.rounds import Simulation
    from fedbc.simulation.settings import Settings

    model, federation = build(dataclasses.asdict(workload))
    folder.mkdir(parents=True, exist_ok=True)
    for which, split in (("train", federation.train), ("test", federation.test)):
        decoded = [federation.decode(federation.shared, split.x[i : i + 4096]) for i in range(0, len(split.y), 4096)]
        np.save(folder / f"{which}_x.npy", np.concatenate([np.asarray(part) for part in decoded]))
        np.save(folder / f"{which}_y.npy", split.y)
    np.save(folder / "offsets.npy", federation.train.offsets)
    run = Simulation(fedbc.FedAvg(), model, federation, Settings(sample=workload.sample, seed=SEED))
    initial = jax.tree.map(np.asarray, run.server)
    np.savez(folder / "initial.npz", **storage.named(initial))
    parameters = sum(a.size for a in jax.tree.leaves(initial))
    facts = {
        "devices": federation.devices,
        "training_examples": len(federation.train.y),
        "test_examples": len(federation.test.y),
        "parameters": parameters,
        "flops_a_step": workload.flops(parameters),
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    return facts
