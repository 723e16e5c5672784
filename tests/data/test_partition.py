from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from fedbc.data import from_partition, partition
from fedbc.errors import InputError

COUNTS = {
    "MNIST": [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
    "CIFAR-10": [6000] * 10,
}
# Examples on the smallest and the largest of 20 devices, for exponents 1.1 to 1.5.
SIZE_RANGES = {
    "MNIST": [(1222, 7486), (374, 12057), (110, 16444), (32, 21197), (10, 23410)],
    "CIFAR-10": [(1047, 6433), (320, 10398), (94, 14032), (28, 17814), (9, 20067)],
}
# "1x5 17x2" is one device with five classes and 17 with two, for exponents 1.1 to 1.5; None where the paper's table
# is not what its rule gives.
CLASS_PARTITIONS = {
    ("MNIST", 1): ["2x3 5x2 13x1", "1x4 1x3 4x2 14x1", "1x4 1x3 4x2 14x1", "1x6 1x3 2x2 16x1", "1x6 1x3 2x2 16x1"],
    ("CIFAR-10", 1): ["2x3 5x2 13x1", None, None, "1x6 1x3 2x2 16x1", "1x6 1x3 2x2 16x1"],
    ("MNIST", 2): ["1x5 1x4 3x3 15x2", *["1x6 1x4 1x3 17x2"] * 4],
    ("CIFAR-10", 2): ["1x5 1x4 3x3 15x2", "1x5 2x4 17x2", *["1x6 1x4 1x3 17x2"] * 3],
    ("MNIST", 3): ["1x7 2x4 17x3", "1x7 2x4 17x3", *["1x8 2x4 17x3"] * 3],
    ("CIFAR-10", 3): [None, "1x7 2x4 17x3", "1x8 2x4 17x3", "1x8 2x4 17x3", "1x9 1x4 18x3"],
}
EXPONENTS = [1.1, 1.2, 1.3, 1.4, 1.5]


def labels_of(dataset: str) -> np.ndarray:
    # In an arbitrary order: the partition depends on the counts only.
    return np.random.default_rng(0).permutation(np.repeat(np.arange(10), COUNTS[dataset]))


def classes_held(y: np.ndarray, parts: list[np.ndarray]) -> str:
    counts = Counter(len(np.unique(y[part])) for part in parts)
    return " ".join(f"{devices}x{classes}" for classes, devices in sorted(counts.items(), reverse=True))


@pytest.mark.parametrize("dataset", COUNTS)
@pytest.mark.parametrize("number", range(5))
def test_power_law_gives_the_papers_size_ranges(dataset: str, number: int) -> None:
    for classes in (1, 2, 3):
        parts = partition.power_law(labels_of(dataset), classes=classes, exponent=EXPONENTS[number])
        sizes = [len(part) for part in parts]
        assert (sizes[0], sizes[-1]) == SIZE_RANGES[dataset][number]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(("dataset", "classes"), CLASS_PARTITIONS)
def test_power_law_gives_the_papers_class_partitions(dataset: str, classes: int) -> None:
    y = labels_of(dataset)
    for exponent, expected in zip(EXPONENTS, CLASS_PARTITIONS[dataset, classes], strict=True):
        if expected is not None:
            parts = partition.power_law(y, classes=classes, exponent=exponent)
            assert classes_held(y, parts) == expected


def test_the_expected_numbers_are_those_of_the_papers_tables(paper_tables: Path) -> None:
    tables = json.loads(paper_tables.read_text())
    for row in tables["size_range"]["rows"]:
        expected = SIZE_RANGES[row["dataset"]][EXPONENTS.index(row["exponent"])]
        assert expected == (row["smallest"], row["largest"])
    checked = 0
    for row in tables["class_partition"]["rows"]:
        expected = CLASS_PARTITIONS[row["dataset"], row["classes"]][EXPONENTS.index(row["exponent"])]
        if expected is not None:
            assert expected == " ".join(f"{d}x{c}" for d, c in row["devices_by_class_count"])
            checked += 1
    assert checked == 27


labels = st.lists(st.integers(-3, 6), min_size=1, max_size=300).map(np.array)
seeds = st.integers(0, 2**31)


def unless_refused(reasons: str, make: Callable[..., Any], *arguments: object) -> Any:
    """What `make` gives; a draw that it refuses for one of these reasons is no example."""
    try:
        return make(*arguments)
    except InputError as error:
        if not re.search(reasons, str(error)):
            raise
        reject()


def assert_each_row_once(parts: list[np.ndarray], rows: int) -> None:
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))


