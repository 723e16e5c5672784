"""Several rounds of a tiny model in one compiled call: the same run, whatever is trained along with a round."""

import dataclasses

import jax
import numpy as np
import pytest

import fedbc
from fedbc.simulation.checkpoints import Checkpoint
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.settings import Settings
from fedbc.simulation.training import MOST_ROUNDS, SingleRounds, Strides, training

METHODS = [
    fedbc.FedBC(lr=0.1, dual_lr=0.1, momentum=0.5),
    fedbc.FedAvg(lr=0.1),
    fedbc.SCAFFOLD(lr=0.1),
    fedbc.PFedMe(lr=0.1),
]
SETTINGS = Settings(epochs=2, batch_size=5, sample=3, seed=3, lanes=2, evaluate=("global", "local"))


def started(algorithm, federation, model, **changes):
    run = Simulation(algorithm, model, federation, dataclasses.replace(SETTINGS, **changes))
    assert isinstance(run.training, Strides)
    return run


def outcome(run):
    """Everything that a run knows but how long it took."""
    rows = [{name: value for name, value in row.items() if "seconds" not in name} for row in run.history]
    return rows, (run.server, run.store.stacks, run.store.devices, run.diagnostics.columns())


def assert_same_bits(one, other):
    (rows, arrays), (other_rows, other_arrays) = outcome(one), outcome(other)
    assert rows == other_rows
    for a, b in zip(jax.tree.leaves(arrays), jax.tree.leaves(other_arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def advanced(run, rounds, *, ahead):
    for left in reversed(range(rounds)):
        run.advance(ahead=min(left, ahead))
    return run


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda method: method.name)
def test_strides_compute_what_single_rounds_compute(small, tiny_model, algorithm):
    strides, rounds = (started(algorithm, small, tiny_model) for _ in range(2))
    rounds.training = SingleRounds(rounds.engine, rounds.store, rounds.train_data, rounds.key)
    # More rounds than a stride has, and fewer devices than it has places: devices come again within it.
    number = MOST_ROUNDS + 5
    advanced(strides, number, ahead=number), advanced(rounds, number, ahead=number)
    (rows, arrays), (other_rows, other_arrays) = outcome(strides), outcome(rounds)
    for a, b in zip(jax.tree.leaves(arrays), jax.tree.leaves(other_arrays), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)
    assert [row["global_accuracy"] for row in rows] == pytest.approx([row["global_accuracy"] for row in other_rows])


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("ahead", [1, 3, 100])
def test_what_is_trained_along_changes_no_bit(small, tiny_model, lanes, ahead):
    alone, along = (started(METHODS[0], small, tiny_model, lanes=lanes) for _ in range(2))
    assert_same_bits(advanced(alone, 19, ahead=0), advanced(along, 19, ahead=ahead))


def test_rounds_are_trained_ahead_only_when_they_will_follow(small, tiny_model):
    run = started(METHODS[0], small, tiny_model)
    trained = []
    train = run.training.train

    def noted(server, plans, meanwhile):
        trained.append([plan.round for plan in plans.rounds])
        return train(server, plans, meanwhile)

    run.training.train = noted
    run.advance()
    advanced(run, 2, ahead=1)
    advanced(run, 18, ahead=100)
    assert trained == [[1], [2, 3], [*range(4, 20)], [20, 21]]


def test_a_checkpoint_within_a_stride_continues_to_the_same_bits(small, tiny_model, tmp_path):
    whole, stopped, resumed = (started(METHODS[0], small, tiny_model) for _ in range(3))
    advanced(whole, 20, ahead=100)
    for _ in range(7):
        stopped.advance(ahead=100)
    kept = Checkpoint(tmp_path / "state")
    kept.keep(stopped)
    resumed.advance(ahead=100)  # what it has trained ahead is not taken for the restored run's
    kept.restore(resumed)
    assert resumed.round == 7
    assert_same_bits(whole, advanced(resumed, 13, ahead=100))


def test_a_round_that_diverges_within_a_stride_is_named_and_the_state_before_it_kept(small, tiny_model):
    algorithm = fedbc.FedBC(lr=0.5, dual_lr=0.5)
    run = started(algorithm, small, tiny_model)
    with pytest.raises(fedbc.errors.Diverged) as caught:
        advanced(run, 40, ahead=100)
    single = started(algorithm, small, tiny_model)
    single.training = SingleRounds(single.engine, single.store, single.train_data, single.key)
    with pytest.raises(fedbc.errors.Diverged) as expected:
        advanced(single, 40, ahead=0)
    assert str(caught.value) == str(expected.value)
    assert run.round == caught.value.round - 1 == len(run.history) > 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.server))


def test_large_rounds_and_larger_models_are_trained_one_by_one(make_federation, tiny_model):
    many = make_federation((20_000, 20_000))
    for federation, model in ((many, tiny_model), (make_federation(), fedbc.models.mlp(4, 8, 3))):
        run = Simulation(METHODS[0], model, federation, dataclasses.replace(SETTINGS, epochs=20, sample=2))
        assert isinstance(run.training, SingleRounds)


def test_more_lanes_than_devices_of_xla_are_trained_round_by_round(small, tiny_model):
    lanes = len(jax.devices()) + 1
    run = Simulation(METHODS[0], tiny_model, small, dataclasses.replace(SETTINGS, sample=None, lanes=lanes))
    kind = Strides if lanes > small.devices else SingleRounds  # there are never more lanes than devices
    chosen = training(run.engine, run.planner, run.store, run.train_data, run.key)
    assert type(chosen) is type(run.training) is kind
