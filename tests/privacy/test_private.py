"""Private methods in the simulator: the plain method without noise, the right noise with it."""

import functools
import math

import jax
import numpy as np
import pytest

import fedbc
from fedbc.privacy import Private
from fedbc.simulation.schedule import INIT, generator

RUN = {"rounds": 4, "epochs": 2, "batch_size": 5, "sample": 3, "seed": 2, "evaluate": ("train",)}
FEDBC = fedbc.FedBC(lr=0.05, dual_lr=0.5, momentum=0.5, lambda_min=0.05, lambda_max=2.0, multiplier=0.05)
METHODS = {
    "fedbc": (FEDBC, None),
    "fedavg": (fedbc.FedAvg(lr=0.05), 1000.0),
    "uniform": (fedbc.FedAvg(lr=0.05, weights="uniform"), None),
    "fedprox": (fedbc.FedProx(lr=0.05, mu=0.5), 1000.0),
    "fedadam": (fedbc.FedAdam(lr=0.05, server_lr=0.05), 1000.0),
}


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_and_clipping_it_is_the_plain_method(name, small, tiny_model):
    algorithm, largest = METHODS[name]
    plain = fedbc.simulate(algorithm, tiny_model, small, **RUN)
    private = fedbc.simulate(Private(algorithm, 1e3, 0.0, largest_weight=largest), tiny_model, small, **RUN)
    for models in ("global_model", "local_models"):
        for a, b in zip(leaves(getattr(private, models)), leaves(getattr(plain, models)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(private.multipliers, plain.multipliers, rtol=1e-4)
    np.testing.assert_allclose(private.tolerances, plain.tolerances, rtol=1e-4)
    assert (private.devices["clipped"] == 0).all()
    assert set(plain.history.columns) == set(private.history.columns)


@functools.cache
def start(model, seed):
    return model.init(jax.random.key(int(generator(seed, INIT).integers(2**31))))


def test_clipping_bounds_what_a_round_can_do(small, tiny_model):
    """The mean of updates of norm <= C is no longer than C, whatever the weights."""
    private = Private(FEDBC, 0.01, 0.0)
    result = fedbc.simulate(private, tiny_model, small, **{**RUN, "rounds": 1})
    moved = sum(
        np.sum((a - b) ** 2)
        for a, b in zip(leaves(result.global_model), leaves(start(tiny_model, RUN["seed"])), strict=True)
    )
    assert (result.devices["clipped"] == 1).all()
    assert (result.devices["drift"] > 0.01**2).all()  # local models are not clipped
    assert 0 < math.sqrt(moved) <= 0.01


def test_noise_reaches_the_global_model_in_the_stated_size(small):
    """With nothing learned (a rate of next to nothing), z moves by the noise of n devices over n weights of 1."""
    model = fedbc.models.mlp(4, 400, 3)
    clip, m, n = 0.5, 1.3, 5
    private = Private(fedbc.FedAvg(lr=1e-30, weights="uniform"), clip, m)
    result = fedbc.simulate(private, model, small, rounds=1, evaluate=(), seed=1)
    moves = [a - b for a, b in zip(leaves(result.global_model), leaves(start(model, 1)), strict=True)]
    values = np.concatenate([move.ravel() for move in moves])
    expected = m * 2 * clip / math.sqrt(n)  # m S sqrt(n) / n
    assert values.std() == pytest.approx(expected, rel=0.07)  # 3,203 draws
    assert abs(values.mean()) < 5 * expected / math.sqrt(len(values))


def test_noise_differs_by_round_and_device_and_a_run_repeats(small, tiny_model, tmp_path):
    private = Private(FEDBC, 0.1, 0.5, noise_seed=7)
    one = fedbc.simulate(private, tiny_model, small, **RUN)
    again = fedbc.simulate(private, tiny_model, small, **RUN)
    other = fedbc.simulate(Private(FEDBC, 0.1, 0.5, noise_seed=8), tiny_model, small, **RUN)
    assert all(np.array_equal(a, b) for a, b in zip(leaves(one.global_model), leaves(again.global_model), strict=True))
    assert not np.allclose(leaves(one.global_model)[0], leaves(other.global_model)[0])
    half = {**RUN, "rounds": 2, "checkpoint": tmp_path / "run"}
    fedbc.simulate(private, tiny_model, small, **half)
    resumed = fedbc.simulate(private, tiny_model, small, **{**half, "rounds": RUN["rounds"], "resume": True})
    for a, b in zip(leaves(one.global_model), leaves(resumed.global_model), strict=True):
        np.testing.assert_array_equal(a, b)
    loaded = fedbc.load(one.save(tmp_path / "result"))
    assert loaded.spec["algorithm"]["algorithm"]["name"] == "fedbc"
    assert loaded.spec["algorithm"]["noise_multiplier"] == 0.5


def test_a_little_noise_still_learns(make_federation):
    federation = make_federation((30,) * 40)
    model = fedbc.models.logistic(4, 3)
    private = Private(fedbc.FedBC(lr=0.05, lambda_min=0.5, lambda_max=1.0, multiplier=0.5), 0.5, 0.05)
    result = fedbc.simulate(private, model, federation, rounds=15, batch_size=10, evaluate=("train",))
    first, last = result.history["global_loss"].iloc[[0, -1]]
    assert last < first - 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((fedbc.FedBC(lambda_max=1.0), 1.0, 1.0), "lambda_min > 0"),
        ((fedbc.FedBC(lambda_min=0.1, multiplier=0.1), 1.0, 1.0), "finite lambda_max"),
        ((FEDBC, 1.0, 1.0, 5.0), "bounded by lambda_max"),
        ((fedbc.FedAvg(), 1.0, 1.0), "needs largest_weight"),
        ((fedbc.FedAvg(weights="uniform"), 1.0, 1.0, 5.0), "every weight is 1"),
        ((fedbc.SCAFFOLD(), 1.0, 1.0), "cannot be made private"),
        ((fedbc.QFedAvg(), 1.0, 1.0), "cannot be made private"),
        ((FEDBC, 0.0, 1.0), "clip=0"),
        ((FEDBC, 1.0, math.nan), "noise_multiplier=nan"),
    ],
)
def test_what_cannot_be_private_is_refused(arguments, message):
    with pytest.raises(fedbc.InputError, match=message):
        Private(*arguments)
