from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import pickle
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbc import native
from fedbc.data import Federation, cifar10
from fedbc.data.cifar10 import DEVIATION, MEAN, cropped_at, random_crop, read_batch
from fedbc.errors import InputError

module = importlib.import_module("fedbc.data.cifar10")


@pytest.fixture(scope="module")
def federation(real_data: Path) -> Federation:
    return cifar10(devices=1, classes=10, exponent=1.0, split="ordered", data_dir=str(real_data))


def test_the_pool_is_the_published_images_in_their_order(federation: Federation, real_data: Path) -> None:
    assert repr(federation) == "Federation(cifar10: 1 devices, 48000 training and 12000 test examples)"
    x, y = (np.concatenate([getattr(federation.train, a), getattr(federation.test, a)]) for a in "xy")
    assert np.bincount(y).tolist() == [6000] * 10
    assert x.dtype == np.uint8
    with (real_data / "cifar-10-batches-py" / "data_batch_1").open("rb") as f:
        batch = pickle.load(f, encoding="latin1")
    published = batch["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = np.array(batch["labels"])
    for c in range(10):
        mine = published[labels == c]
        assert np.array_equal(x[y == c][: len(mine)], mine)


def test_decoding_standardises_each_colour(federation: Federation) -> None:
    stored = federation.train.x[:20]
    decoded = jax.jit(federation.decode)(federation.shared, stored)
    assert decoded.shape == (20, 32, 32, 3)
    assert decoded.dtype == np.float32
    np.testing.assert_allclose(decoded, (stored / 255 - np.array(MEAN)) / np.array(DEVIATION), atol=2e-6)


def test_pixels_can_be_scaled_alike_for_all_colours(small: Path) -> None:
    halved = cifar10(devices=2, normalize="half", data_dir=str(small))
    stored = halved.train.x[:20]
    np.testing.assert_allclose(jax.jit(halved.decode)(halved.shared, stored), stored / 127.5 - 1, atol=2e-6)
    with pytest.raises(InputError, match=r"normalize='halve'"):
        cifar10(devices=2, normalize="halve", data_dir=str(small))


def test_cropping_takes_a_window_of_the_image_in_a_black_frame() -> None:
    stored = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3)).astype(np.uint8)
    cropped = np.asarray(jax.jit(random_crop)(jax.random.key(1), stored))
    assert cropped.dtype == np.uint8
    framed = np.pad(stored, ((0, 0), (4, 4), (4, 4), (0, 0)))
    seen = set()
    for image, whole in zip(cropped, framed, strict=True):
        found = [(i, j) for i in range(9) for j in range(9) if np.array_equal(image, whole[i : i + 32, j : j + 32])]
        assert len(found) == 1
        seen.update(found)
    assert len(seen) > 10


def test_windows_in_machine_code_are_those_of_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = np.random.default_rng(0).integers(1, 256, (81, 5, 7, 2)).astype(np.uint8)
    # Every shift up to one beyond the image's own size, in both directions and far away.
    shifts = (-9, -7, -5, -2, 0, 1, 5, 7, 2**30)
    corners = jnp.asarray([(i, j) for i in shifts for j in shifts])
    direct = np.asarray(cropped_at(stored, corners))
    monkeypatch.setattr(native, "available", lambda: False)
    np.testing.assert_array_equal(direct, cropped_at(stored, corners))
    assert direct[40].any()
    assert not direct[0].any()


def test_cropping_uses_every_shift_equally_often() -> None:
    # Each pixel holds its own place, so that the first pixel that is not black tells the shift.
    place = np.arange(1, 33, dtype=np.float32)
    x = np.broadcast_to((100 * place[:, None] + place)[..., None], (2000, 32, 32, 3))
    middle = np.asarray(random_crop(jax.random.key(0), x))[:, 16, 16, 0]
    rows, columns = middle // 100 - 17, middle % 100 - 17
    for shifts in (rows, columns):
        values, counts = np.unique(shifts, return_counts=True)
        assert values.tolist() == list(range(-4, 5))
        assert counts.min() > 2000 / 9 * 0.7


