"""Validation data: held out by device, a function of the seed, and never the test sets."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbc
from fedbc.data import Federation, held_out
from fedbc.data.federation import Split
from fedbc.runs import RunSpec, identity, read_toml


def numbered(sizes, *, ordered=False):
    """Training example r of the federation is the number r, so that one can see where it went; tests are negative."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = np.arange(offsets[-1], dtype=np.float32)[:, None]
    test = Split(-np.ones((len(sizes), 1), np.float32), np.zeros(len(sizes), np.int32), np.arange(len(sizes) + 1))
    return Federation(Split(x, np.zeros(len(x), np.int32), offsets), test, 1, ordered=ordered)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8).filter(lambda s: max(s) >= 10),
    st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.9]),
    st.integers(0, 3),
)
def test_each_device_is_split_by_itself(sizes, share, seed):
    whole = numbered(sizes)
    fed = held_out(whole, share, seed)
    for device, size in enumerate(sizes):
        train, validation = (split.of(device)[0][:, 0].tolist() for split in (fed.train, fed.test))
        assert sorted(train + validation) == whole.train.of(device)[0][:, 0].tolist()
        assert train == sorted(train)
        assert len(validation) == int(round(share * size, 6))
        assert train
    assert fed.facts["too_small"] == sum(share * size < 1 for size in sizes)


def test_the_draw_is_a_function_of_the_seed_and_ordered_data_stay_in_order():
    whole = numbered([40, 25])
    first, again, other = (held_out(whole, 0.2, seed).test.x[:, 0].tolist() for seed in (1, 1, 2))
    assert first == again != other
    in_order = held_out(numbered([40, 25], ordered=True), 0.2, 1)
    assert in_order.test.x[:, 0].tolist() == [*range(32, 40), *range(60, 65)]


def test_a_run_measures_validation_data_and_not_the_test_sets(small, tiny_model):
    broken = dataclasses.replace(small, test=Split(small.test.x, (small.test.y + 1) % 3, small.test.offsets))
    results = [
        fedbc.simulate(fedbc.FedBC(lr=0.1), tiny_model, fed, rounds=3, validation=0.4, seed=2)
        for fed in (small, broken)
    ]
    times = ["seconds", "train_seconds"]
    assert results[0].history.drop(columns=times).equals(results[1].history.drop(columns=times))
    by_hand = fedbc.simulate(fedbc.FedBC(lr=0.1), tiny_model, held_out(small, 0.4, 2), rounds=3, seed=2)
    assert by_hand.history.drop(columns=times).equals(results[0].history.drop(columns=times))


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0, "validation=0 is not accepted: give a finite number > 0 and < 1"),
        (1.0, "validation=1.0 is not accepted"),
        (float("nan"), "validation=nan is not accepted"),
        (0.01, "leaves nothing to validate on: the largest device has 40 training examples"),
    ],
)
def test_shares_that_cannot_be_used(small, tiny_model, share, message):
    with pytest.raises(fedbc.InputError) as caught:
        fedbc.simulate(fedbc.FedBC(), tiny_model, small, rounds=1, validation=share)
    assert message in str(caught.value)


def test_a_federation_of_single_examples_cannot_hold_any_out():
    with pytest.raises(fedbc.InputError, match="every device has a single training example"):
        held_out(numbered([1, 1]), 0.5)


def test_a_specification_carries_it_and_old_results_are_still_found(tmp_path):
    plain = RunSpec({"name": "fedbc"})
    held = RunSpec({"name": "fedbc"}, run={"validation": 0.2})
    assert held.identity != plain.identity
    before = plain.to_dict()
    del before["run"]["validation"]  # as results files have it from before there was this argument
    assert identity(before) == plain.identity
    full = RunSpec(
        {"name": "fedbc", "tolerance": float("inf")},
        run={"batch_size": None, "validation": 0.2, "fine_tune": {"steps": 2, "on": "train"}},
    )
    file = tmp_path / "a.toml"
    file.write_text(full.to_toml())
    assert RunSpec.from_dict(read_toml(file)).to_dict() == full.to_dict()
    assert RunSpec.from_dict(read_toml(file)).identity == full.identity
