"""Personal models of a model that keeps statistics besides its parameters: whose statistics a device's model has."""

import flax.linen as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbc
from fedbc.errors import InputError
from fedbc.simulation.schedule import Batching

HOW = {"how": "walk", "lr": 0.2, "batch_size": 5, "epochs": 4, "seed": 3}


class Normed(fl.Module):
    """With a BatchNorm, whose statistics are those of the examples: the weights play no part."""

    @fl.compact
    def __call__(self, x, train=False):
        return fl.Dense(3)(fl.BatchNorm(use_running_average=not train, momentum=0.9)(x))


@pytest.fixture(scope="module")
def federation(make_federation):
    return make_federation((12, 30, 25), test=12)


@pytest.fixture(scope="module", params=["local", "averaged"])
def trained(request, federation):
    """A model and its result, in which device 2 never took part."""
    model = fedbc.models.from_flax(Normed(), jnp.zeros((1, 4)), training="train", statistics=request.param)
    result = fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, rounds=3, sample=1, seed=4, batch_size=5)
    assert sorted(result.participants.tolist()) != [0, 1, 2]
    return model, result


def statistics_of(models, device):
    kept = models["statistics"]["batch_stats"]["BatchNorm_0"]
    return {name: np.asarray(array)[device] for name, array in kept.items()}


def of_z(model, result, device):
    """The statistics that the device has with the global model."""
    place = np.flatnonzero(result.participants == device)
    if model.statistics == "local" and len(place):
        return statistics_of(result.participants_models, place[0])
    return {name: np.asarray(a) for name, a in result.global_model["statistics"]["batch_stats"]["BatchNorm_0"].items()}


def followed(start, x, number, epochs):
    """The running mean and variance after so many epochs of the walk's batches, in NumPy."""
    mean, variance = (np.asarray(start[name], float) for name in ("mean", "var"))
    for epoch in range(1, epochs + 1):
        for rows in Batching(5, 1).table(3, epoch, number, len(x)):
            batch = x[np.resize(rows[rows >= 0], 5)]
            mean, variance = 0.9 * mean + 0.1 * batch.mean(0), 0.9 * variance + 0.1 * batch.var(0)
    return mean, variance


def test_a_walk_takes_the_devices_own_statistics_along(trained, federation):
    model, result = trained
    found = fedbc.personalize(result, model, federation, **HOW)
    from_z = np.isfinite(found.tolerances)
    going = np.flatnonzero(from_z & (found.epochs > 0))
    assert len(going)
    for device in np.flatnonzero(from_z):
        place = np.flatnonzero(going == device)
        start, x = of_z(model, result, device), federation.train.of(device)[0]
        wanted = followed(start, x, *place, int(found.epochs[device])) if len(place) else (start["mean"], start["var"])
        for name, expected in zip(("mean", "var"), wanted, strict=True):
            np.testing.assert_allclose(statistics_of(found.local_models, device)[name], expected, rtol=1e-4, atol=1e-5)
    difference = jax.tree.map(
        lambda a, z: np.sum((a - z) ** 2, axis=tuple(range(1, a.ndim))),
        found.local_models["params"],
        result.global_model["params"],
    )
    np.testing.assert_allclose(found.tolerances[from_z], sum(jax.tree.leaves(difference))[from_z], rtol=1e-4, atol=1e-9)


def test_the_global_model_is_judged_with_the_devices_statistics(trained, federation):
    model, result = trained
    found = fedbc.personalize(result, model, federation, **HOW)
    for device in range(federation.devices):
        x, y = federation.test.of(device)
        own = {"batch_stats": {"BatchNorm_0": of_z(model, result, device)}}
        outputs = model.outputs({"params": result.global_model["params"], "statistics": own}, x)
        assert found.global_accuracy[device] == pytest.approx(float((np.argmax(outputs, 1) == y).mean()))


def test_it_is_walked_not_solved(trained, federation):
    model, result = trained
    assert fedbc.personalize(result, model, federation, epochs=1).how["how"] == "walk"
    with pytest.raises(InputError, match="how='solve' is not for model Normed"):
        fedbc.personalize(result, model, federation, how="solve")


def test_it_goes_on_where_it_was_stopped(trained, federation, tmp_path):
    model, result = trained
    first, again = (fedbc.personalize(result, model, federation, checkpoint=tmp_path, **HOW) for _ in range(2))
    for a, b in zip(jax.tree.leaves(first.local_models), jax.tree.leaves(again.local_models), strict=True):
        np.testing.assert_array_equal(a, b)
