"""Federations from files and from other libraries' data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedbc import InputError
from fedbc.data import from_flwr, from_frame, from_torch, read
from fedbc.data.reading import checksum_of


def table(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "clinic": np.resize(["north", "south"], rows),
            "dose": rng.normal(size=rows),
            "ill": rng.choice(["yes", "no"], rows),
        }
    )


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "semicolons"])
def test_a_table_is_read_as_its_frame(tmp_path: Path, ending: str) -> None:
    frame = table()
    file = tmp_path / f"t.{'csv' if ending == 'semicolons' else ending}"
    if ending == "parquet":
        frame.to_parquet(file)
    elif ending == "semicolons":
        frame.to_csv(file, index=False, sep=";", decimal=",")
    else:
        frame.to_csv(file, index=False, sep="\t" if ending == "tsv" else ",")
    fed, like = read(str(file), "ill", "clinic"), from_frame(frame, label="ill", device="clinic")
    np.testing.assert_allclose(fed.train.x, like.train.x, rtol=1e-6)
    np.testing.assert_array_equal(fed.train.y, like.train.y)
    assert fed.name == "t"


def test_a_folder_has_a_file_for_each_device(tmp_path: Path) -> None:
    frame = table()
    for name, rows in frame.groupby("clinic"):
        rows.drop(columns="clinic").to_csv(tmp_path / f"{name}.csv", index=False)
    fed = read(str(tmp_path), "ill")
    assert fed.device_names == ("north", "south")
    np.testing.assert_allclose(fed.train.x, from_frame(frame, label="ill", device="clinic").train.x, rtol=1e-5)
    table().rename(columns={"dose": "doses"}).drop(columns="clinic").to_csv(tmp_path / "west.csv", index=False)
    with pytest.raises(InputError, match=r"west.csv and north.csv differ in their columns \(dose, doses\)"):
        read(str(tmp_path), "ill")


def test_arrays_and_a_file_with_details(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.resize(["a", "b"], 20)
    np.savez(tmp_path / "a.npz", x=x, y=y, device=np.repeat([10, 2], 10))
    fed = read(str(tmp_path / "a.npz"))
    assert (fed.device_names, fed.class_names) == (("2", "10"), ("a", "b"))
    (tmp_path / "own.toml").write_text('file = "a.npz"\ntest_share = 0.5\n')
    assert read(str(tmp_path / "own.toml")).test.sizes.tolist() == [5, 5]
    assert read(str(tmp_path / "own.toml"), test_share=0.1).test.sizes.tolist() == [1, 1]
    (tmp_path / "own.toml").write_text('file = "a.npz"\nshare = 0.5\n')
    with pytest.raises(InputError, match="argument='share' is unknown"):
        read(str(tmp_path / "own.toml"))
    with pytest.raises(InputError, match=r"label='y' does not apply to a.npz"):
        read(str(tmp_path / "a.npz"), label="y")


def test_a_folder_of_images(tmp_path: Path) -> None:
    for device in ("hospital", "practice"):
        for kind, grey in (("dark", 0), ("light", 255)):
            folder = tmp_path / device / kind
            folder.mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (6, 4), (grey, grey, i)).save(folder / f"{i}.png")
    fed = read(str(tmp_path))
    assert fed.class_names == ("dark", "light")
    assert fed.train.x.shape[1:] == (4, 6, 3)
    decoded = np.asarray(fed.decode(fed.shared, fed.train.x))
    np.testing.assert_allclose(decoded[:, 0, 0, 0], np.where(fed.train.y == 1, 1, -1))
    assert read(str(tmp_path), image_size=5).train.x.shape[1:] == (5, 5, 3)
    Image.new("RGB", (7, 4)).save(tmp_path / "hospital" / "dark" / "odd.png")
    with pytest.raises(InputError, match="image_size"):
        read(str(tmp_path))
    (tmp_path / "hospital" / "dark" / "odd.png").write_text("no image")
    with pytest.raises(InputError, match="cannot be read as an image"):
        read(str(tmp_path))


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    table().to_csv(file, index=False)
    for arguments, words in (
        ({"file": str(tmp_path / "u.csv"), "label": "ill"}, "does not exist"),
        ({"file": str(file)}, "label is missing"),
        ({"file": str(file), "label": "ill"}, "device is missing"),
        ({"file": str(file), "label": "ill", "device": "clinic", "image_size": 3}, "does not apply"),
    ):
        with pytest.raises(InputError, match=words):
            read(**arguments)
    (tmp_path / "t.parquet").write_text("nothing")
    with pytest.raises(InputError, match="cannot be read as a table"):
        read(str(tmp_path / "t.parquet"), "ill", "clinic")
    (tmp_path / "e.csv").write_text("")
    with pytest.raises(InputError, match="cannot be read as a table"):
        read(str(tmp_path / "e.csv"), "ill", "clinic")


def test_the_checksum_is_of_the_content(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "x.csv").write_text("1")
    assert checksum_of(str(tmp_path / "a")) == checksum_of(str(tmp_path / "b"))
    assert checksum_of(str(tmp_path / "a" / "x.csv")) == checksum_of(str(tmp_path / "b" / "x.csv"))
    (tmp_path / "b" / "x.csv").write_text("2")
    assert checksum_of(str(tmp_path / "a")) != checksum_of(str(tmp_path / "b"))


def test_pytorch_data_sets() -> None:
    sets = [
        torch.utils.data.TensorDataset(torch.rand(10, 3, 4, 5), torch.arange(10) % 2),
        torch.utils.data.TensorDataset(torch.rand(5, 3, 4, 5), torch.arange(5) % 2),
    ]
    fed = from_torch(sets, channels_last=True, device_names=("p", "q"))
    assert fed.train.x.shape == (12, 4, 5, 3)
    assert fed.test.sizes.tolist() == [2, 1]
    whole = from_torch(sets, sets)
    np.testing.assert_array_equal(whole.train.of(0)[0], sets[0].tensors[0].numpy())
    with pytest.raises(InputError, match=r"train\[0\] is not accepted"):
        from_torch([iter([])])


class Partitions:
    """What is used of flwr-datasets' FederatedDataset and of the data sets that it gives."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.partitioners = {"train": self}
        self.num_partitions = len(parts)

    def load_partition(self, number: int, split: str) -> Any:
        assert split == "train"
        return self.parts[number]


