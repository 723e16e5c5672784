from __future__ import annotations

import gzip
import inspect
import shutil
import struct
from pathlib import Path

import jax
import numpy as np
import pytest

from fedbc.data import Federation, files, mnist
from fedbc.data.mnist import decode, match, read_idx
from fedbc.errors import InputError

TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture(scope="module")
def federation(real_data: Path) -> Federation:
    return mnist(exponent=1.5, classes=3, data_dir=str(real_data))


def test_the_pool_holds_all_images_once(federation: Federation) -> None:
    sizes = federation.train.sizes + federation.test.sizes
    assert federation.train.sizes.tolist() == [int(0.8 * n) for n in sizes]
    y = np.concatenate([federation.train.y, federation.test.y])
    assert np.bincount(y).tolist() == [a + b for a, b in zip(TRAIN, TEST, strict=True)]
    assert (sizes[0], sizes[-1]) == (10, 23410)
    assert federation.test.sizes.min() >= 1
    assert federation.train.x.dtype == np.uint8
    assert federation.train.x.shape[1:] == (784,)


def test_images_go_with_their_labels_in_the_published_order(real_data: Path) -> None:
    one = mnist(devices=1, classes=10, exponent=1.0, split="ordered", data_dir=str(real_data))
    x, y = (np.concatenate([getattr(one.train, a), getattr(one.test, a)]) for a in "xy")
    with gzip.open(real_data / "mnist" / "train-images-idx3-ubyte.gz") as f:
        published = np.frombuffer(f.read(), np.uint8, offset=16).reshape(60000, 784)
    with gzip.open(real_data / "mnist" / "train-labels-idx1-ubyte.gz") as f:
        labels = np.frombuffer(f.read(), np.uint8, offset=8)
    for c in range(10):
        assert np.array_equal(x[y == c][: TRAIN[c]], published[labels == c])


def test_decoding_standardises(federation: Federation) -> None:
    stored = federation.train.x[:50]
    decoded = jax.jit(federation.decode)(federation.shared, stored)
    assert decoded.dtype == np.float32
    np.testing.assert_allclose(decoded, (stored / 255 - 0.1307) / 0.3081, atol=2e-6)
    assert abs(float(np.mean(decode((), federation.train.x[::20])))) < 0.02


def test_two_federations_share_their_functions(federation: Federation, real_data: Path) -> None:
    # The compiled step is cached by these functions' identity.
    other = mnist(devices=5, partition="iid", data_dir=str(real_data))
    assert other.decode is federation.decode
    assert other.augment is None


@pytest.mark.parametrize("partition", ["power_law", "dirichlet", "shards", "iid"])
def test_every_partition_is_available(real_data: Path, partition: str) -> None:
    made = mnist(devices=10, partition=partition, data_dir=str(real_data))
    assert made.devices == 10
    assert len(made.train.y) + len(made.test.y) == 70_000


def test_unpacked_files_in_a_flat_folder_are_read(real_data: Path, tmp_path: Path, federation: Federation) -> None:
    for packed in (real_data / "mnist").glob("*.gz"):
        with gzip.open(packed) as source, (tmp_path / packed.stem).open("wb") as out:
            shutil.copyfileobj(source, out)
    flat = mnist(exponent=1.5, classes=3, data_dir=str(tmp_path))
    assert np.array_equal(flat.train.x, federation.train.x)
    assert np.array_equal(flat.test.y, federation.test.y)


def test_the_folder_may_come_from_the_environment(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBC_DATA", str(real_data))
    assert mnist().devices == 20


@pytest.mark.parametrize("damage", ["truncated", "flipped", "another"])
def test_a_damaged_file_is_named_with_its_checksum(real_data: Path, tmp_path: Path, damage: str) -> None:
    for packed in (real_data / "mnist").glob("*.gz"):
        shutil.copy(packed, tmp_path)
    victim = tmp_path / "train-labels-idx1-ubyte.gz"
    content = bytearray(victim.read_bytes())
    if damage == "truncated":
        victim.write_bytes(content[:1000])
    elif damage == "flipped":
        content[5000] ^= 1
        victim.write_bytes(content)
    else:
        shutil.copy(tmp_path / "t10k-labels-idx1-ubyte.gz", victim)
    with pytest.raises(InputError, match=r"labels-idx1-ubyte\.gz is damaged .*d53e105ee54ea40749a09fcbcd1e9432"):
        mnist(data_dir=str(tmp_path))


def test_absent_files_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(file: files.Published, target: Path) -> None:
        raise OSError("no network")

    monkeypatch.setattr(files, "download", offline)
    with pytest.raises(
        InputError, match=r"mnist needs train-images.*train-labels.*t10k-images.*t10k-labels.*no network"
    ):
        mnist(data_dir=str(tmp_path))


def test_read_idx_reads_any_shape_packed_or_not() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(read_idx(idx(array), "a"), array)
    assert np.array_equal(read_idx(gzip.compress(idx(array)), "a"), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a is not an idx file"),
        (b"GIF89a..", "a is not an idx file"),
        (idx(np.zeros((3, 3)))[:-1], r"a is damaged: its header announces shape \(3, 3\), but 8 bytes follow"),
        (idx(np.zeros((3, 3)))[:7], "a is damaged"),
        (gzip.compress(idx(np.zeros(30)), mtime=0)[:-9], "a is damaged: it does not unpack"),
        (b"\x1f\x8bnonsense", "a is damaged: it does not unpack"),
    ],
)
def test_read_idx_refuses_what_is_none(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_idx(content, "a")


def test_labels_must_match_their_images() -> None:
    images = np.zeros((3, 28, 28), np.uint8)
    match(images, np.array([1, 2, 9], np.uint8), "images", "labels")
    with pytest.raises(InputError, match=r"labels \(shape \(2,\)\) does not match images \(shape \(3, 28, 28\)\)"):
        match(images, np.array([1, 2], np.uint8), "images", "labels")
    with pytest.raises(InputError, match="labels has label 10"):
        match(images, np.array([1, 2, 10], np.uint8), "images", "labels")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 0}, "devices=0 is not accepted"),
        ({"classes": 0}, "classes=0 is not accepted"),
        ({"exponent": 0.5}, "exponent=0.5 is not accepted"),
        ({"partition": "powerlaw"}, "did you mean 'power_law'"),
        ({"concentration": -1.0}, "concentration=-1.0 is not accepted"),
        ({"shards": 0}, "shards=0 is not accepted"),
        ({"split": "sorted"}, "split='sorted' is unknown"),
        ({"test_share": 0.0}, "test_share=0.0 is not accepted"),
        ({"seed": -1}, "seed=-1 is not accepted"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_read(
    arguments: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "folder", lambda _: pytest.fail("read before the arguments were checked"))
    with pytest.raises(InputError, match=message):
        mnist(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 70_001}, "devices=70001 is more than the 70000 examples"),
        ({"classes": 11}, "classes=11 cannot be met: the labels have 10 classes"),
        ({"exponent": 2.0}, "exponent=2 leaves the smallest of devices=20 without"),
    ],
)
def test_what_the_data_cannot_give_is_refused(real_data: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mnist(data_dir=str(real_data), **arguments)  # type: ignore[arg-type]


def test_every_argument_has_a_line_of_help() -> None:
    lines = [line.strip() for line in (mnist.__doc__ or "").splitlines()]
    for name in inspect.signature(mnist).parameters:
        assert any(line.startswith(f"{name}: ") and line.endswith(".") for line in lines), name
