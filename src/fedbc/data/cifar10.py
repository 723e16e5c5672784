"""CIFAR-10: 60,000 colour images of 32 × 32 pixels in ten classes (Krizhevsky, 2009).

The published training and test images are pooled, training first, and split over devices anew, as in the FedBC paper.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import checks, native
from fedbc.data import files
from fedbc.data.federation import Federation, Shared
from fedbc.data.partition import NamedPartition
from fedbc.errors import InputError

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
PADDING = 4
_FOLDER = "cifar-10-batches-py"
_ARCHIVE = files.Published(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
)
_BATCHES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_IMAGES = 10_000  # in each batch
_LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def cifar10(
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
    crop: bool = True,
    normalize: str = "channels",
    data_dir: str | None = None,
) -> Federation:
    """CIFAR-10 over devices; by default with the FedBC paper's power law.

    devices: how many devices share the 60,000 images.
    classes: how many classes a device holds (power_law; the largest devices hold more).
    exponent: the factor from one device's size to the next (power_law).
    seed: of the partition and of the split; 1 gives the paper's partitions.
    partition: power_law, dirichlet, shards or iid.
    concentration: of the Dirichlet distribution; small values make devices differ more (dirichlet).
    shards: how many shards of the images sorted by label a device gets (shards).
    split: shuffled, or ordered for the last examples of each device, in class order, as its test set.
    test_share: the share of each device's examples that is its test set.
    crop: shift each training image at random by up to 4 pixels, black beyond its edges, each time it is used.
    normalize: channels, by the mean and deviation of each colour; or half, (x/255 − 0.5)/0.5 for all of them.
    data_dir: the folder of the data files; else the one that FEDBC_DATA names, else the user's cache folder.
    """
    plan = NamedPartition(partition, devices, classes, exponent, concentration, shards, split, test_share, seed)
    if not isinstance(crop, bool):
        raise InputError(f"crop={crop!r} is not accepted: give True or False")
    checks.choice("normalize", normalize, DECODERS)
    x, y = _pool(data_dir)
    augment, decode = random_crop if crop else None, DECODERS[normalize]
    return plan.federate(x, y, classes=10, name="cifar10", decode=decode, augment=augment, class_names=tuple(_LABELS))


def standardized(shared: Shared, x: jax.Array) -> jax.Array:
    """Bytes to standardised pixels, (x/255 − mean)/deviation for each colour; shape (n, 32, 32, 3)."""
    del shared
    return _scaled(x, MEAN, DEVIATION)


def halved(shared: Shared, x: jax.Array) -> jax.Array:
    """Bytes to pixels from -1 to 1, (x/255 − 0.5)/0.5; shape (n, 32, 32, 3)."""
    del shared
    return _scaled(x, (0.5,) * 3, (0.5,) * 3)


def _scaled(x: jax.Array, mean: tuple[float, ...], deviation: tuple[float, ...]) -> jax.Array:
    dtype = jnp.result_type(float)
    return (x.astype(dtype) * (1 / 255) - jnp.asarray(mean, dtype)) * (1 / jnp.asarray(deviation, dtype))


DECODERS = {"channels": standardized, "half": halved}
"""What makes numbers of stored bytes."""


def random_crop(key: jax.Array, x: jax.Array | np.ndarray) -> jax.Array:
    """A window of each stored image's size, at random within the image in a black frame of 4 pixels."""
    return cropped_at(x, jax.random.randint(key, (x.shape[0], 2), 0, 2 * PADDING + 1) - PADDING)


def cropped_at(x: jax.Array | np.ndarray, corners: jax.Array) -> jax.Array:
    """Windows of the images' own size, black (0) beyond their edges.

    x: (n, height, width, colours).
    corners: (n, 2), the row and the column of each image that come to the window's upper left corner.
    """
    if x.dtype == jnp.uint8 and native.available():
        return native.call("crop", jax.ShapeDtypeStruct(x.shape, x.dtype), jnp.asarray(x), corners.astype(jnp.int32))
    n, height, width, colours = x.shape
    rows = corners[:, 0, None, None] + jnp.arange(height)[:, None]
    columns = corners[:, 1, None, None] + jnp.arange(width)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    place = jnp.clip(rows, 0, height - 1) * width + jnp.clip(columns, 0, width - 1)
    pixels = jnp.asarray(x).reshape(n, height * width, colours)
    cropped = pixels.at[jnp.arange(n)[:, None, None], place].get(mode="promise_in_bounds")
    # The barrier keeps XLA's CPU code from picking each pixel anew wherever the model uses it, a third of a step of the
    # CNN.
    return jax.lax.optimization_barrier(jnp.where(inside[..., None], cropped, 0))


