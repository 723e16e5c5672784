"""One's own tables: what becomes of the columns, in which order devices come, what is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fedbc import InputError
from fedbc.data import encode, from_frame, picture, pooled, subset
from fedbc.errors import Notice
from fedbc.flower import one_device


def clinics(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "clinic": rng.choice(["Clinic 10", "Clinic 2", "Ward A"], rows),
            "age": rng.normal(60, 9, rows).round(1),
            "year": 2000 + rng.integers(0, 20, rows),
            "scanner": rng.choice(["old", "new"], rows),
            "diagnosis": rng.choice(["ill", "well"], rows),
        }
    )
    frame.loc[3, "age"] = np.nan
    frame.loc[[4, 5], "scanner"] = None
    return frame


def made(frame: Any, **more: Any) -> Any:
    return from_frame(frame, label="diagnosis", device="clinic", **more)


def test_names_of_devices_and_classes_stay() -> None:
    frame = clinics()
    fed = made(frame)
    assert fed.device_names == ("Clinic 2", "Clinic 10", "Ward A")
    assert fed.class_names == ("ill", "well")
    counts = frame["clinic"].value_counts()
    for i, name in enumerate(fed.device_names):
        assert fed.train.sizes[i] + fed.test.sizes[i] == counts[name]
        ill = (frame[frame["clinic"] == name]["diagnosis"] == "ill").sum()
        assert (fed.train.of(i)[1] == 0).sum() + (fed.test.of(i)[1] == 0).sum() == ill
    assert pooled(fed).device_names == ()


def test_columns_are_standardised_by_the_training_rows_of_all_devices_together() -> None:
    """The devices' sums give what one table of all training rows gives, in float64."""
    frame = clinics()
    frame["is_test"] = np.arange(len(frame)) % 4 == 0
    fed = made(frame, test="is_test")
    train = frame[~frame["is_test"]]
    age, year = fed.encoding.columns[:2]
    assert np.isclose(age.mean, train["age"].mean(), rtol=1e-12)
    assert np.isclose(age.deviation, train["age"].std(ddof=0), rtol=1e-12)
    assert np.isclose(year.deviation, train["year"].std(ddof=0), rtol=1e-10)
    assert fed.encoding.features == [
        "age", "age is missing", "year", "scanner = new", "scanner = old", "scanner is missing",
    ]  # fmt: skip
    row = fed.encoding.encode({c: v[[3, 4]] for c, v in _columns(frame).items()})
    assert row[0, 0] == 0
    assert row[0, 1] == 1
    assert row[1, 3:].tolist() == [0, 0, 1]
    np.testing.assert_allclose(fed.train.x[:, 0].mean(), 0, atol=1e-6)
    # Test rows have no influence: other values in them leave the rule as it is.
    frame.loc[frame["is_test"], "age"] = 1e6
    assert made(frame, test="is_test").encoding == fed.encoding


