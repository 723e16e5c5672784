"""The schedule: every example once an epoch, every lane within its bounds, shapes that do not depend on the draw."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbc.simulation.schedule import Batching, Planner, deal, sample_devices

sizes = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@given(
    sizes, st.integers(1, 25), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99), st.data()
)
def test_every_example_is_seen_once_an_epoch(sizes, batch_size, epochs, per_step, lanes, seed, data):
    sample = data.draw(st.integers(1, len(sizes)))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    batching = Batching(batch_size, epochs, per_step)
    planner = Planner(offsets, batching, sample=sample, lanes=lanes, seed=seed)
    plan = planner.plan(3)
    lane, place = plan.places
    devices = plan.devices[lane, place]
    np.testing.assert_array_equal(devices, sample_devices(seed, 3, len(sizes), sample))
    assert len(set(devices.tolist())) == sample
    assert (plan.devices >= 0).sum() == sample
    for row, column, device in zip(lane, place, devices, strict=True):
        steps = plan.steps[row, column]
        table = plan.rows[row, plan.first[row, column] :][: steps * per_step]
        batches = epochs * -(-sizes[device] // batch_size)
        assert steps == -(-batches // per_step)
        seen = table[:batches]
        own = np.arange(offsets[device], offsets[device + 1])
        for epoch in seen.reshape(epochs, -1):
            np.testing.assert_array_equal(np.sort(epoch[epoch >= 0]), own)
        # Only the last batch of an epoch may have empty places, and every batch has an example.
        assert (seen.reshape(epochs, -1, batch_size)[:, :-1] >= 0).all()
        assert (table >= 0).any(axis=1).all()


@given(sizes, st.integers(1, 25), st.integers(1, 4), st.integers(0, 99), st.data())
def test_plans_have_one_shape_and_lanes_do_not_overlap(sizes, batch_size, lanes, seed, data):
    sample = data.draw(st.integers(1, len(sizes)))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    planner = Planner(offsets, Batching(batch_size, 2), sample=sample, lanes=lanes, seed=seed)
    plans = [planner.plan(r) for r in range(1, 5)]
    assert len({p.rows.shape for p in plans}) == len({p.devices.shape for p in plans}) == 1
    for plan in plans:
        for lane in range(lanes):
            taken = plan.devices[lane] >= 0
            used = plan.first[lane, taken]
            ends = used + plan.steps[lane, taken]
            np.testing.assert_array_equal(used, np.concatenate([[0], ends])[: len(used)])
            assert ends.max(initial=0) <= plan.rows.shape[1]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 6))
def test_dealing_is_balanced(work, lanes):
    work = np.asarray(work)
    lane_of = deal(work, lanes, depth=len(work))
    loads = np.bincount(lane_of, weights=work, minlength=lanes)
    # Graham's bound for longest-first dealing: no lane exceeds the mean by more than the largest piece.
    assert loads.max() <= work.sum() / lanes + work.max()
    assert loads.sum() == work.sum()


def test_dealing_respects_the_depth():
    lane_of = deal(np.asarray([100, 1, 1, 1, 1, 1]), lanes=2, depth=4)
    assert np.bincount(lane_of).tolist() == [2, 4]


def test_draws_depend_on_seed_round_and_device_only():
    batching = Batching(4, 2)
    a = batching.table(seed=1, round=5, device=3, examples=10)
    np.testing.assert_array_equal(a, batching.table(seed=1, round=5, device=3, examples=10))
    for other in ((2, 5, 3), (1, 6, 3), (1, 5, 4)):
        assert not np.array_equal(a, batching.table(*other, 10))


def test_sampling_is_uniform_without_replacement():
    counts = np.zeros(12)
    for round in range(3000):
        drawn = sample_devices(7, round, 12, 4)
        assert len(set(drawn.tolist())) == 4
        counts[drawn] += 1
    # 1000 expected each with a standard deviation of about 26: five deviations.
    assert np.abs(counts - 1000).max() < 130


def test_full_batch_needs_no_table():
    planner = Planner(np.asarray([0, 5, 8]), Batching(None, 7), sample=None, lanes=2, seed=0)
    plan = planner.plan(1)
    lane, place = plan.places
    assert plan.steps[lane, place].tolist() == [7, 7]
    assert plan.first[lane, place].tolist() == [0, 5]
    assert plan.rows.size == 2


@pytest.mark.parametrize("sample", [None, 6])
def test_full_participation_takes_every_device(sample):
    assert sample_devices(3, 1, 6, sample).tolist() == [0, 1, 2, 3, 4, 5]
