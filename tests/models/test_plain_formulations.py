"""The fast CNN and LSTM equal a plain formulation, in value, gradient and second derivative."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbc import models
from fedbc.models.layers import dense, product

PRECISION = {jnp.float32: 1e-5, jnp.float64: 1e-10}
dtypes = pytest.mark.parametrize("dtype", PRECISION, ids=["float32", "float64"])


def plain_cnn(params: Any, x: jax.Array) -> jax.Array:
    for name in ("conv1", "conv2"):
        p = params[name]
        kernel = p["w"].transpose(2, 3, 1, 0)
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + p["b"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
    for name in ("dense1", "dense2"):
        x = jax.nn.relu(dense(params[name], x))
    return dense(params["out"], x)


def plain_lstm(params: Any, x: jax.Array) -> jax.Array:
    inputs = params["embedding"][x.T]
    for p in params["layers"]:
        zero = jnp.zeros((x.shape[0], p["w_hh"].shape[0]), inputs.dtype)

        def step(carry: Any, now: jax.Array, p: Any = p) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(now @ p["w_ih"] + p["b_ih"] + h @ p["w_hh"] + p["b_hh"], 4, axis=1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        inputs = jax.lax.scan(step, (zero, zero), inputs)[1]
    return dense(params["out"], inputs[-1])


def case(name: str, dtype: Any, n: int = 5) -> tuple[models.Model, Any, Any, jax.Array, jax.Array]:
    rng = np.random.default_rng(1)
    if name == "cnn":
        model, plain = models.cnn(), plain_cnn
        x = jnp.asarray(rng.normal(size=(n, 32, 32, 3)), dtype)
    else:
        model, plain = models.lstm(alphabet=11, embedding=4, hidden=24), plain_lstm
        x = jnp.asarray(rng.integers(0, 11, (n, 17)))
    params = jax.tree.map(lambda a: a.astype(dtype), jax.jit(model.init)(jax.random.key(0)))
    return model, plain, params, x, jnp.asarray(rng.integers(0, 10, n))


def assert_close(got: Any, wanted: Any, precision: float) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        scale = float(jnp.max(jnp.abs(b)))
        np.testing.assert_allclose(a, b, rtol=precision, atol=precision * scale, err_msg=jax.tree_util.keystr(path))


@dtypes
@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_values_and_gradients(name: str, dtype: Any) -> None:
    with jax.enable_x64(dtype == jnp.float64):
        model, plain, params, x, y = case(name, dtype)

        def loss(apply: Any, params: Any) -> jax.Array:
            return jnp.mean(model.loss(apply(params, x), y))

        assert_close(jax.jit(model.apply)(params, x), jax.jit(plain)(params, x), PRECISION[dtype])
        ours, theirs = (jax.jit(jax.grad(lambda p, f=f: loss(f, p)))(params) for f in (model.apply, plain))
        assert_close(ours, theirs, PRECISION[dtype])


@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_second_derivative(name: str) -> None:
    """Exact MAML differentiates through a gradient step."""
    with jax.enable_x64(True):
        model, plain, params, x, y = case(name, jnp.float64, n=2)

        def after_a_step(apply: Any, params: Any) -> jax.Array:
            def loss(params: Any) -> jax.Array:
                return jnp.mean(model.loss(apply(params, x), y))

            stepped = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))
            return loss(stepped)

        ours, theirs = (jax.jit(jax.grad(lambda p, f=f: after_a_step(f, p)))(params) for f in (model.apply, plain))
        assert_close(ours, theirs, 1e-9)


def test_gradient_with_respect_to_an_image() -> None:
    with jax.enable_x64(True):
        model, plain, params, x, _ = case("cnn", jnp.float64)
        ours, theirs = (jax.jit(jax.grad(lambda x, f=f: jnp.sum(f(params, x) ** 2)))(x) for f in (model.apply, plain))
        assert_close(ours, theirs, 1e-10)


def test_blank_images_have_finite_gradients() -> None:
    """All four outputs of a pooling block are equal then; the gradient goes to one of them."""
    model, plain, params, _, y = case("cnn", jnp.float32)
    x = jnp.ones((5, 32, 32, 3))

    def gradient(apply: Any) -> Any:
        return jax.jit(jax.grad(lambda p: jnp.mean(model.loss(apply(p, x), y))))(params)

    ours, theirs = gradient(model.apply), gradient(plain)
    assert_close(ours, theirs, 1e-4)


def test_product_is_a_product() -> None:
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.normal(size=(7, 3)), jnp.float32), jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)
    dx, dw = jax.grad(lambda x, w: jnp.sum(jnp.sin(product(x, w))), (0, 1))(x, w)
    wanted = jax.grad(lambda x, w: jnp.sum(jnp.sin(x @ w)), (0, 1))(x, w)
    assert_close((dx, dw), wanted, 1e-5)
