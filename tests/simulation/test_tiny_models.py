"""A tiny model's training is compiled into one function; it computes what the plain formulation computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbc
from fedbc.models.layers import short_product
from fedbc.simulation.engine import lane_input
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.settings import Settings
from fedbc.simulation.training import Strides

ONE_FUNCTION = "xla_cpu_small_call"


def compiled_text(model: fedbc.models.Model, federation: fedbc.data.Federation, batch_size: int) -> str:
    """The compiled program of the lanes, as text."""
    run = Simulation(fedbc.FedBC(), model, federation, Settings(batch_size=batch_size, sample=2, lanes=1))
    plans = run.planner.plans(1, 1, room=run.training.at_once)
    if isinstance(run.training, Strides):
        own, shared = run.training.arguments(run.server, plans)
        return run.engine.lanes.meeting_program(run.training.lane, tiny=True).lower(own, shared).compile().as_text()
    own = lane_input(*run.store.take(plans.rounds[0].devices), plans.rounds[0])
    arguments = (own, run.server, run.train_data[0], run.key[0])
    program = run.engine.lanes.program(run.engine.lane, tiny=run.engine.tiny)
    return program.lower(*arguments).compile().as_text()


@pytest.fixture(scope="module")
def federation() -> fedbc.data.Federation:
    return fedbc.data.synthetic(devices=5, seed=2)


def test_a_tiny_model_in_small_batches_has_no_loop_of_separate_operations(federation):
    text = compiled_text(fedbc.models.logistic(), federation, batch_size=20)
    # One call for the loop over devices, one inside it for the loop over steps; the rounds around them meet.
    assert text.count(ONE_FUNCTION) == 2
    assert text.count(" while(") == 3


def test_larger_work_keeps_its_calls(federation):
    in_large_batches = compiled_text(fedbc.models.logistic(), federation, batch_size=100)
    hidden_layer = compiled_text(fedbc.models.mlp(features=60), federation, batch_size=20)
    assert ONE_FUNCTION not in in_large_batches
    assert ONE_FUNCTION not in hidden_layer


@pytest.mark.parametrize("inputs", [1, 5, 32, 33, 60, 128])
def test_a_short_product_is_the_product(inputs):
    draw = np.random.default_rng(inputs)
    x, w = draw.normal(size=(20, inputs)), draw.normal(size=(inputs, 10))
    with jax.enable_x64(True):
        np.testing.assert_allclose(short_product(jnp.asarray(x), jnp.asarray(w)), x @ w, rtol=1e-12)
        slope = jax.grad(lambda w: jnp.sum(short_product(jnp.asarray(x), w) ** 2))(jnp.asarray(w))
    np.testing.assert_allclose(slope, 2 * x.T @ (x @ w), rtol=1e-10)