@given(labels, st.integers(1, 20), st.integers(1, 4), st.floats(1, 2), seeds)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_power_law_deals_every_row_once(y: np.ndarray, devices: int, classes: int, exponent: float, seed: int) -> None:
    parts = unless_refused(
        "more than|without any|cannot be met", partition.power_law, y, devices, classes, exponent, seed
    )
    assert len(parts) == devices
    assert_each_row_once(parts, len(y))
    assert min(len(part) for part in parts) >= 1


@given(st.integers(1000, 100_000), st.integers(1, 20), st.floats(1, 1.3))
def test_power_law_sizes_grow_and_add_up(examples: int, devices: int, exponent: float) -> None:
    sizes = unless_refused("without any", partition.power_law_sizes, examples, devices, exponent)
    assert sum(sizes) == examples
    assert sizes[:-1] == sorted(sizes[:-1]) or exponent == 1 or sizes == sorted(sizes)


@given(st.integers(1, 3), st.integers(10, 16), seeds)
def test_power_law_gives_small_devices_at_most_the_wanted_classes(classes: int, devices: int, seed: int) -> None:
    y = np.repeat(np.arange(5), 2000)
    parts = partition.power_law(y, devices, classes, 1.5, seed)
    # No class can be used up yet by these, and what is left over at the end does not reach down to them.
    small = [part for part in parts[:-8] if len(part) < 2000 // len(parts)]
    assert small
    assert all(len(np.unique(y[part])) <= classes for part in small)


@given(labels, st.integers(1, 10), st.floats(0.05, 100), seeds)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_dirichlet_deals_every_row_once(y: np.ndarray, devices: int, concentration: float, seed: int) -> None:
    parts = unless_refused("min_examples=2|more than", partition.dirichlet, y, devices, concentration, seed)
    assert len(parts) == devices
    assert_each_row_once(parts, len(y))
    assert min(len(part) for part in parts) >= 2


def test_dirichlet_concentration_makes_devices_alike_or_not() -> None:
    y = np.repeat(np.arange(10), 1000)

    def largest_share(concentration: float) -> float:
        parts = partition.dirichlet(y, 10, concentration, min_examples=10)
        return float(np.mean([np.bincount(y[part]).max() / len(part) for part in parts]))

    assert largest_share(1000.0) < 0.12
    assert largest_share(0.1) > 0.4


@given(labels, st.integers(1, 10), st.integers(1, 4), seeds)
def test_shards_deals_every_row_once(y: np.ndarray, devices: int, each: int, seed: int) -> None:
    if devices * each > len(y):
        with pytest.raises(InputError, match=r"more than|needs"):
            partition.shards(y, devices, each, seed)
        return
    parts = partition.shards(y, devices, each, seed)
    assert len(parts) == devices
    assert_each_row_once(parts, len(y))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= each


def test_shards_of_whole_classes_hold_one_class_each() -> None:
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 40))
    parts = partition.shards(y, 10, 2)
    assert all(len(np.unique(y[part])) <= 2 for part in parts)
    assert {len(part) for part in parts} == {40}


@given(labels, st.integers(1, 10), seeds)
def test_iid_deals_every_row_once(y: np.ndarray, devices: int, seed: int) -> None:
    if devices > len(y):
        with pytest.raises(InputError, match="more than"):
            partition.iid(y, devices, seed)
        return
    parts = partition.iid(y, devices, seed)
    assert_each_row_once(parts, len(y))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.lists(st.sampled_from(["ann", "bob", "eve"]), min_size=1))
def test_by_id_groups_rows_in_the_order_of_sorted_ids(ids: list[str]) -> None:
    parts = partition.by_id(ids)
    assert [[ids[i] for i in part] for part in parts] == [[d] * ids.count(d) for d in sorted(set(ids))]
    assert all(np.all(np.diff(part) > 0) for part in parts)


def test_the_seed_determines_a_partition() -> None:
    y = labels_of("CIFAR-10")
    for make in (partition.power_law, partition.dirichlet, partition.shards, partition.iid):
        one, same, other = (np.concatenate(make(y, seed=seed)) for seed in (1, 1, 2))  # type: ignore[operator]
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)


@pytest.mark.parametrize(("rows", "share", "kept"), [(1, 0.2, 1), (2, 0.2, 1), (9, 0.2, 7), (10, 0.3, 7), (3, 0.9, 1)])
def test_split_leaves_something_on_both_sides(rows: int, share: float, kept: int) -> None:
    for order in ("shuffled", "ordered"):
        train, test = partition.split(np.arange(rows) + 5, share, order)
        assert len(train) == kept
        assert sorted([*train, *test]) == list(range(5, 5 + rows))


