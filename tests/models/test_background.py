"""Products with images that have a background equal plain products, in value and derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native_forms import assert_close, without_native

from fedbc import models, native
from fedbc.models import background


def images(n: int, features: int, value: float, share: float = 0.2, seed: int = 0) -> jax.Array:
    """Runs of pixels that differ from the background `value`, beginning where they like."""
    rng = np.random.default_rng(seed)
    differs = rng.random((n, features)) < share / 4
    for _ in range(2):
        differs |= np.roll(differs, 1, axis=1)
    differs[0, 0] = False
    return jnp.asarray(np.where(differs, rng.normal(size=(n, features)), value), jnp.float32)


def weights(*shape: int, seed: int = 1) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[0]), jnp.float32)


def value_and_gradients(x: jax.Array, w: jax.Array) -> Any:
    def total(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(background.image_product(x, w)))

    # A function of its own each time: the traced form depends on what is available.
    return jax.jit(lambda x, w: (background.image_product(x, w), jax.grad(total, (0, 1))(x, w)))(x, w)


# Whole tiles and vectors of images, pixels and outputs, and rests of each.
@pytest.mark.parametrize("n", [1, 5, 20, 23])
@pytest.mark.parametrize(("features", "outputs"), [(784, 128), (256, 32), (263, 33), (301, 100)])
@pytest.mark.parametrize("value", [0.0, -0.42])
def test_values_and_gradients(n: int, features: int, outputs: int, value: float) -> None:
    x, w = images(n, features, value), weights(features, outputs)
    with without_native():
        wanted = value_and_gradients(x, w)
    assert_close(value_and_gradients(x, w), wanted)


def test_it_is_used_where_there_is_a_compiler() -> None:
    program = jax.jit(background.image_product).lower(images(20, 784, 0.0), weights(784, 128)).as_text()
    assert ("fedbc_background_product" in program) == native.available()


@pytest.mark.parametrize("share", [0.0, 4.0])
def test_nothing_but_background_and_no_background(share: float) -> None:
    x, w = images(20, 300, 0.5, share), weights(300, 40)
    with without_native():
        wanted = value_and_gradients(x, w)
    assert_close(value_and_gradients(x, w), wanted)


def test_no_images() -> None:
    assert background.image_product(jnp.zeros((0, 300)), weights(300, 40)).shape == (0, 40)


@pytest.mark.parametrize(("row", "pixel"), [(0, 0), (2, 9), (7, 299)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_image(row: int, pixel: int, value: float) -> None:
    """A run that diverges must be seen to, also if it is the pixel that stands for the background."""
    x = images(8, 300, 0.0).at[row, pixel].set(value)
    finite = np.isfinite(background.image_product(x, weights(300, 40))).all(axis=1)
    assert finite.tolist() == [k != row for k in range(8)]


def test_weights_that_are_not_finite_are_seen_behind_a_background() -> None:
    """As in a plain product, in which zero times infinity is not a number."""
    w = weights(300, 40).at[17, 3].set(jnp.inf)
    y = background.image_product(jnp.zeros((8, 300)), w)
    assert np.isnan(y[:, 3]).all()
    assert np.isfinite(np.delete(y, 3, axis=1)).all()


def test_second_derivatives() -> None:
    """As exact MAML takes them: through a step of gradient descent."""
    x, w = images(9, 300, -0.4), weights(300, 20)

    def after_a_step(x: jax.Array, w: jax.Array) -> jax.Array:
        def total(x: jax.Array, w: jax.Array) -> jax.Array:
            return jnp.mean(jnp.tanh(background.image_product(x, w)) ** 2)

        slope, gradient = jax.grad(total, (0, 1))(x, w)
        return total(x - 0.1 * slope, w - 0.1 * gradient)

    with without_native():
        wanted = jax.jit(jax.grad(lambda x, w: after_a_step(x, w), (0, 1)))(x, w)
    assert_close(jax.jit(jax.grad(after_a_step, (0, 1)))(x, w), wanted, 1e-4)


def test_many_models_at_once() -> None:
    several = [(images(6, 300, 0.1, seed=seed), weights(300, 20, seed=seed)) for seed in range(3)]
    together = jax.vmap(value_and_gradients)(*(jnp.stack(part) for part in zip(*several, strict=True)))
    for k, one in enumerate(several):
        assert_close(jax.tree.map(lambda a, k=k: a[k], together), value_and_gradients(*one), 1e-6)


def test_tables_and_other_precisions_take_the_plain_product() -> None:
    model = models.mlp(60, 128, 10)
    params = jax.jit(model.init)(jax.random.key(0))
    assert "fedbc_background" not in jax.jit(model.apply).lower(params, jnp.zeros((20, 60))).as_text()
    with jax.enable_x64(True):
        x, w = jnp.zeros((20, 784), jnp.float64), jnp.zeros((784, 128), jnp.float64)
        assert "fedbc_background" not in jax.jit(background.image_product).lower(x, w).as_text()
