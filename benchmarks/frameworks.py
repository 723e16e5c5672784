"""A round of the same small network from PyTorch, Flax and Equinox, as docs/own-model.md begins with it.

    python -m benchmarks.frameworks

The three take turns of `ROUNDS` rounds, so that what else the machine does falls on all alike; only one computes at any
time. The first round compiles.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import results

ROUNDS = 48
SETTING = "30 devices with synthetic data, 10 a round, FedBC, batch 20, E = 5"


def models() -> dict[str, Callable[[], Any]]:
    """60-32-10 with ReLU, in each."""
    import equinox
    import flax.linen
    import jax.numpy as jnp
    import torch

    import fedbc

    return {
        "PyTorch": lambda: fedbc.torch.model(
            lambda: torch.nn.Sequential(torch.nn.Linear(60, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        ),
        "Flax": lambda: fedbc.models.from_flax(
            flax.linen.Sequential([flax.linen.Dense(32), flax.linen.relu, flax.linen.Dense(10)]), jnp.zeros((1, 60))
        ),
        "Equinox": lambda: fedbc.models.from_equinox(lambda key: equinox.nn.MLP(60, 10, 32, 1, key=key)),
    }


def measure(count: int) -> dict[str, Any]:
    """The first round of each, and the median over so many turns of a round's time."""
    import fedbc
    from fedbc.simulation.rounds import Simulation
    from fedbc.simulation.settings import Settings

    federation = fedbc.data.synthetic(seed=2)
    settings = Settings(epochs=5, sample=10, evaluate=(), seed=0)
    runs, first, turns = {}, {}, {}
    for name, make in models().items():
        began = time.perf_counter()
        runs[name], turns[name] = Simulation(fedbc.FedBC(), make(), federation, settings), []
        runs[name].advance(ahead=ROUNDS - 1)
        first[name] = time.perf_counter() - began
        for left in reversed(range(ROUNDS - 1)):
            runs[name].advance(ahead=left)
    for _ in range(count):
        for name, run in runs.items():
            began = time.perf_counter()
            for left in reversed(range(ROUNDS)):
                run.advance(ahead=left)
            turns[name].append((time.perf_counter() - began) / ROUNDS)
    return {
        "setting": SETTING,
        "networks": {name: {"first_round": first[name], "round": median(each)} for name, each in turns.items()},
    }


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="of each; default: %(default)s")
    parser.add_argument("--out", type=Path, default=results.DEFAULT, help="results file, its section is replaced")
    options = parser.parse_args(arguments)
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"  # the first round is that of a first run
    results.update(options.out, "frameworks", value=measure(options.turns))


if __name__ == "__main__":
    main()
