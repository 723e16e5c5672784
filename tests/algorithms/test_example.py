"""The example of a user's own method runs, and is what it says it is."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from problems import Quadratics, x64

import fedbc


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples" / "own_algorithm.py"
    spec = importlib.util.spec_from_file_location("own_algorithm", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_example_runs(example, capsys):
    table = example.main(rounds=4)
    assert list(table) == ["fedavg", "fednova"]
    printed = capsys.readouterr().out
    for name, row in table.items():
        assert 0 < row["global_loss"] < 3
        assert f"{row['global_loss']:.3f}" in next(line for line in printed.splitlines() if line.startswith(name))
    assert table["fedavg"]["global_loss"] != table["fednova"]["global_loss"]


def test_with_equal_steps_it_is_fedavg(example):
    with x64():
        problem = Quadratics(repeats=[1, 5, 2, 3])
        nova, _, _ = problem.run(example.FedNova(lr=0.05), rounds=5, steps=4)
        fedavg, _, _ = problem.run(fedbc.FedAvg(lr=0.05), rounds=5, steps=4)
    np.testing.assert_allclose(nova, fedavg, rtol=1e-12)


def test_with_unequal_steps_it_is_not_biased_towards_many_steps(example):
    """One example a batch: device i takes n_i steps. At small rates z minimises Σ n_i f_i, FedAvg's does not."""
    with x64():
        problem = Quadratics(repeats=[1, 6, 2, 4])
        run = {"rounds": 600, "batch_size": 3, "seed": 1}
        nova, _, _ = problem.run(example.FedNova(lr=0.01), **run)
        fedavg, _, _ = problem.run(fedbc.FedAvg(lr=0.01), **run)
    wanted = problem.optimum(problem.repeats)
    assert np.abs(nova - wanted).max() < 0.25 * np.abs(fedavg - wanted).max()
