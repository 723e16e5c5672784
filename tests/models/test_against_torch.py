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

from fedbc import InputError, models

with warnings.catch_warnings():  # PyTorch's own imports warn
    warnings.simplefilter("ignore")
    import torch

    import fedbc.torch.models as twins
    from fedbc.torch import to_jax, to_torch

torch.set_num_threads(1)  # its threads wait for one another when other tests run beside it


@dataclass(frozen=True)
class Case:
    model: models.Model
    twin: Callable[[], Any]
    inputs: tuple[int, ...]
    parameters: int
    classes: int = 10
    codes: bool = False


CASES = {
    "logistic": Case(models.logistic(), twins.logistic, (60,), 610),
    "mlp": Case(models.mlp(), twins.MLP, (784,), 101_770),
    "cnn": Case(models.cnn(), twins.CNN, (32, 32, 3), 62_006),
    "lstm": Case(models.lstm(), twins.LSTM, (80,), 819_920, 80, True),
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
    twin.load_state_dict(to_torch(params))
    expected = twin(torch.tensor(x).movedim(-1, 1) if x.ndim == 4 else torch.tensor(x))
    torch.nn.functional.cross_entropy(expected, torch.tensor(y)).backward()

    def loss(params: Any) -> jax.Array:
        return jnp.mean(case.model.loss(case.model.outputs(params, jnp.asarray(x)), jnp.asarray(y)))

    outputs = jax.jit(case.model.outputs)(params, jnp.asarray(x))
    np.testing.assert_allclose(outputs, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    gradients = to_torch(jax.jit(jax.grad(loss))(params))
    for name, parameter in twin.named_parameters():
        wanted = parameter.grad.numpy()
        np.testing.assert_allclose(gradients[name], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max(), err_msg=name)


@case
def test_weights_there_and_back(case: Case) -> None:
    params = jax.jit(case.model.init)(jax.random.key(0))
    back = to_jax(to_torch(params))
    assert jax.tree.structure(back) == jax.tree.structure(params)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (back, params)), strict=True))
    twin = case.twin()
    there = to_torch(to_jax(twin))
    assert all(torch.equal(there[name], tensor) for name, tensor in twin.state_dict().items())


def test_weights_without_a_counterpart_are_refused() -> None:
    with pytest.raises(InputError, match="gain"):
        to_torch({"gain": np.zeros(())})
    with pytest.raises(InputError, match="running_mean"):
        to_jax(torch.nn.BatchNorm1d(3))


@case
def test_number_of_parameters(case: Case) -> None:
    assert count(jax.eval_shape(case.model.init, jax.random.key(0))) == case.parameters
    assert sum(p.numel() for p in case.twin().parameters()) == case.parameters


@case
def test_starts_as_pytorch_does(case: Case) -> None:
    ours = to_torch(jax.jit(case.model.init)(jax.random.key(0)))
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
