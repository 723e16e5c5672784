"""Runs that start from other runs' ends: states are kept, new devices join, and what does not fit is refused."""

import dataclasses

import jax
import numpy as np
import pytest

import fedbc
from fedbc.data import subset


@pytest.fixture
def ran(small, tiny_model):
    return fedbc.simulate(fedbc.FedBC(lr=0.05), tiny_model, subset(small, [0, 1, 2]), rounds=4)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_a_model_is_where_the_run_starts(small, tiny_model):
    params = jax.tree.map(lambda a: np.full(a.shape, 0.5), tiny_model.init(jax.random.key(0)))
    ran = fedbc.simulate(fedbc.FedAvg(lr=1e-30), tiny_model, small, rounds=1, initial=params)
    for leaf in leaves(ran.global_model):
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, 0.5, np.float32))


@pytest.mark.parametrize("by", ["result", "folder"])
def test_states_are_kept_and_a_new_device_joins(by, ran, small, tiny_model, tmp_path):
    """Device 3 takes part for the first time; the multipliers of the others go on from where they were."""
    start = ran
    if by == "folder":
        algorithm = fedbc.FedBC(lr=0.05)
        fedbc.simulate(algorithm, tiny_model, subset(small, [0, 1, 2]), rounds=4, checkpoint=tmp_path / "run")
        ran.save(tmp_path / "result")
        for file in (tmp_path / "result").iterdir():
            file.rename(tmp_path / "run" / file.name)
        start = tmp_path / "run"
    more = subset(small, [0, 1, 2, 3])
    # no steps to speak of: multipliers change by dual_lr (drift - gamma) alone, which is next to nothing
    on = fedbc.simulate(fedbc.FedBC(lr=1e-30, dual_lr=1e-30), tiny_model, more, rounds=1, initial=start)
    np.testing.assert_allclose(on.multipliers[:3], ran.multipliers, rtol=1e-6)
    np.testing.assert_allclose(on.tolerances[:3], ran.tolerances, rtol=1e-6)
    assert on.multipliers[3] == 0
    assert sorted(on.participants) == [0, 1, 2, 3]


def test_another_algorithm_takes_the_global_model_only(ran, small, tiny_model):
    on = fedbc.simulate(fedbc.FedProx(lr=1e-30), tiny_model, small, rounds=1, initial=ran)
    for a, b in zip(leaves(on.global_model), leaves(ran.global_model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_the_start_is_part_of_the_run_s_description(ran, small, tiny_model, tmp_path):
    """A checkpoint of a run that began elsewhere is not taken for that of one that did not."""
    fedbc.simulate(fedbc.FedAvg(), tiny_model, small, rounds=1, initial=ran, checkpoint=tmp_path)
    with pytest.raises(fedbc.InputError, match="another run: its run initial"):
        fedbc.simulate(fedbc.FedAvg(), tiny_model, small, rounds=2, checkpoint=tmp_path, resume=True)
    fedbc.simulate(fedbc.FedAvg(), tiny_model, small, rounds=2, initial=ran, checkpoint=tmp_path, resume=True)


def test_what_does_not_fit_is_refused(ran, small, tiny_model):
    def start(initial, federation=small):
        return fedbc.simulate(fedbc.FedBC(), tiny_model, federation, rounds=1, initial=initial)

    with pytest.raises(fedbc.InputError, match="the model takes"):
        start({"w": np.zeros((2, 3)), "b": np.zeros(3)})
    with pytest.raises(fedbc.InputError, match="not finite"):
        start({"w": np.full((4, 3), np.inf), "b": np.zeros(3)})
    with pytest.raises(fedbc.InputError, match="the federation has 2 devices"):
        start(ran, subset(small, [0, 1]))
    with pytest.raises(fedbc.InputError, match="not a folder"):
        start("no/such/run")


def test_some_devices_of_a_federation(small):
    named = dataclasses.replace(small, device_names=tuple("abcde"))
    some = subset(named, [3, 1])
    assert some.device_names == ("d", "b")
    for split, whole in ((some.train, small.train), (some.test, small.test)):
        for here, there in ((0, 3), (1, 1)):
            for a, b in zip(split.of(here), whole.of(there), strict=True):
                np.testing.assert_array_equal(a, b)
    for wrong in ([], [5], [0, 0], [-1], [0.5]):
        with pytest.raises(fedbc.InputError, match="devices="):
            subset(small, wrong)