def _columns(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    words = frame["scanner"].astype(object)
    return {
        "age": frame["age"].to_numpy(float),
        "year": frame["year"].to_numpy(float),
        "scanner": words.where(words.notna(), None).to_numpy(),
    }


@pytest.mark.parametrize("turn", [pl.from_pandas, pa.Table.from_pandas], ids=["polars", "arrow"])
def test_frames_of_other_libraries_give_the_same_federation(turn: Any) -> None:
    frame = clinics()
    one, other = made(frame), made(turn(frame))
    np.testing.assert_array_equal(one.train.x, other.train.x)
    np.testing.assert_array_equal(one.test.y, other.test.y)
    assert one.encoding == other.encoding
    np.testing.assert_array_equal(encode(one.encoding, turn(frame)), encode(one.encoding, frame))


def test_words_that_training_never_saw_are_none_of_those_that_it_saw() -> None:
    frame = clinics()
    new = frame.head(2).assign(scanner="newest")
    with pytest.warns(Notice, match="'newest' where training had 'new', 'old', nothing: 2 of 2 rows"):
        x = encode(made(frame).encoding, new)
    assert x[:, 3:].tolist() == [[0, 0, 0], [0, 0, 0]]
    with pytest.raises(InputError, match="column='age' is unknown"):
        encode(made(frame).encoding, new.drop(columns="age"))


def test_a_separate_table_is_tested_on() -> None:
    frame, test = clinics(), clinics(30, seed=1)
    fed = made(frame, test=test)
    assert fed.train.sizes.sum() == 60
    assert fed.test.sizes.sum() == 30
    with pytest.raises(InputError, match="test has rows of device 'Ward B'"):
        made(frame, test=test.replace("Ward A", "Ward B"))
    with pytest.raises(InputError, match="test has the label 'dead'"):
        made(frame, test=test.assign(diagnosis="dead"))


def test_the_label_s_type_says_what_is_learned() -> None:
    frame = clinics()
    regression = from_frame(frame.fillna({"age": 50}), label="age", device="clinic")
    assert regression.classes is None
    assert regression.train.y.shape[1] == 1
    assert made(frame.assign(diagnosis=frame["diagnosis"] == "ill")).class_names == ("False", "True")
    assert made(frame.assign(diagnosis=np.arange(60) % 3 + 5)).class_names == ("5", "6", "7")
    with pytest.raises(InputError, match="class or a quantity"):
        made(frame.assign(diagnosis=(np.arange(60) % 2).astype(float)))
    fed = made(frame.assign(diagnosis=(np.arange(60) % 2).astype(float)), task="classification")
    assert fed.class_names == ("0", "1")


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        ({}, {"drop": ["name"]}, "column='name' is unknown"),
        ({}, {"features": ["age", "diagnosis"]}, "not to predict from"),
        ({}, {"drop": ["age", "year", "scanner"]}, "no columns left"),
        ({}, {"categorical": ["weight"]}, "categorical='weight' is unknown"),
        ({"clinic": [None, *["A"] * 59]}, {}, "empty in 1 of 60 rows, first in row 0"),
        ({"diagnosis": ["ill", None] * 30}, {}, "empty in 30 of 60 rows"),
        ({"diagnosis": ["ill", "Ill "] * 30}, {}, "differ only by case or spaces"),
        ({"clinic": ["North", "north"] * 30}, {}, "differ only by case or spaces"),
        ({"diagnosis": "ill"}, {}, "nothing to learn"),
        ({"age": [np.inf, *[1.0] * 59]}, {}, "infinite value in row 0"),
        ({"age": np.nan}, {}, "has no values in the training rows"),
        ({"seen": pd.Timestamp("2026-01-01")}, {}, "not numbers or words"),
        ({"is_test": ["perhaps"] * 60}, {"test": "is_test"}, "holds yes or no"),
        ({"is_test": True}, {"test": "is_test"}, "has no training rows"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(change: dict[str, Any], more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        made(clinics().assign(**change), **more)
    assert "\n" not in str(caught.value)


def test_identifiers_are_refused() -> None:
    frame = clinics(200)
    with pytest.raises(InputError, match=r"different words.*drop=\['patient'\]"):
        made(frame.assign(patient=[f"P{i}" for i in range(200)]))
    with pytest.raises(InputError, match=r"column='diagnose' is unknown.*'diagnosis'"):
        from_frame(frame, label="diagnose", device="clinic")
    with pytest.raises(InputError, match="frame of type list"):
        made([1, 2])
    with pytest.raises(InputError, match="no rows"):
        made(frame.head(0))


def test_the_picture_has_the_names(tmp_path: Path) -> None:
    picture(made(clinics()), tmp_path / "p.svg")
    with pytest.raises(InputError, match="device_names has 2 different names, but there are 3"):
        replace(made(clinics()), device_names=("a", "b"))


def test_parts_of_a_federation_keep_their_names() -> None:
    fed = made(clinics())
    assert subset(fed, [2, 0]).device_names == ("Ward A", "Clinic 2")
    alone = one_device(fed, 1)
    assert alone.device_names == ("Clinic 10",)
    np.testing.assert_array_equal(alone.train.x, fed.train.of(1)[0])
    assert pooled(fed).names_of([0]) == ()
