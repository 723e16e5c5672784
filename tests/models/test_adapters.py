"""Models of Flax and Equinox, and the examples that use them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import fedbc
from fedbc import InputError, models

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
EXAMPLES = Path(__file__).parents[2] / "examples"


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        return linen.Dropout(0.5, deterministic=not train)(linen.Dense(3)(x))


class Normed(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.BatchNorm(use_running_average=False)(x)


class Deterministic(linen.Module):
    @linen.compact
    def __call__(self, x: Any, deterministic: bool) -> Any:
        return linen.Dropout(0.5)(linen.Dense(3)(x), deterministic=deterministic)


class Equinox(eqx.Module):
    linear: Any
    drop: Any
    scale: jax.Array

    def __init__(self, key: jax.Array) -> None:
        self.linear, self.drop = eqx.nn.Linear(4, 3, key=key), eqx.nn.Dropout(0.5)
        self.scale = jnp.array(2)  # whole numbers are not trained

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return self.scale * self.drop(self.linear(x), key=key)


def nnx_model(rngs: Any) -> Any:
    return nnx.Sequential(nnx.Linear(4, 5, rngs=rngs), jax.nn.relu, nnx.Linear(5, 3, rngs=rngs))


MODELS = {
    "flax": lambda: models.from_flax(Linen(), X[:1]),
    "flax, train": lambda: models.from_flax(Linen(), X[:1], training="train"),
    "flax, deterministic": lambda: models.from_flax(Deterministic(), X[:1], training="deterministic"),
    "nnx": lambda: models.from_nnx(nnx_model),
    "equinox": lambda: models.from_equinox(lambda key: eqx.nn.MLP(4, 3, 5, 1, key=key)),
    "equinox, dropout": lambda: models.from_equinox(Equinox, dropout=True),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_contract(make: Any) -> None:
    """What the engine relies on: floating-point arrays to train, one output row an example, dropout by the key."""
    model = make()
    params = jax.jit(model.init)(jax.random.key(0))
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(params))
    other = model.init(jax.random.key(1))
    assert jax.tree.structure(other) == jax.tree.structure(params)
    assert any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (params, other)), strict=True))

    outputs = jax.jit(model.outputs)
    assert outputs(params, X).shape == (6, 3)
    for row in range(6):
        np.testing.assert_allclose(outputs(params, X)[row], outputs(params, X[row : row + 1])[0], rtol=1e-5, atol=1e-6)
    trained = outputs(params, X, jax.random.key(2))
    assert np.array_equal(trained, outputs(params, X)) != model.stochastic
    gradient = jax.grad(lambda p: jnp.mean(model.loss(model.outputs(p, X), jnp.zeros(6, int))))(params)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    assert all(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(gradient))


def test_flax_values() -> None:
    module = Linen()
    model = models.from_flax(module, X[:1])
    params = model.init(jax.random.key(0))
    np.testing.assert_allclose(model.outputs(params, X), module.apply({"params": params}, X))


def test_equinox_values_and_way_back() -> None:
    model = models.from_equinox(Equinox, dropout=True)
    params = model.init(jax.random.key(5))
    module = eqx.nn.inference_mode(eqx.combine(params, Equinox(jax.random.key(0))))
    np.testing.assert_allclose(model.outputs(params, X), jax.vmap(module)(X))
    np.testing.assert_array_equal(module.linear.weight, Equinox(jax.random.key(5)).linear.weight)


class NormedNnx(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.norm, self.linear = nnx.BatchNorm(4, momentum=0.9, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.linear(self.norm(x))


class NormedEquinox(eqx.Module):
    norm: Any
    linear: Any

    def __init__(self, key: jax.Array) -> None:
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", momentum=0.9, mode="batch")
        self.linear = eqx.nn.Linear(4, 3, key=key)

    def __call__(self, x: Any, state: Any) -> Any:
        x, state = self.norm(x, state)
        return self.linear(x), state


KEEPING = {
    "nnx": lambda kept: models.from_nnx(NormedNnx, statistics=kept),
    "equinox": lambda kept: models.from_equinox(eqx.nn.make_with_state(NormedEquinox), statistics=kept),
}


@pytest.mark.parametrize("make", KEEPING.values(), ids=KEEPING.keys())
def test_state_besides_parameters_is_kept_as_statistics(make: Any, make_federation: Any) -> None:
    model = make("local")
    start = model.init(jax.random.key(0))
    _, first = model.apply(start, X, jax.random.key(1))
    means = [a for a in jax.tree.leaves(first) if a.shape == (4,) and np.abs(a).max() < 0.5]
    np.testing.assert_allclose(means[0], 0.1 * X.mean(0), rtol=1e-4, atol=1e-6)
    run = {"rounds": 2, "batch_size": 5, "epochs": 2, "seed": 3}
    two = make_federation((10, 15))
    local = fedbc.simulate(fedbc.FedBC(lr=0.1), model, two, **run)
    same = jax.tree.map(np.array_equal, local.global_model["statistics"], start["statistics"])
    assert all(jax.tree.leaves(same)), "the server never saw any"
    averaged = fedbc.simulate(fedbc.FedAvg(lr=0.1), make("averaged"), two, **run)
    z, own = averaged.global_model["statistics"], averaged.local_models["statistics"]
    for mean, (a, b) in zip(jax.tree.leaves(z), jax.tree.leaves(own), strict=True):
        if np.issubdtype(mean.dtype, np.floating):
            np.testing.assert_allclose(mean, (10 * a + 15 * b) / 25, rtol=1e-4, atol=1e-6)
    assert local.history["global_loss"].iloc[-1] < local.history["global_loss"].iloc[0]


def test_dropout_of_nnx_draws_by_the_key() -> None:
    model = models.from_nnx(lambda rngs: nnx.Sequential(nnx.Linear(4, 3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)))
    params = model.init(jax.random.key(0))
    one, same, other = (model.outputs(params, X, jax.random.key(k)) for k in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert (model.outputs(params, X) != 0).all()


def test_an_equinox_module_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(InputError, match="can be called"):
        models.from_equinox(lambda key: (eqx.nn.Linear(4, 3, key=key), "state"))


def test_an_nnx_module_is_sent_to_its_adapter() -> None:
    with pytest.raises(InputError, match="from_nnx"):
        models.from_flax(nnx_model(nnx.Rngs(0)), X[:1])


@pytest.mark.parametrize("name", ["own_model", "own_model_flax", "own_model_equinox"])
def test_example_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](rounds=8)
    assert result.history["global_accuracy"].iloc[-1] > 0.3
    assert "global_accuracy" in capsys.readouterr().out
