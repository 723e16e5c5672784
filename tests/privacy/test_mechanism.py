"""The summand's sensitivity, by search for a counter-example; and noise of the size that the sensitivity asks for."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedbc
from fedbc.privacy import Mechanism, Share, system_normal

BOUNDS = st.tuples(st.floats(1e-3, 50), st.floats(1e-3, 50)).map(sorted)
numbers = st.floats(-1e6, 1e6, width=32)
vectors = st.lists(numbers, min_size=5, max_size=5).map(lambda v: np.array(v, np.float32))
weights = st.floats(0, 1e6, width=32)


def tree(vector):
    return {"w": jnp.asarray(vector[:4]).reshape(2, 2), "b": jnp.asarray(vector[4])}


def distance(mechanism, one, other):
    """‖(w u, k w) - (w' u', k w')‖, in 64 bits"""
    parts = zip(jax.tree.leaves(one.move), jax.tree.leaves(other.move), strict=True)
    square = sum(float(np.sum((np.asarray(a, float) - np.asarray(b, float)) ** 2)) for a, b in parts)
    if math.isfinite(mechanism.weight_unit):
        square += (mechanism.weight_unit * (float(one.weight) - float(other.weight))) ** 2
    else:
        assert float(one.weight) == float(other.weight)
    return math.sqrt(square)


@settings(max_examples=300)
@given(BOUNDS, st.floats(1e-3, 1e3), vectors, vectors, vectors, weights, weights)
def test_no_two_inputs_are_further_apart_than_the_sensitivity(bounds, clip, z, x, other_x, weight, other_weight):
    mechanism = Mechanism(clip, 1.0, *bounds)
    one, _ = mechanism.clipped(tree(z), tree(x), jnp.asarray(weight))
    other, _ = mechanism.clipped(tree(z), tree(other_x), jnp.asarray(other_weight))
    assert distance(mechanism, one, other) <= mechanism.sensitivity


@settings(max_examples=100)
@given(BOUNDS, st.floats(1e-3, 1e3), st.lists(st.floats(-1, 1), min_size=5, max_size=5))
def test_the_worst_cases_come_close(bounds, clip, direction):
    """Opposite updates at the bound: with equal largest weights, and with the largest and the least weight."""
    direction = np.array(direction)
    if np.linalg.norm(direction) < 1e-2:
        direction = np.ones(5)
    mechanism = Mechanism(clip, 1.0, *bounds)
    far = 10 * clip * direction / np.linalg.norm(direction)
    least, largest = bounds
    with jax.enable_x64(True):
        one, _ = mechanism.clipped(tree(np.zeros(5)), tree(far), jnp.asarray(largest))
        for weight in (largest, least):
            other, _ = mechanism.clipped(tree(np.zeros(5)), tree(-far), jnp.asarray(weight))
            moved = distance(mechanism, one, other)
            assert moved == pytest.approx(mechanism.sensitivity, rel=1e-4)
            assert moved <= mechanism.sensitivity


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_not_finite_cannot_tell_anything(bad):
    """3e38 is a number, but the square of the norm is not."""
    mechanism = Mechanism(1.0, 1.0, 0.1, 2.0)
    x = tree(np.array([bad, 0, 0, 0, 1], np.float32))
    share, clipped = mechanism.clipped(tree(np.zeros(5, np.float32)), x, jnp.asarray(bad))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(share.move))
    assert 0.1 <= float(share.weight) <= 2.0 + 1e-6
    assert clipped == 1


def test_small_updates_are_left_alone():
    mechanism = Mechanism(5.0, 0.0, 0.5, 2.0)
    z, x = tree(np.arange(5.0)), tree(np.arange(5.0) + 1)
    share, clipped = mechanism.clipped(z, x, jnp.asarray(1.5))
    assert clipped == 0
    for leaf in jax.tree.leaves(mechanism.noised(share, system_normal).move):
        np.testing.assert_allclose(leaf, 1.5)


def test_noise_has_the_stated_size():
    mechanism = Mechanism(0.5, 1.7, 0.2, 3.0)
    assert mechanism.sensitivity == 3.0
    assert mechanism.move_noise == pytest.approx(5.1)
    assert mechanism.weight_noise == pytest.approx(1.7 * 6 * math.sqrt(2.8 / 9.2))
    zero = Share(jnp.zeros(20_000), jnp.zeros(20_000), jnp.ones(()))  # many weights, to see their noise
    noised = mechanism.noised(zero, system_normal)
    for values, size in ((noised.move, mechanism.move_noise), (noised.weight, mechanism.weight_noise)):
        assert stats.kstest(np.asarray(values, float) / size, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(noised.move, noised.weight)[0, 1]) < 0.05


def test_a_known_weight_has_no_noise():
    mechanism = Mechanism(1.0, 2.0)
    share = Share(jnp.zeros(3), jnp.ones(()), jnp.ones(()))
    assert mechanism.noised(share, system_normal).weight == 1
    assert mechanism.weight_noise == 0


def test_systems_normal_numbers_are_normal_and_never_the_same():
    one, other = system_normal(20_000), system_normal(20_000)
    assert one.shape == (20_000,)
    assert not np.array_equal(one, other)
    assert np.isfinite(one).all()
    assert stats.kstest(one, "norm").pvalue > 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0), "clip=0"),
        ((1.0, -1.0), "noise_multiplier=-1"),
        ((1.0, 1.0, 0.0, 1.0), "least_weight=0"),
        ((1.0, 1.0, 2.0, 1.0), "largest_weight=1"),
        ((1.0, 1.0, 1.0, math.inf), "largest_weight=inf"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(fedbc.InputError, match=message):
        Mechanism(*arguments)
