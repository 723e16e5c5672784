"""MNIST: 70,000 handwritten digits of 28 × 28 pixels in ten classes (LeCun, Cortes and Burges).

The published training and test images are pooled, training first, and split over devices anew, as in the FedBC paper.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedbc.data import files
from fedbc.data.federation import Federation, Shared
from fedbc.data.partition import NamedPartition
from fedbc.errors import InputError

MEAN, DEVIATION = 0.1307, 0.3081
_HOME = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FOLDERS = ("mnist/", "MNIST/raw/", "")  # ours, torchvision's, the data folder itself
# The published checksum of each file, and that of its content for those who keep it unpacked.
_FILES = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
}


def mnist(
    devices: int = 20,
    classes: int = 1,
    exponent: float = 1.1,
    seed: int = 1,
    *,
    partition: str = "power_law",
    concentration: float = 0.5,
    shards: int = 2,
    split: str = "shuffled",
    test_share: float = 0.2,
    data_dir: str | None = None,
) -> Federation:
    """MNIST over devices; by default with the FedBC paper's power law.

    devices: how many devices share the 70,000 images.
    classes: how many classes a device holds (power_law; the largest devices hold more).
    exponent: the factor from one device's size to the next (power_law).
    seed: of the partition and of the split; 1 gives the paper's partitions.
    partition: power_law, dirichlet, shards or iid.
    concentration: of the Dirichlet distribution; small values make devices differ more (dirichlet).
    shards: how many shards of the images sorted by label a device gets (shards).
    split: shuffled, or ordered for the last examples of each device, in class order, as its test set.
    test_share: the share of each device's examples that is its test set.
    data_dir: the folder of the data files; else the one that FEDBC_DATA names, else the user's cache folder.
    """
    plan = NamedPartition(partition, devices, classes, exponent, concentration, shards, split, test_share, seed)
    x, y = _pool(data_dir)
    return plan.federate(x, y, classes=10, name="mnist", decode=decode)


def decode(shared: Shared, x: jax.Array) -> jax.Array:
    """Bytes to standardised pixels, (x/255 − mean)/deviation."""
    del shared
    dtype = jnp.result_type(float)
    return (x.astype(dtype) * (1 / 255) - MEAN) * (1 / DEVIATION)


def read_idx(content: bytes, name: str) -> np.ndarray:
    """The array of bytes in an idx file (magic number, sizes as big-endian whole numbers, data), packed or not."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(f"{name} is damaged: it does not unpack ({error})") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"{name} is not an idx file of bytes: it must start with the bytes 0, 0, 8")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = tuple(int(n) for n in np.frombuffer(content[4:start].ljust(4 * dimensions, b"\0"), ">u4"))
    if len(content) - start != math.prod(shape):
        raise InputError(
            f"{name} is damaged: its header announces shape {shape}, but {len(content) - start} bytes follow"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def match(images: np.ndarray, labels: np.ndarray, images_name: str, labels_name: str) -> None:
    """Raise unless there is one label per image, each a digit."""
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise InputError(
            f"{labels_name} (shape {labels.shape}) does not match {images_name} (shape {images.shape}): "
            "there must be one label per image"
        )
    if labels.max(initial=0) > 9:
        raise InputError(f"{labels_name} has label {labels.max()}: labels must be digits from 0 to 9")


def _pool(data_dir: str | None) -> tuple[np.ndarray, np.ndarray]:
    root = files.folder(data_dir)
    missing = [stem for stem in _FILES if _find(root, stem) is None]
    files.obtain("mnist", [_published(stem) for stem in missing], root, "mnist")
    xs, ys = [], []
    for which in ("train", "t10k"):
        images, x = _read(root, f"{which}-images-idx3-ubyte")
        labels, y = _read(root, f"{which}-labels-idx1-ubyte")
        match(x, y, str(images), str(labels))
        xs.append(x.reshape(len(x), -1))
        ys.append(y)
    return np.concatenate(xs), np.concatenate(ys)


def _published(stem: str) -> files.Published:
    return files.Published(f"{stem}.gz", _FILES[stem][0], (f"{_HOME}{stem}.gz",))


def _find(root: Path, stem: str) -> Path | None:
    return files.find(root, [f"{folder}{stem}{ending}" for folder in _FOLDERS for ending in (".gz", "")])


def _read(root: Path, stem: str) -> tuple[Path, np.ndarray]:
    path = _find(root, stem) or root / "mnist" / f"{stem}.gz"
    packed, unpacked = _FILES[stem]
    return path, read_idx(files.read(path, packed if path.suffix == ".gz" else unpacked), str(path))
