"""The choice between settings: preferences, the front against brute force, and resampled seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbc
from fedbc.selection.choice import best_of, pareto_front, resampled, weight_of

SMALL = st.integers(0, 4).map(float)  # few values, so that ties and duplicates are common
CLOUDS = st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=12).map(np.asarray)


def beats(a, b):
    return (a >= b).all() and (a > b).any()


@given(CLOUDS)
def test_the_front_is_what_nothing_beats(points):
    by_force = [not any(beats(other, point) for other in points) for point in points]
    assert pareto_front(points).tolist() == by_force


@given(CLOUDS, st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_the_best_is_on_the_front(points, weight):
    best = int(best_of(points, weight))
    assert pareto_front(points)[best]
    value = points @ np.asarray([weight, 1 - weight])
    assert value[best] == pytest.approx(value.max())


def test_preferences():
    points = np.asarray([[0.9, 0.5], [0.7, 0.8], [0.2, 0.9]])
    chosen = {prefer: int(best_of(points, weight_of(prefer))) for prefer in ("global", "balanced", "local", "0.9")}
    assert chosen == {"global": 0, "balanced": 1, "local": 2, "0.9": 0}


@pytest.mark.parametrize("prefer", ["globl", "1.5", "-0.1", "nan", ""])
def test_preferences_that_are_none(prefer):
    with pytest.raises(fedbc.InputError, match="give global, balanced, local, or the weight of global accuracy"):
        weight_of(prefer)


def test_resampling_is_sure_where_every_seed_agrees_and_split_where_they_do_not():
    better = np.asarray([[[0.9, 0.9]] * 3, [[0.8, 0.8]] * 3])
    sure = resampled(better, 0.5)
    assert sure.chosen.tolist() == [1, 0]
    assert sure.on_front.tolist() == [1, 0]
    # Of three seeds one prefers the second setting by far, two the first by less than half of that.
    divided = np.asarray([[[0.6, 0.6], [0.6, 0.6], [0.6, 0.6]], [[0.5, 0.5], [0.5, 0.5], [0.85, 0.85]]])
    sure = resampled(divided, 0.5)
    # The second wins when the third seed is drawn at least once: 1 - (2/3)^3 = 19/27.
    assert sure.chosen == pytest.approx([8 / 27, 19 / 27], abs=0.03)
    assert sure.chosen.sum() == pytest.approx(1)
    np.testing.assert_array_equal(resampled(divided, 0.5).chosen, sure.chosen)
