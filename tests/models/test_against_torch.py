"""Each model gives PyTorch's outputs and gradients, has its number of parameters, and starts as PyTorch's does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbc import models

with warnings.catch_warnings():  # PyTorch's own imports warn
    warnings.simplefilter("ignore")
    import torch
    import torch_twins as twins

torch.set_num_threads(1)  # its threads wait for one another when other tests run beside it


@dataclass(frozen=True)
class Case:
    model: models.Model
    twin: Callable[[], Any]
    state: Callable[[Any], dict[str, Any]]
    inputs: tuple[int, ...]
    parameters: int
    classes: int = 10
    codes: bool = False


CASES = {
    "logistic": Case(models.logistic(), twins.logistic, twins.logistic_state, (60,), 610),
    "mlp": Case(models.mlp(), twins.mlp, twins.mlp_state, (784,), 101_770),
    "cnn": Case(models.cnn(), twins.CNN, twins.cnn_state, (32, 32, 3), 62_006),
    "lstm": Case(models.lstm(), twins.LSTM, twins.lstm_state, (80,), 819_920, 80, True),
}
case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def batch(case: Case, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    if case.codes:
        x = rng.integers(0, case.classes, (n, *case.inputs))
    else:
        x = rng.normal(size=(n, *case.inputs)).astype(np.float32)
    return x, rng.integers(0, case.classes, n)


def count(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@case
def test_outputs_and_gradients(case: Case) -> None:
    x, y = batch(case)
    params = jax.jit(case.model.init)(jax.random.key(0))
    twin = case.twin()
    twin.load_state_dict(twins.tensors(case.state(params)))
    expected = twin(torch.tensor(x))
    torch.nn.functional.cross_entropy(expected, torch.tensor(y)).backward()

    def loss(params: Any) -> jax.Array:
        return jnp.mean(case.model.loss(case.model.outputs(params, jnp.asarray(x)), jnp.asarray(y)))

    outputs = jax.jit(case.model.outputs)(params, jnp.asarray(x))
    np.testing.assert_allclose(outputs, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    gradients = case.state(jax.jit(jax.grad(loss))(params))
    for name, parameter in twin.named_parameters():
        wanted = parameter.grad.numpy()
        np.testing.assert_allclose(gradients[name], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max(), err_msg=name)


@case
def test_number_of_parameters(case: Case) -> None:
    assert count(jax.eval_shape(case.model.init, jax.random.key(0))) == case.parameters
    assert sum(p.numel() for p in case.twin().parameters()) == case.parameters


@case
def test_starts_as_pytorch_does(case: Case) -> None:
    ours = case.state(jax.jit(case.model.init)(jax.random.key(0)))
    for name, parameter in case.twin().state_dict().items():
        mine, theirs = np.asarray(ours[name]), parameter.numpy()
        assert mine.shape == theirs.shape
        if mine.size >= 500:  # both are draws: their spreads and extremes agree to a few percent
            np.testing.assert_allclose(mine.std(), theirs.std(), rtol=0.15, err_msg=name)
            if "embedding" not in name:
                np.testing.assert_allclose(np.abs(mine).max(), np.abs(theirs).max(), rtol=0.02, err_msg=name)


@case
def test_two_keys_two_starts(case: Case) -> None:
    init = jax.jit(case.model.init)
    one, other = (jax.tree.leaves(init(jax.random.key(k))) for k in (0, 1))
    assert all(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))
