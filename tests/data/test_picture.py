from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedbc.data import from_partition, partition, picture, synthetic
from fedbc.data.picture import class_counts
from fedbc.errors import InputError


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")])
def test_a_picture_is_written_in_the_format_of_its_name(tmp_path: Path, name: str, start: bytes) -> None:
    made = picture(synthetic(devices=5), tmp_path / name)
    assert made == tmp_path / name
    assert made.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [made]


def test_the_picture_says_what_it_shows(tmp_path: Path) -> None:
    y = np.repeat([0, 1], 1000)
    parts = partition.power_law(y, 3, 1, 2.0)
    made = from_partition(np.zeros((2000, 1)), y, parts, name="coins", class_names=("heads", "tails"))
    # Text as text, so that it can be looked for.
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        text = picture(made, tmp_path / "a.svg").read_text()
    assert "coins: 2,000 examples on 3 devices" in text
    for word in ("heads", "tails", "training", "test", "device", *(f"{len(part):,}" for part in parts)):
        assert f">{word}<" in text, word


def test_the_same_federation_gives_the_same_bytes(tmp_path: Path) -> None:
    one, other = (picture(synthetic(devices=3), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert one == other


def test_many_devices_many_classes_and_regression(tmp_path: Path) -> None:
    y = np.arange(3000) % 60
    many = from_partition(np.zeros((3000, 1)), y, partition.iid(y, 150))
    assert picture(many, tmp_path / "many.png").stat().st_size > 10_000
    regression = from_partition(np.eye(9), np.linspace(0, 1, 9), [range(4), range(4, 9)])
    assert picture(regression, tmp_path / "regression.png").stat().st_size > 5_000


def test_class_counts() -> None:
    made = from_partition(np.zeros((6, 1)), [0, 2, 2, 1, 1, 1], [[0, 1, 2], [3, 4, 5]], split="ordered")
    assert class_counts(made.train, 3).tolist() == [[1, 0, 1], [0, 2, 0]]
    assert class_counts(made.test, 3).tolist() == [[0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("name", "message"), [("a.jpeg", "must end in one of .png, .svg, .pdf"), ("no/a.png", "does not exist")]
)
def test_bad_paths_are_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        picture(synthetic(devices=2), tmp_path / name)
