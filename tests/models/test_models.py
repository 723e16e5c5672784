"""Arguments that make no sense, dropout, and what a model promises the engine."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbc import InputError, models

BAD = [
    (models.logistic, {"features": 0}),
    (models.logistic, {"classes": 1}),
    (models.mlp, {"features": 0}),
    (models.mlp, {"hidden": 0}),
    (models.mlp, {"hidden": 12.5}),
    (models.mlp, {"classes": 1}),
    (models.mlp, {"dropout": 1.0}),
    (models.mlp, {"dropout": -0.1}),
    (models.mlp, {"dropout": float("nan")}),
    (models.cnn, {"dropout": 1.0}),
    (models.cnn, {"classes": 1}),
    (models.cnn, {"classes": True}),
    (models.lstm, {"alphabet": 1}),
    (models.lstm, {"embedding": 0}),
    (models.lstm, {"hidden": -1}),
    (models.lstm, {"layers": 0}),
]


@pytest.mark.parametrize(("make", "arguments"), BAD)
def test_bad_arguments_are_named(make, arguments) -> None:
    (name,) = arguments
    with pytest.raises(InputError, match=f"{name}=.* is not accepted"):
        make(**arguments)


WRONG = [
    (models.logistic(), jnp.zeros((2, 61))),
    (models.mlp(), jnp.zeros((2, 28, 29))),
    (models.cnn(), jnp.zeros((2, 3, 32, 32))),
    (models.cnn(), jnp.zeros((2, 3072))),
    (models.lstm(), jnp.zeros((2, 80))),
    (models.lstm(), jnp.zeros(80, int)),
]


@pytest.mark.parametrize(("model", "x"), WRONG, ids=[f"{m.name} {x.shape}" for m, x in WRONG])
def test_data_of_another_shape(model: models.Model, x: jax.Array) -> None:
    params = jax.eval_shape(model.init, jax.random.key(0))
    with pytest.raises(InputError, match=r"takes .* of shape"):
        jax.eval_shape(model.outputs, params, x)


def test_images_are_flattened() -> None:
    model = models.mlp()
    params, x = model.init(jax.random.key(0)), jnp.ones((3, 28, 28))
    np.testing.assert_array_equal(model.outputs(params, x), model.outputs(params, x.reshape(3, 784)))


def test_dropout_only_in_training() -> None:
    with_dropout, without = models.mlp(6, 400, 2, dropout=0.5), models.mlp(6, 400, 2)
    assert with_dropout.stochastic
    assert not without.stochastic
    params, x = without.init(jax.random.key(0)), jnp.ones((1, 6))
    exact = without.outputs(params, x)
    np.testing.assert_array_equal(with_dropout.outputs(params, x, key=None), exact)

    outputs = jax.jit(jax.vmap(lambda key: with_dropout.outputs(params, x, key=key)))
    drawn = outputs(jax.random.split(jax.random.key(1), 2000))
    assert float(jnp.std(drawn[:, 0, 0])) > 0
    # Scaled by 1/(1 - dropout), the hidden layer has the same mean, and the output is linear in it.
    error = 5 * jnp.std(drawn, axis=0) / np.sqrt(2000)
    assert bool(jnp.all(jnp.abs(jnp.mean(drawn, axis=0) - exact) < error))


def test_dropout_of_the_cnn_only_in_training() -> None:
    with_dropout, without = models.cnn(dropout=0.5), models.cnn()
    assert with_dropout.stochastic
    assert not without.stochastic
    params, x = without.init(jax.random.key(0)), jnp.ones((2, 32, 32, 3))
    exact = without.outputs(params, x)
    np.testing.assert_array_equal(with_dropout.outputs(params, x, key=None), exact)
    first, second = (with_dropout.outputs(params, x, key=jax.random.key(k)) for k in (1, 2))
    assert not np.allclose(first, exact)
    assert not np.allclose(first, second)


def test_cnn_has_as_many_logits_as_asked() -> None:
    model = models.cnn(classes=7)
    shape = jax.eval_shape(lambda key: model.outputs(model.init(key), jnp.zeros((2, 32, 32, 3))), jax.random.key(0))
    assert shape.shape == (2, 7)


@pytest.mark.parametrize("layers", [1, 3])
def test_lstm_of_other_depth(layers: int) -> None:
    model = models.lstm(alphabet=9, embedding=3, hidden=5, layers=layers)
    params = model.init(jax.random.key(0))
    assert len(params["layers"]) == layers
    assert model.outputs(params, jnp.zeros((2, 4), jnp.int32)).shape == (2, 9)


@pytest.mark.parametrize("code", [9, -1])
def test_lstm_refuses_no_code_silently(code: int) -> None:
    """A character outside the alphabet gives NaN, which the engine reports, never another character's row."""
    model = models.lstm(alphabet=9, embedding=3, hidden=5)
    x = jnp.zeros((1, 4), jnp.int32).at[0, 2].set(code)
    assert bool(jnp.all(jnp.isnan(model.outputs(model.init(jax.random.key(0)), x))))
