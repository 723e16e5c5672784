"""Federations from files: a table, one for each device, arrays, a folder of images, a TOML file with the details."""

from __future__ import annotations

import hashlib
import inspect
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import storage
from fedbc.data.federation import Federation, Shared
from fedbc.data.frames import from_frame, owners_of
from fedbc.data.meaning import Meaning
from fedbc.data.partition import by_id, from_partition
from fedbc.data.rows import natural
from fedbc.data.tables import TABLES, read_table
from fedbc.errors import InputError, unknown

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
ARRAYS = ".npz"
DETAILS = ".toml"


def read(
    file: str,
    label: str | None = None,
    device: str | None = None,
    test_data: str | None = None,
    test_column: str | None = None,
    test_share: float = 0.2,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    task: str | None = None,
    image_size: int | None = None,
    seed: int = 1,
    checksum: str | None = None,
) -> Federation:
    """Your own data, from a file or a folder.

    file: a table (.csv, .tsv, .parquet); a folder with one table for each device, named after it; arrays (.npz with x,
        y and device); a folder of images (device/class/image); or a .toml file with any of these arguments, whose
        paths start at its own folder.
    label: the column to predict.
    device: the column that says whose row it is; not needed for a folder.
    test_data: rows to test on, from a file or folder of the same kind.
    test_column: a column of yes and no that marks the rows to test on.
    test_share: the share of each device's rows to test on, if neither of these is given.
    features: the columns to predict from; all others if not given.
    drop: columns to leave out.
    categorical: columns of numbers that stand for kinds.
    task: classification or regression, where the label's type leaves that open.
    image_size: scale images to so many pixels a side; needed where they are of several sizes.
    seed: of the split into training and test rows.
    checksum: of the files that a run was made with; another content is refused.

    Tables are taken as `from_frame` takes them. Images become numbers from -1 to 1, of shape (height, width, colours).
    """
    given = locals()
    path = Path(file).expanduser()
    if path.suffix.lower() == DETAILS:
        said = {k: v for k, v in given.items() if k != "file" and v != DEFAULTS[k]}
        return read(**details(path) | said)
    if checksum is not None and (found := checksum_of(file, test_data)) != checksum:
        raise InputError(f"{file} is not what it was: its checksum is {found}, and the run was made with {checksum}")
    share: dict[str, Any] = {"test_share": test_share, "seed": seed}
    of_tables = {"label": label, "test_column": test_column, "features": features, "task": task}
    of_tables |= {"drop": drop or None, "categorical": categorical or None}
    if path.suffix.lower() == ARRAYS or _holds_images(path):
        images = path.suffix.lower() != ARRAYS
        _refuse(
            path,
            of_tables | {"device": device, "test_data": test_data} | ({} if images else {"image_size": image_size}),
        )
        return _from_images(path, image_size, share) if images else _from_arrays(path, share)
    _refuse(path, {"image_size": image_size})
    if label is None:
        raise InputError(f"label is missing: say which column of {path.name} is to be predicted")
    frame, owner = _table(path, device)
    if test_data is not None and test_column is not None:
        raise InputError("test_data and test_column cannot both be given")
    return from_frame(
        frame,
        label=label,
        device=owner,
        test=_table(Path(test_data).expanduser(), device)[0] if test_data is not None else test_column,
        features=features,
        drop=drop,
        categorical=categorical,
        task=task,
        name=path.stem,
        **share,
    )


DEFAULTS = {name: p.default for name, p in inspect.signature(read).parameters.items()}