def batch_of(count: int, seed: int, **more: object) -> bytes:
    rng = np.random.default_rng(seed)
    content = {b"data": rng.integers(0, 256, (count, 3072)).astype(np.uint8), b"labels": [0, 1] * (count // 2)}
    return pickle.dumps(content | {k.encode(): v for k, v in more.items()}, protocol=3)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data set in CIFAR-10's layout, taken for the published one."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    sums = {}
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        content = batch_of(10, number)
        (folder / name).write_bytes(content)
        sums[name] = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(module, "_BATCHES", sums)
    monkeypatch.setattr(module, "_IMAGES", 10)
    return folder


def test_cropping_is_optional(small: Path) -> None:
    made, plain = (cifar10(devices=3, partition="iid", crop=crop, data_dir=str(small)) for crop in (True, False))
    assert made.augment is random_crop
    assert plain.augment is None
    # The compiled step is cached by these functions' identity.
    assert made.decode is plain.decode
    with pytest.raises(InputError, match="crop='no' is not accepted"):
        cifar10(crop="no")  # type: ignore[arg-type]


def test_folder_flat_folder_and_archive_give_the_same(small: Path, tmp_path: Path) -> None:
    archived = tmp_path / "archived"
    archived.mkdir()
    with tarfile.open(archived / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(small, "cifar-10-batches-py")
    made = [cifar10(devices=3, partition="iid", data_dir=str(d)) for d in (tmp_path, small, archived)]
    for other in made[1:]:
        assert np.array_equal(made[0].train.x, other.train.x)
        assert np.array_equal(made[0].test.y, other.test.y)


def test_a_damaged_batch_is_named_with_its_checksum(small: Path, tmp_path: Path) -> None:
    expected = hashlib.md5((small / "data_batch_3").read_bytes()).hexdigest()
    (small / "data_batch_3").write_bytes(b"half")
    with pytest.raises(InputError, match=f"data_batch_3 is damaged .*expected md5 {expected}"):
        cifar10(devices=3, partition="iid", data_dir=str(tmp_path))


@pytest.mark.parametrize("damage", ["truncated", "nonsense", "incomplete"])
def test_a_damaged_archive_is_named_with_its_checksum(small: Path, tmp_path: Path, damage: str) -> None:
    archived = tmp_path / "archived"
    archived.mkdir()
    archive = archived / "cifar-10-python.tar.gz"
    if damage == "incomplete":
        (small / "test_batch").unlink()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(small, "cifar-10-batches-py")
    if damage == "truncated":
        archive.write_bytes(archive.read_bytes()[:20_000])
    elif damage == "nonsense":
        archive.write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"tar\.gz is damaged .*expected md5 c58f30108f718f92721af3b95e74349a"):
        cifar10(devices=3, partition="iid", data_dir=str(archived))


class Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def test_a_malicious_pickle_runs_nothing(tmp_path: Path, small: Path) -> None:
    mark = tmp_path / "owned"
    attack = batch_of(10, 0, more=Attack(mark))
    with pytest.raises(InputError, match=r"evil is not a batch of CIFAR-10: its pickle asks for posix.mkdir"):
        read_batch(attack, "evil")
    (small / "data_batch_1").write_bytes(attack)
    with pytest.raises(InputError, match="data_batch_1 is damaged or not the published file"):
        cifar10(data_dir=str(tmp_path))
    assert not mark.exists()


@pytest.mark.parametrize("name", ["builtins.eval", "numpy.load", "numpy.ndarray.tofile", "os.system"])
def test_names_beyond_the_few_needed_are_refused(name: str) -> None:
    where, _, what = name.rpartition(".")
    with pytest.raises(InputError, match=f"asks for {name}, which is not allowed"):
        read_batch(b"\x80\x02c" + f"{where}\n{what}\n".encode() + b".", "evil")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not unpickle"),
        (batch_of(4, 0)[:-100], "does not unpickle"),
        (pickle.dumps([1, 2], protocol=2), "does not unpickle"),
        (pickle.dumps({b"data": [[1.5]], b"labels": [1]}, protocol=3), r"its data are float64 of shape \(1, 1\)"),
        (batch_of(4, 0, labels=[1, 2]), r"labels of shape \(2,\) for 4 images"),
        (batch_of(4, 0, labels=[1, 2, 3, 10]), "labels from 1 to 10"),
    ],
)
def test_what_is_no_batch_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=f"b1 .*{message}"):
        read_batch(content, "b1")


def test_every_argument_has_a_line_of_help() -> None:
    lines = [line.strip() for line in (cifar10.__doc__ or "").splitlines()]
    for name in inspect.signature(cifar10).parameters:
        assert any(line.startswith(f"{name}: ") and line.endswith(".") for line in lines), name
