"""Federations from a user's own arrays, and the synthetic one."""

import importlib

import numpy as np
import pytest

import fedbc
from fedbc.data import federation, synthetic


def pair(n=3, features=2, label=1):
    return np.ones((n, features)), np.full(n, label)


def test_rows_keep_their_device_and_order():
    train = [(np.arange(6.0).reshape(3, 2), [0, 1, 2]), (np.arange(6.0, 8.0).reshape(1, 2), [1])]
    fed = federation(train, train)
    assert fed.devices == 2
    assert fed.classes == 3
    assert fed.train.sizes.tolist() == [3, 1]
    x, y = fed.train.of(1)
    assert x.tolist() == [[6, 7]]
    assert y.tolist() == [1]
    assert fed.train.x.dtype == np.float32
    assert fed.train.y.dtype == np.int32


BAD = {
    "no devices": (([], []), "train=[] is not accepted"),
    "other number of devices": (([pair(), pair()], [pair()]), "train has 2 devices but test has 1"),
    "no examples": (([pair(), pair(0)], [pair(), pair()]), "train[1] has no examples"),
    "no examples at all": (([pair(0)], [pair(0)]), "train has no examples on any device"),
    "unequal length": (([(np.ones((3, 2)), [1, 2])], [pair()]), "train[0] has arrays of unequal length"),
    "not a pair": (([np.float64(3)], [pair()]), "train[0] is not a pair"),
    "other shape": (([pair(), pair(features=3)], [pair(), pair()]), "train[1] has examples of shape (3,)"),
    "other shape in test": (([pair()], [pair(features=5)]), "test examples (5,)"),
    "NaN": (
        ([pair(), (np.array([[1, 2], [3, np.nan]]), [0, 1])], [pair(), pair()]),
        "train[1] has NaN or Inf in x (row 1",
    ),
    "Inf": (([pair()], [(np.array([[np.inf, 0]]), [0])]), "test[0] has NaN or Inf in x (row 0"),
    "NaN target": (([(np.ones((1, 1)), [np.nan])], [(np.ones((1, 1)), [0.0])]), "train[0] has NaN or Inf in y"),
    "negative label": (([pair(label=-1)], [pair()]), "train[0] has label -1"),
    "text": (([(np.array([["a"]], object), [1])], [pair()]), "the examples of train[0] are objects"),
    "text labels": (([(np.ones((1, 2)), ["a"])], [pair()]), "the labels of train[0] are text: number the classes"),
    "labels of mixed type": (([(np.ones((2, 2)), np.array(["a", None]))], [pair()]), "labels of train[0] are text"),
    "complex": (([(np.ones((1, 2)) * 1j, [1])], [pair()]), "the examples of train[0] are complex numbers"),
    "dates": (([(np.array([["2020-01-01"]], "M8[D]"), [1])], [pair()]), "the examples of train[0] are dates"),
    "ragged": (([([[1, 2], [3]], [1, 2])], [pair()]), "the examples of train[0] cannot be made an array"),
    "too large a whole number": (([(np.array([[2**40]]), [1])], [pair()]), "do not fit into int32"),
    "too large a number": (([(np.array([[1e300]]), [1])], [pair()]), "beyond the range of float32"),
    "fractions in the test labels": (([pair()], [(np.ones((1, 2)), [0.5])]), "train labels are int64 but test labels"),
    "fractions on one device": (
        ([pair(), (np.ones((1, 2)), [0.5])], [pair(), pair()]),
        "train[1] has labels of floating",
    ),
    "labels of other shape": (
        ([pair()], [(np.ones((1, 2)), [[1]])]),
        "train labels have shape () but test labels (1,)",
    ),
}


def test_true_and_false_are_classes():
    both = [(np.ones((2, 1)), np.array([True, False]))]
    fed = federation(both, both)
    assert fed.classes == 2
    assert fed.train.y.tolist() == [1, 0]


@pytest.mark.parametrize("name", BAD)
def test_bad_arrays_are_named(name):
    arguments, message = BAD[name]
    with pytest.raises(fedbc.InputError) as caught:
        federation(*arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_out_of_range():
    with pytest.raises(fedbc.InputError, match=r"test\[1\] has label 5: labels must be whole numbers from 0 to 2"):
        federation([pair(), pair()], [pair(), pair(label=5)], classes=3)


def test_classes_need_whole_numbers():
    with pytest.raises(fedbc.InputError, match="classes=3 needs whole-number labels"):
        federation([(np.ones((2, 1)), [0.5, 1.5])], [(np.ones((1, 1)), [0.5])], classes=3)


def test_synthetic_follows_its_description():
    fed = synthetic(devices=200, alpha=0.5, beta=0.5, seed=4)
    sizes = fed.train.sizes + fed.test.sizes
    assert sizes.min() >= 50
    # log(size - 50) is N(4, 2), up to truncation to whole numbers: mean within five standard errors.
    assert abs(np.log(np.maximum(sizes - 50, 1)).mean() - 4) < 5 * 2 / np.sqrt(200)
    assert np.abs(fed.test.sizes - sizes / 5).max() < 1
    # The j-th feature varies by j^-1.2 within a device.
    x = np.concatenate([fed.train.of(i)[0] - fed.train.of(i)[0].mean(0) for i in range(200)])
    np.testing.assert_allclose(x.var(0), np.arange(1, 61) ** -1.2, rtol=0.15)
    assert set(np.unique(fed.train.y)) <= set(range(10))


def test_synthetic_is_a_function_of_its_seed():
    a, b, c = (synthetic(devices=3, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a.train.x, b.train.x)
    assert a.train.x.shape != c.train.x.shape or not np.array_equal(a.train.x, c.train.x)


def test_iid_devices_are_alike_and_others_are_not():
    def spread(fed):
        return np.var([fed.train.of(i)[0].mean(0) for i in range(fed.devices)], axis=0).mean()

    assert spread(synthetic(devices=20, iid=True)) < 0.05 * spread(synthetic(devices=20))
    assert spread(synthetic(devices=60, beta=5)) > 3 * spread(synthetic(devices=60, beta=0))


@pytest.mark.parametrize(
    "bad", [{"devices": 0}, {"alpha": -1}, {"beta": float("nan")}, {"test_share": 1.0}, {"classes": 1}, {"seed": -1}]
)
def test_synthetic_refuses(bad):
    (name,) = bad
    with pytest.raises(fedbc.InputError, match=f"{name}="):
        synthetic(**bad)


def test_the_cost_of_a_device_does_not_grow_with_the_others(monkeypatch):
    """A million devices are loaded one by one: each is compared with the first one, not with all before it."""
    compared = []
    module = importlib.import_module("fedbc.data.federation")
    monkeypatch.setattr(module, "_words", lambda labels: compared.append(1) or "whole numbers")
    one = np.zeros((2, 3), np.float32), np.array([0, 1])
    federation([one] * 50, [one] * 50)
    assert len(compared) == 2 * 50
