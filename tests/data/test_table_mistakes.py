"""Tables as people have them, wrong: refused in one line, or told in one where it may be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from PIL import Image

from fedbc import InputError
from fedbc.data import encode, from_frame, read
from fedbc.data.reading import checksum_of
from fedbc.errors import Notice

N = 60


def table(**columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "clinic": np.repeat(["A", "B", "C"], N // 3),
            "age": rng.normal(60, 10, N).round(1),
            "ill": rng.choice(["yes", "no"], N),
        }
        | columns
    )


def made(frame: Any, **more: Any) -> Any:
    return from_frame(frame, label="ill", device="clinic", **more)


def written(folder: Path, text: str, encoding: str = "utf-8") -> Any:
    (folder / "t.csv").write_bytes(text.encode(encoding))
    return read(str(folder / "t.csv"), label="ill", device="clinic")


@pytest.mark.parametrize(
    ("columns", "more", "words"),
    [
        ({"age": [*map(str, range(20, 79)), "unknown"]}, {}, "holds numbers as text ('unknown' in row 59)"),
        ({"age": [f"{i},5" for i in range(N)]}, {}, "holds numbers as text"),
        ({"seen": [f"2026-01-{1 + i % 28:02}" for i in range(N)]}, {}, "holds dates as text"),
        ({"seen": [f"{1 + i % 28}.1.2026" for i in range(N)]}, {}, "holds dates as text"),
        ({"nothing": [None] * N}, {}, "has no values in the training rows"),
        ({"age": [1, "old"] * 30}, {}, "several types, not numbers or words"),
        ({"age": np.linspace(-1e200, 1e200, N)}, {}, "numbers too large"),
        ({"ill": [f"Ms {i}" for i in range(N)]}, {}, "60 different values in 60 rows"),
        ({"clinic": ["007", "7", "12"] * 20}, {}, "['007', '7'], which differ only"),
        ({"clinic": ["A\nB", "B", "C"] * 20}, {}, "line break"),
        ({"clinic": [None, *["NA"] * 59]}, {}, "NA, None and null count as empty"),
        ({"held": "no"}, {"test": "held"}, "marks no row to test on"),
        ({}, {"test": table()}, "is the table that is trained on"),
        ({}, {"drop": "age"}, "give a list of columns, such as ['age']"),
        ({}, {"test": table(age="old")}, "holds numbers, but has 'old' in row 0"),
    ],
)
def test_what_would_be_learned_wrongly_is_refused(columns: Any, more: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        made(table(**columns), **more)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "more", "words"),
    [
        ({"patient": np.arange(N)[::-1] + 1000}, {}, "'patient' numbers the rows from 1000 on"),
        ({"row": np.tile(np.arange(N // 3), 3)}, {}, "'row' numbers the rows from 0 on"),
        ({"outcome": table()["ill"].map({"yes": "dead", "no": "alive"})}, {}, "'outcome' says the label"),
        ({"smoker": ["no", "yes", "yes "] * 20}, {}, "'yes' and 'yes ': they count as different"),
        ({}, {"test": table().head(10)}, "10 of 10 rows to test on are rows that are trained on"),
    ],
)
def test_what_may_be_a_mistake_is_told(columns: Any, more: Any, words: str) -> None:
    with pytest.warns(Notice) as told:
        made(table(**columns), **more)
    assert [words in str(w.message) for w in told] == [True]


def test_kinds_that_look_like_numbers_can_be_meant() -> None:
    fed = made(table(scanner=["1", "2", "x"] * 20), categorical=["scanner"])
    assert fed.encoding.features[1:] == ["scanner = 1", "scanner = 2", "scanner = x"]
    assert made(table(band=["20-29", "30-39", "40+"] * 20)).encoding.features[1] == "band = 20-29"


def test_names_stay_apart_that_floating_point_numbers_would_join() -> None:
    clinics = [2**53, 2**53 + 1, 2**53 + 2]
    assert made(table(clinic=np.repeat(clinics, 20))).device_names == tuple(map(str, clinics))
    assert made(table(clinic=np.repeat([1.0000001, 1.0000002, 3], 20))).device_names == ("1.0000001", "1.0000002", "3")


def test_letters_that_look_the_same_are_the_same() -> None:
    fed = made(table(clinic=np.repeat(["Köln", "Ko\u0308ln", "²"], 20)))
    assert fed.device_names == ("Köln", "²")
    assert fed.train.sizes.tolist() == [32, 16]


def test_yes_and_no_beside_gaps_are_words_in_every_library() -> None:
    frame = table(smoker=pd.Series([True, False, None] * 20, dtype=object))
    wanted = ["age", "smoker = False", "smoker = True", "smoker is missing"]
    for turned in (frame, frame.astype({"smoker": "boolean"}), pl.from_pandas(frame.astype({"smoker": "boolean"}))):
        assert made(turned).encoding.features == wanted


def test_new_rows_unlike_those_of_training_are_told() -> None:
    encoding = made(table(smoker=["no", "yes"] * 30)).encoding
    new = table(smoker="no").head(4)
    encode(encoding, new)
    for change, words in (
        ({"smoker": "No"}, "'smoker' has 'No' where training had 'no', 'yes': 4 of 4 rows"),
        ({"smoker": [None, "no", "no", "no"]}, "'smoker' has nothing where training had 'no', 'yes': 1 of 4 rows"),
        ({"age": [np.nan, 50, 50, 50]}, "'age' is empty in 1 of 4 rows, but in none of training's"),
        ({"age": new["age"] * 365}, "is it in other units?"),
    ):
        with pytest.warns(Notice) as told:
            encode(encoding, new.assign(**change))
        assert [words in str(w.message) for w in told] == [True]
    with pytest.raises(InputError, match="'age' holds numbers, but has 'old' in row 1 as text"):
        encode(encoding, new.assign(age=["50.0", "old", "51.0", "52.0"]))
    with pytest.raises(InputError, match="'50' in row 0 as text"):
        encode(encoding, new.assign(age="50"))


def test_columns_must_have_names_of_their_own(tmp_path: Path) -> None:
    text = table().assign(more=1.5).to_csv(index=False)
    with pytest.raises(InputError, match=r"t.csv has 2 columns called 'ill'"):
        written(tmp_path, text.replace("more", "ill", 1))
    with pytest.raises(InputError, match="more values than its first line has names"):
        written(tmp_path, text.replace(",more", "", 1))
    with pytest.raises(InputError, match="a column called 3, which is not text"):
        made(table().rename(columns={"age": 3}))
    with pytest.raises(InputError, match="'age' 2 times"):
        made(pd.concat([table(), table()[["age"]]], axis=1))


@pytest.mark.parametrize(
    ("separator", "decimal"), [(",", "."), (";", "."), ("\t", "."), ("|", "."), (";", ","), ("\t", ","), ("|", ",")]
)
def test_whatever_separates_columns_and_decimals(tmp_path: Path, separator: str, decimal: str) -> None:
    frame = table(clinic=np.repeat(["007", "08", "North"], 20))
    fed = written(tmp_path, frame.to_csv(index=False, sep=separator, decimal=decimal))
    assert fed.device_names == ("007", "08", "North")
    assert fed.encoding.features == ["age"]
    np.testing.assert_allclose(fed.train.x, made(frame).train.x, rtol=1e-6)


def test_a_clinic_s_number_may_have_become_a_fraction(tmp_path: Path) -> None:
    frame = table(clinic=np.repeat(["1.0", "2.0", "10.5"], 20))
    assert written(tmp_path, frame.to_csv(index=False)).device_names == ("1", "2", "10.5")


def test_text_that_is_not_utf_8_says_so(tmp_path: Path) -> None:
    text = table(clinic="Köln").to_csv(index=False)
    assert written(tmp_path, text, "utf-8-sig").device_names == ("Köln",)
    for encoding in ("latin-1", "utf-16"):
        with pytest.raises(InputError, match="is not UTF-8"):
            written(tmp_path, text, encoding)


def test_files_that_systems_hide_are_no_devices(tmp_path: Path) -> None:
    for name in ("A", "B"):
        table().drop(columns="clinic").to_csv(tmp_path / f"{name}.csv", index=False)
    before = checksum_of(str(tmp_path))
    (tmp_path / "._A.csv").write_bytes(b"\0\5\26\7")
    assert read(str(tmp_path), label="ill").device_names == ("A", "B")
    assert checksum_of(str(tmp_path)) == before


def test_images_keep_their_shades_and_their_place(tmp_path: Path) -> None:
    for device in "AB":
        for kind, grey in (("dark", 0x1000), ("light", 0xF000)):
            (tmp_path / device / kind).mkdir(parents=True)
            for i in range(3):
                Image.fromarray(np.full((2, 2), grey, np.uint16)).save(tmp_path / device / kind / f"{i}.png")
    fed = read(str(tmp_path))
    assert set(fed.train.x[fed.train.y == 0].ravel().tolist()) == {0x10}
    assert set(fed.train.x[fed.train.y == 1].ravel().tolist()) == {0xF0}
    deep = tmp_path / "A" / "dark" / "deep.tif"
    Image.fromarray(np.full((2, 2), 7, np.int32)).save(deep)
    with pytest.raises(InputError, match="pixels of 32 bits"):
        read(str(tmp_path))
    deep.unlink()
    Image.new("L", (2, 2)).save(tmp_path / "A" / "stray.png")
    with pytest.raises(InputError, match=r"stray.png is one of 1 images that do not lie in device/class"):
        read(str(tmp_path))
