"""Other splits of the same examples: as many in each set, nothing lost, and a run on one knows which it has."""

import numpy as np
import pytest

import fedbc
from fedbc.data import held_out, measured_examples, of_run, resplit
from fedbc.data.federation import Federation, Split


def numbered(train=(7, 30, 12), test=(3, 10, 0), **more):
    """Every example is a number of its own."""
    cuts = [np.concatenate([[0], np.cumsum(sizes)]) for sizes in (train, test)]
    x = [np.arange(cut[-1], dtype=np.float32)[:, None] + first for cut, first in zip(cuts, (0, 1000), strict=True)]
    splits = [Split(own, np.zeros(len(own), np.int32), cut) for own, cut in zip(x, cuts, strict=True)]
    return Federation(*splits, 1, **more)


def test_a_split_has_the_same_examples_in_sets_of_the_same_sizes():
    whole = numbered()
    assert resplit(whole, 0) is whole
    tested = set()
    for split in (1, 2, 3):
        other = resplit(whole, split)
        np.testing.assert_array_equal(other.train.sizes, whole.train.sizes)
        np.testing.assert_array_equal(other.test.sizes, whole.test.sizes)
        for device in range(3):
            before, after = (
                np.sort(np.concatenate([s.of(device)[0][:, 0] for s in (fed.train, fed.test)]))
                for fed in (whole, other)
            )
            np.testing.assert_array_equal(before, after)
        tested.add(tuple(other.test.x[:, 0].tolist()))
        np.testing.assert_array_equal(resplit(whole, split).test.x, other.test.x)
    assert len(tested) == 3


def test_every_example_is_tested_as_often_as_any_other():
    whole = numbered((30,), (10,))
    counts = np.zeros(2000)
    for split in range(1, 301):
        counts[resplit(whole, split).test.x[:, 0].astype(int)] += 1
    counts = counts[[*range(30), *range(1000, 1010)]]
    assert counts.sum() == 3000
    assert np.abs(counts / 300 - 0.25).max() < 0.12


def test_what_a_run_is_measured_on_is_told_by_numbers_that_all_splits_share():
    whole = numbered()
    stored = np.concatenate([whole.train.x, whole.test.x])
    for run in ({}, {"resplit": 2}, {"resplit": 2, "validation": 0.3, "seed": 5}, {"validation": 0.3, "seed": 1}):
        found = of_run(whole, run)
        np.testing.assert_array_equal(stored[measured_examples(whole, run)], found.test.x)
    both = of_run(whole, {"resplit": 2, "validation": 0.3, "seed": 5})
    np.testing.assert_array_equal(both.test.x, held_out(resplit(whole, 2), 0.3, 5).test.x)


def test_a_run_is_made_and_measured_on_its_split(small, tiny_model):
    algorithm = fedbc.FedBC(lr=0.05)
    run = fedbc.simulate(algorithm, tiny_model, small, rounds=2, resplit=3)
    by_hand = fedbc.simulate(algorithm, tiny_model, resplit(small, 3), rounds=2)
    np.testing.assert_array_equal(run.history["global_accuracy"], by_hand.history["global_accuracy"])
    own = fedbc.simulate(algorithm, tiny_model, small, rounds=2)
    assert not np.array_equal(run.global_model["w"], own.global_model["w"])
    # The stored scores of single devices are those of the split, too.
    comparison = fedbc.compare({"a": [own, run]}, federation=small, model=tiny_model)
    devices = comparison.devices.set_index(["split", "device"])
    for split, result in ((0, own), (3, run)):
        mean = devices.loc[split]["local_accuracy"].mean()
        assert mean == pytest.approx(result.history["local_accuracy"].iloc[-1])
    assert comparison.table[["seeds", "splits"]].to_numpy().tolist() == [[1, 2]]


def test_what_cannot_be_split_is_refused(tiny_model, small):
    texts = numbered(ordered=True, name="texts")
    with pytest.raises(
        fedbc.InputError, match="resplit=1 is not accepted for texts: its neighbouring examples overlap"
    ):
        resplit(texts, 1)
    with pytest.raises(fedbc.InputError, match="resplit=-1 is not accepted"):
        fedbc.simulate(fedbc.FedBC(lr=0.1), tiny_model, small, rounds=1, resplit=-1)