def test_split_in_order_or_shuffled() -> None:
    rows = np.arange(100)[::-1]
    train, test = partition.split(rows, order="ordered")
    assert np.array_equal(np.concatenate([train, test]), rows)
    shuffled = partition.split(rows)[1]
    assert not np.array_equal(shuffled, test)
    assert np.array_equal(shuffled, partition.split(rows)[1])
    assert not np.array_equal(shuffled, partition.split(rows, seed=2)[1])


def test_from_partition_builds_a_federation() -> None:
    x = np.arange(40.0).reshape(20, 2)
    y = np.arange(20, dtype=np.uint8) % 3
    made = from_partition(x, y, [[3, 1], np.arange(4, 14), [15]], split="ordered", name="mine")
    assert repr(made) == "Federation(mine: 3 devices, 10 training and 3 test examples)"
    assert made.train.sizes.tolist() == [1, 8, 1]
    assert made.test.sizes.tolist() == [1, 2, 0]
    assert made.classes == 3
    assert made.train.x.dtype == np.float32
    assert made.train.of(0)[0].tolist() == [[6.0, 7.0]]
    assert made.test.of(1)[1].tolist() == [0, 1]


def test_from_partition_accepts_regression() -> None:
    made = from_partition(np.eye(4), np.linspace(0, 1, 4), [[0, 1], [2, 3]])
    assert made.classes is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.power_law([0, 1], devices=3), "devices=3 is more than the 2 examples"),
        (lambda: partition.power_law([0, 1] * 9, devices=2, classes=3), "classes=3 cannot be met: .* 2 classes"),
        (lambda: partition.power_law([0] * 30, 20, 1, 1.5), "exponent=1.5 leaves the smallest of devices=20 without"),
        (lambda: partition.power_law([0] * 30, exponent=0.9), "exponent=0.9 is not accepted"),
        (lambda: partition.power_law([0.5] * 30), "labels of type float64 .* whole numbers"),
        (lambda: partition.power_law([[1], [2]]), r"shape \(2, 1\) are not accepted"),
        (lambda: partition.iid([0] * 30, devices=0), "devices=0 is not accepted"),
        (lambda: partition.iid([0] * 30, seed=-1), "seed=-1 is not accepted"),
        (lambda: partition.dirichlet([0] * 30, concentration=0), "concentration=0 is not accepted"),
        (lambda: partition.dirichlet([0] * 30, 10, min_examples=4), "min_examples=4 on devices=10 needs more than"),
        (lambda: partition.dirichlet([0] * 30, 10, 0.001, min_examples=3), "concentration=0.001 left a device"),
        (lambda: partition.shards([0] * 30, 10, 4), "shards_per_device=4 on devices=10 needs 40 examples"),
        (lambda: partition.by_id([]), "ids of shape"),
        (lambda: partition.by_id([1.0, np.nan, np.nan]), r"ids\[1\] is missing \(nan\), as are 2 of 3"),
        (lambda: partition.by_id(["a", float("nan")]), r"ids\[1\] is missing"),
        (lambda: partition.by_id(np.array(["a", None], object)), r"ids\[1\] is missing \(None\)"),
        (lambda: partition.by_id(np.array(["2020-01-01", "NaT"], "M8[D]")), r"ids\[1\] is missing"),
        (lambda: partition.by_id(np.array(["a", 1], object)), r"ids of several types \(int, str\)"),
        (
            lambda: partition.from_partition(np.ones((4, 1)), [0, 1, 0, 1], [[0, 1, 2], [2, 3]]),
            r"parts\[1\] and parts\[0\] both have row 2",
        ),
        (
            lambda: partition.from_partition(np.ones((4, 1)), [0, 1, 0, 1], [[0, 1, 0], [2, 3]]),
            r"parts\[0\] has row 0 more than once",
        ),
        (lambda: partition.from_partition(np.ones((1, 1)), ["a"], [[0]]), "the labels y are text"),
        (lambda: partition.split([], 0.2), "indices of shape"),
        (lambda: partition.split([1, 2], 1.0), "test_share=1.0 is not accepted"),
        (lambda: partition.split([1, 2], order="random"), "order='random' is unknown"),
        (lambda: from_partition(np.eye(3), [0, 1], [[0]]), "does not match y"),
        (lambda: from_partition(np.eye(2), [0, 1], []), r"parts=\[\] is not accepted"),
        (lambda: from_partition(np.eye(2), [0, 1], [[0], []]), r"parts\[1\] is not accepted"),
        (lambda: from_partition(np.eye(2), [0, 1], [[0, 2]]), r"parts\[0\] has row numbers that are not among"),
        (lambda: from_partition(np.eye(2), [0, 1], [[-1]]), r"parts\[0\] has row numbers"),
        (lambda: from_partition(np.eye(2), [0, 1], [[0]], split="orderd"), "did you mean 'ordered'"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        call()
