"""Models that keep statistics, and models of which only a part is trained."""

import flax.linen as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbc
from fedbc.errors import InputError
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.schedule import Batching
from fedbc.simulation.settings import Settings

RUN = {"rounds": 2, "epochs": 2, "batch_size": 5, "seed": 3, "evaluate": ("global", "local")}


class Normed(fl.Module):
    """With a BatchNorm."""

    @fl.compact
    def __call__(self, x, train=False):
        return fl.Dense(3)(fl.BatchNorm(use_running_average=not train, momentum=0.9)(x))


def normed(statistics):
    return fedbc.models.from_flax(Normed(), jnp.zeros((1, 4)), training="train", statistics=statistics)


def twin(start, federation, device, rounds):
    """The running mean and variance after so many rounds, batch by batch in NumPy: the weights play no part."""
    mean, variance = (np.asarray(start[name], float) for name in ("mean", "var"))
    x, batching = federation.train.of(device)[0], Batching(5, 2)
    for number in range(1, rounds + 1):
        for rows in batching.table(3, number, device, len(x)):
            batch = x[rows[rows >= 0]] if (rows >= 0).all() else x[np.resize(rows[rows >= 0], 5)]
            mean, variance = 0.9 * mean + 0.1 * batch.mean(0), 0.9 * variance + 0.1 * batch.var(0)
    return mean, variance


def test_local_statistics_stay_with_the_device_from_round_to_round(make_federation, tmp_path):
    federation, model = make_federation((10, 7)), normed("local")
    algorithm = fedbc.FedBC(lr=0.1, dual_lr=0.1)
    result = fedbc.simulate(algorithm, model, federation, **RUN)
    start = {"mean": np.zeros(4), "var": np.ones(4)}
    for device in range(2):
        own = jax.tree.map(lambda a, i=device: a[i], result.local_models)["statistics"]["batch_stats"]["BatchNorm_0"]
        for name, expected in zip(("mean", "var"), twin(start, federation, device, 2), strict=True):
            np.testing.assert_allclose(own[name], expected, rtol=1e-4, atol=1e-5)
    z = result.global_model["statistics"]["batch_stats"]["BatchNorm_0"]
    np.testing.assert_array_equal(z["mean"], 0)  # the server never saw any
    fedbc.simulate(algorithm, model, federation, checkpoint=tmp_path, **RUN | {"rounds": 1})
    resumed = fedbc.simulate(algorithm, model, federation, checkpoint=tmp_path, resume=True, **RUN)
    for a, b in zip(jax.tree.leaves(result.local_models), jax.tree.leaves(resumed.local_models), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_global_model_is_judged_with_each_devices_own_statistics(make_federation):
    federation, model = make_federation((10, 15)), normed("local")
    result = fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, **RUN)
    right = 0.0
    for device in range(2):
        own = jax.tree.map(lambda a, i=device: a[i], result.local_models)["statistics"]
        x, y = federation.test.of(device)
        right += np.sum(np.argmax(model.outputs({**result.global_model, "statistics": own}, x), 1) == y)
    assert result.history["global_accuracy"].iloc[-1] == pytest.approx(right / len(federation.test.y))


def test_averaged_statistics_are_the_mean_of_the_devices(make_federation):
    federation = make_federation((10, 15))
    result = fedbc.simulate(fedbc.SCAFFOLD(lr=0.1), normed("averaged"), federation, **RUN | {"rounds": 1})
    z, own = (m["statistics"]["batch_stats"]["BatchNorm_0"]["mean"] for m in (result.global_model, result.local_models))
    np.testing.assert_allclose(z, (10 * own[0] + 15 * own[1]) / 25, rtol=1e-5)


def test_statistics_are_no_part_of_drift_and_summand(make_federation):
    run = Simulation(fedbc.FedBC(), normed("local"), make_federation((10, 15)), Settings())
    trained = 4 + 4 + 4 * 3 + 3
    assert sum(leaf.size for leaf in jax.tree.leaves(run.engine.shapes.summand)) == 2 * trained + 2


def test_a_module_with_statistics_must_tell_training_from_evaluation():
    with pytest.raises(InputError, match="Normed keeps statistics, which follow training"):
        fedbc.models.from_flax(Normed(), jnp.zeros((1, 4)))
    with pytest.raises(InputError, match="statistics='global' is unknown: choose one of averaged, local"):
        fedbc.models.from_flax(Normed(), jnp.zeros((1, 4)), training="train", statistics="global")


def test_frozen_parameters_stay_and_do_not_travel(small):
    whole = fedbc.models.mlp(4, 64, 3)
    start = whole.init(jax.random.key(1))
    model = fedbc.models.freeze(whole, lambda name: name.startswith("out."), weights=start)
    run = Simulation(fedbc.FedBC(lr=0.1), model, small, Settings(sample=3))
    run.go(2)
    trained = 64 * 3 + 3
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(run.engine.shapes.summand)) == 4 * (
        2 * trained + 2
    )
    assert run.store.bytes_per_device == 4 * (trained + 2)
    z = run.result().global_model
    assert set(z) == {"out.w", "out.b"}
    assert not np.allclose(z["out.w"], start["out"]["w"])
    x = small.test.x
    same = whole.apply({"hidden": start["hidden"], "out": {"w": z["out.w"], "b": z["out.b"]}}, x)
    np.testing.assert_allclose(model.apply(z, x), same, rtol=1e-5, atol=1e-6)


def test_a_mask_that_does_not_fit_is_told():
    model = fedbc.models.mlp(4, 5, 3)
    with pytest.raises(InputError, match=r"no parameter of model mlp.* is trained; there are hidden.b, hidden.w"):
        fedbc.models.freeze(model, lambda name: False)
    with pytest.raises(InputError, match="trained is no tree of true and false"):
        fedbc.models.freeze(model, {"out": True})