def details(path: Path) -> dict[str, Any]:
    """The arguments of `read` that a TOML file holds, its paths made whole."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    for name in table:
        if name not in DEFAULTS:
            raise unknown(f"{path.name}: argument", name, DEFAULTS)
    if "file" not in table:
        raise InputError(f'{path} does not say which file: it needs file = "clinics.csv" or the like')
    whole = {k: str(path.parent / Path(table[k]).expanduser()) for k in ("file", "test_data") if k in table}
    return table | whole


def checksum_of(*paths: str | None) -> str:
    """Tells files, and folders of files, apart by what is in them, wherever they lie."""
    digest = hashlib.sha256()
    for path in [Path(p).expanduser() for p in paths if p is not None]:
        for file in [p for p in visible(path, "**/*") if p.is_file()] if _is_folder(path) else [path]:
            try:
                # A file's own name says nothing; within a folder the names are those of devices and classes.
                inner = file.relative_to(path).as_posix()
                digest.update(f"{inner}\0{file.stat().st_size}\0".encode())
                digest.update(file.read_bytes())
            except OSError as error:
                raise InputError(f"{file} cannot be read ({error.strerror})") from None
    return digest.hexdigest()[:16]


def rows_of_devices(meaning: Meaning, file: str, device: str | None = None) -> list[pd.DataFrame]:
    """The table of each device of a federation that was read from tables, in the order of its devices.

    meaning: of the federation. file, device: as they were given to `read`.
    """
    frame, column = _table(Path(file).expanduser(), device)
    owners = owners_of(frame, column)
    return [frame[owners == name] for name in meaning.device_names]


def _refuse(path: Path, arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise InputError(f"{name}={value!r} does not apply to {path.name}")


def _table(path: Path, device: str | None) -> tuple[pd.DataFrame, str]:
    """The rows of a file, or of a folder with one file for each device; and the column that names the device."""
    import pandas as pd

    if not storage.is_there(path):
        raise InputError(f"{path} does not exist")
    if path.is_file():
        if path.suffix.lower() not in TABLES:
            raise InputError(
                f"{path.name} is not accepted: give a file that ends in {', '.join((*TABLES, ARRAYS, DETAILS))}"
            )
        if device is None:
            raise InputError(f"device is missing: say which column of {path.name} says whose row it is")
        return read_table(path, [device]), device
    files = sorted((p for p in visible(path, "*") if p.suffix.lower() in TABLES), key=lambda p: natural(p.stem))
    if not files:
        raise InputError(
            f"{path} holds neither tables ({', '.join(TABLES)}) nor folders of images (device/class/image)"
        )
    column = device or "device"
    frames: list[pd.DataFrame] = []
    for file in files:
        frame = read_table(file)
        if column in frame:
            raise InputError(
                f"{file} has a column {column!r}, but in a folder the file's name says whose rows these are: "
                "rename it, or give another name for the device's column by device"
            )
        if frames and set(frame.columns) != set(frames[0].columns) - {column}:
            odd = sorted(set(frame.columns) ^ (set(frames[0].columns) - {column}), key=str)
            raise InputError(f"{file.name} and {files[0].name} differ in their columns ({', '.join(map(str, odd))})")
        frames.append(frame.assign(**{column: file.stem}))
    return pd.concat(frames, ignore_index=True), column


def _from_arrays(path: Path, share: Mapping[str, Any]) -> Federation:
    """x, y and device of one .npz file; the names of classes and devices are y's and device's values."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as arrays: {error}") from None
    for name in ("x", "y", "device"):
        if name not in arrays:
            raise InputError(f"{path} has no array {name!r}: it needs x, y and device, with one row per example")
    x, y, owners = arrays["x"], arrays["y"], arrays["device"]
    if owners.shape != (len(x),) or len(y) != len(x):
        raise InputError(
            f"{path} has {len(x)} rows in x, {len(y)} in y and shape {owners.shape} in device: they must agree"
        )
    if np.issubdtype(owners.dtype, np.floating):
        raise InputError(f"{path} has fractions in device: give whole numbers or words")
    more: dict[str, Any] = {}
    if y.dtype.kind in "US":
        names, y = np.unique(y.astype(str), return_inverse=True)
        more = {"class_names": tuple(names.tolist()), "classes": len(names)}
    return _named(x, y, owners.astype(str), path.stem, share, more)


def _is_folder(path: Path) -> bool:
    return storage.is_there(path) and path.is_dir()


def _holds_images(path: Path) -> bool:
    return _is_folder(path) and any(p.suffix.lower() in IMAGES for p in visible(path, "*/*/*"))


def _from_images(path: Path, side: int | None, share: Mapping[str, Any]) -> Federation:
    """device/class/image: the folders' names are those of devices and classes."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError("images need Pillow: pip install 'fedbc[images]'") from None
    files = [p for p in visible(path, "*/*/*") if p.suffix.lower() in IMAGES]
    elsewhere = [p for p in visible(path, "**/*") if p.suffix.lower() in IMAGES and p not in set(files)]
    if elsewhere:
        raise InputError(
            f"{elsewhere[0]} is one of {len(elsewhere)} images that do not lie in device/class/ below {path}: move "
            "them, or take them away"
        )
    pictures: list[Array] = []
    for file in files:
        try:
            with Image.open(file) as image:
                plain = _in_bytes(image, file)
                taken = plain if side is None else plain.resize((side, side))
                pictures.append(np.asarray(taken, np.uint8).reshape(taken.height, taken.width, -1))
        except (UnidentifiedImageError, OSError) as error:
            raise InputError(f"{file} cannot be read as an image: {error}") from None
        if pictures[-1].shape != pictures[0].shape:
            raise InputError(
                f"{file} is of shape {pictures[-1].shape} but {files[0]} of {pictures[0].shape} (height, width, "
                "colours): scale them by image_size, and give all colours or none"
            )
    classes = sorted({file.parent.name for file in files}, key=natural)
    y = np.asarray([classes.index(file.parent.name) for file in files], np.int32)
    owners = np.asarray([file.parent.parent.name for file in files])
    more = {"class_names": tuple(classes), "classes": len(classes), "decode": from_bytes}
    return _named(np.stack(pictures), y, owners, path.name, share, more)


def _in_bytes(image: Any, file: Path) -> Any:
    """A Pillow image with one byte per colour; Pillow itself would cut off deeper ones at 255."""
    from PIL import Image

    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N"):
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise InputError(f"{file} has pixels of 32 bits, whose range is not known: save it with 8 or 16 bits")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def visible(folder: Path, pattern: str) -> list[Path]:
    """What lies in a folder, in order, but for what systems hide there; one that cannot be read is an InputError."""
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror})") from None
    found = sorted(folder.glob(pattern))
    return [p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts)]


def from_bytes(shared: Shared, x: jax.Array) -> jax.Array:
    """Bytes of images to numbers from -1 to 1."""
    del shared
    return x.astype(jnp.result_type(float)) * (2 / 255) - 1


def _named(
    x: Array, y: Array, owners: Array, name: str, share: Mapping[str, Any], more: Mapping[str, Any]
) -> Federation:
    parts = sorted(by_id(owners), key=lambda part: natural(str(owners[part[0]])))
    names = tuple(str(owners[part[0]]) for part in parts)
    return from_partition(x, y, parts, name=name, device_names=names, **share, **more)