class Rows(list):
    """Rows with the attributes of a data set of Hugging Face's."""

    @property
    def column_names(self) -> list[str]:
        return list(self[0])

    @property
    def features(self) -> dict[str, Any]:
        label = type("ClassLabel", (), {"names": ["cat", "dog"]})
        return {name: label if name == "label" else None for name in self[0]}

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame(list(self))


def test_federated_data_sets_of_flwr() -> None:
    rng = np.random.default_rng(0)
    images = [Rows({"image": Image.new("L", (3, 2), 255 * (i % 2)), "label": i % 2} for i in range(10))] * 3
    fed = from_flwr(Partitions(images), label="label", image="image", devices=2)
    assert (fed.devices, fed.classes, fed.class_names) == (2, 2, ("cat", "dog"))
    assert fed.train.x.shape[1:] == (2, 3, 1)
    np.testing.assert_array_equal(fed.train.x[:, 0, 0, 0], np.where(fed.train.y == 1, 1, -1))
    tables = [Rows({"size": rng.normal(), "label": i % 2} for i in range(10)) for _ in range(3)]
    columns = from_flwr(Partitions(tables), label="label")
    assert (columns.devices, columns.encoding.features, columns.class_names) == (3, ["size"], ("cat", "dog"))
    with pytest.raises(InputError, match="the data set has 3 partitions"):
        from_flwr(Partitions(images), label="label", image="image", devices=4)