def read_batch(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 32, 32, 3) and labels of one pickled batch, without running what a pickle may contain."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        x, y = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except InputError as error:
        raise InputError(f"{name} is not a batch of CIFAR-10: {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise InputError(f"{name} is not a batch of CIFAR-10: it does not unpickle ({error!r})") from None
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072:
        raise InputError(f"{name} is not a batch of CIFAR-10: its data are {x.dtype} of shape {x.shape}")
    if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
        raise InputError(f"{name} has labels of shape {y.shape} for {len(x)} images: there must be one label per image")
    if len(y) and not 0 <= y.min() <= y.max() <= 9:
        raise InputError(f"{name} has labels from {y.min()} to {y.max()}: they must lie from 0 to 9")
    return x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), y


def _empty_array(kind: type, shape: tuple[int, ...], code: Any) -> np.ndarray:
    """What NumPy's own helper does when an array is unpickled: the content follows in a second step."""
    return np.ndarray.__new__(kind, shape, np.dtype(code))


class _Unpickler(pickle.Unpickler):
    """Builds plain Python values and NumPy arrays, and nothing else."""

    allowed: dict[tuple[str, str], Any] = {  # noqa: RUF012  (never changed)
        ("numpy.core.multiarray", "_reconstruct"): _empty_array,
        ("numpy._core.multiarray", "_reconstruct"): _empty_array,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """The names a batch needs; any other could be code to run."""
        try:
            return self.allowed[module, name]
        except KeyError:
            raise InputError(f"its pickle asks for {module}.{name}, which is not allowed") from None


def _pool(data_dir: str | None) -> tuple[np.ndarray, np.ndarray]:
    root = files.folder(data_dir)
    x = np.empty((len(_BATCHES) * _IMAGES, 32, 32, 3), np.uint8)
    y = np.empty(len(x), np.int32)

    def fill(number: int, name: str, content: bytes) -> None:
        files.verify(content, name, _BATCHES[Path(name).name])
        rows = slice(number * _IMAGES, (number + 1) * _IMAGES)
        x[rows], y[rows] = read_batch(content, name)

    unpacked = _unpacked(root)
    if unpacked:
        _read_folder(unpacked, fill)
    else:
        if not (root / _ARCHIVE.name).exists():
            files.obtain("cifar10", [_ARCHIVE], root)
        _read_archive(root / _ARCHIVE.name, fill)
    return x, y


Fill = Callable[[int, str, bytes], None]


def _unpacked(root: Path) -> Path | None:
    """The folder that has all batches, if there is one."""
    return next((f for f in (root / _FOLDER, root) if all((f / name).exists() for name in _BATCHES)), None)


def _read_folder(folder: Path, fill: Fill) -> None:
    # Reading, the checksum and the copy to channels-last order each release the interpreter's lock.
    with ThreadPoolExecutor(2) as pool:
        paths = [folder / name for name in _BATCHES]
        for done in [pool.submit(lambda i, p: fill(i, str(p), files.read_any(p)), i, p) for i, p in enumerate(paths)]:
            done.result()


def _read_archive(archive: Path, fill: Fill) -> None:
    numbers = {name: number for number, name in enumerate(_BATCHES)}
    missing = set(_BATCHES)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:  # read in the archive's order: going back would unpack it again
                name = Path(member.name).name
                content = tar.extractfile(member) if member.isfile() and name in missing else None
                if content is not None:
                    fill(numbers[name], f"{archive}/{member.name}", content.read())
                    missing.discard(name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise files.damaged(str(archive), _ARCHIVE.md5, f"it does not unpack: {error}") from None
    if missing:
        raise files.damaged(str(archive), _ARCHIVE.md5, f"it lacks {', '.join(sorted(missing))}")
