"""Files: pytrees as named arrays in safetensors, and writes that are whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from fedbc.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

Arrays = dict[str, np.ndarray]


def named(tree: Any, prefix: str = "") -> Arrays:
    """A pytree's arrays by the names of their places, such as `layer.w`, under `prefix`."""
    arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = ".".join(_part(p) for p in path)
        arrays[".".join(n for n in (prefix, name) if n)] = np.asarray(leaf)
    return arrays


def restored(like: Any, arrays: Arrays, prefix: str = "") -> Any:
    """The pytree of the structure of `like` whose arrays `named` gave; the leading axes may differ."""
    names = list(named(jax.tree.map(lambda _: 0, like), prefix))
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in names])


def nested(arrays: Arrays, prefix: str) -> Any:
    """The arrays under `prefix` as nested dicts, with lists where keys count from 0: for a reader without `like`."""
    if prefix in arrays:
        return arrays[prefix]
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        if name.startswith(prefix + "."):
            *parents, last = name[len(prefix) + 1 :].split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = array
    return _lists(tree)


def _lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    counted = [str(number) for number in range(len(node))]
    if node and set(node) == set(counted):
        return [_lists(node[key]) for key in counted]
    return {key: _lists(value) for key, value in node.items()}


def _part(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def to_json(value: Any) -> str:
    """Readable JSON; numbers that JSON does not have (inf, nan) become words."""
    return json.dumps(_plain(value), indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_arrays(path: Path, arrays: Arrays, facts: dict[str, Any], *, private: bool = False) -> None:
    """Write arrays and facts (JSON) to one file, atomically, with a checksum over both."""
    whole = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    text = json.dumps(facts)
    metadata = {"facts": text, "sha256": _checksum(whole, text)}
    write_atomically(path, to_safetensors(whole, metadata), private=private)


def read_arrays(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read what `write_arrays` wrote; a damaged or foreign file is an InputError."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is damaged or is not a file of fedbc's: {error}") from None
    if "facts" not in metadata or "sha256" not in metadata:
        raise InputError(f"{path} is not a file of fedbc's: it lacks fedbc's metadata")
    if _checksum(arrays, metadata["facts"]) != metadata["sha256"]:
        raise InputError(f"{path} is damaged: its checksum does not match its content")
    return arrays, json.loads(metadata["facts"])


def _checksum(arrays: Arrays, text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        a = arrays[name]
        digest.update(f"{name}{a.dtype.str}{a.shape}".encode())
        digest.update(a.tobytes())
    return digest.hexdigest()


def write_atomically(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Write a file so that, whatever happens, either the old or the new content is there, whole.

    Once this returns, the new content survives a power cut. A private file is for its owner only.
    """
    data = content.encode() if isinstance(content, str) else content
    with explained(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o600 if private else 0o644)
            move_durably(Path(temporary), path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def move_durably(source: Path, target: Path) -> None:
    """Rename a file within its folder, replacing the target if there is one, and have the disk remember it."""
    os.replace(source, target)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that appears under its name only when it is complete."""
    refuse_existing(path)
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            yield temporary
            os.chmod(temporary, 0o755)
            if path.exists():
                path.rmdir()
            os.rename(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def refuse_existing(path: Path) -> None:
    """An InputError if the path is there already, unless it is an empty folder."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} exists already: give another folder, or remove it first")


@contextlib.contextmanager
def written_by_us(path: Path) -> Iterator[None]:
    """Keep a file that grows to this process; an InputError if another one has it."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    with file:
        lock(file, f"{path} is being written by another process: wait for it, or stop it first")
        yield


def lock(file: IO[bytes], taken: str, *, seconds: float = 0) -> None:
    """Lock an open file until it is closed, or the process ends; an InputError says `taken` if another one has it.

    Where there are no locks (Windows, some network folders) nothing is locked.
    """
    until = time.monotonic() + seconds
    while fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                file.close()
                raise InputError(taken) from None
            time.sleep(0.05)
        except OSError:
            return


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into one clear line."""
    try:
        yield
    except OSError as error:
        if isinstance(error, InputError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "the disk is full" if full else error.strerror or str(error)
        raise InputError(f"cannot write {path}: {reason}; nothing was left half-written") from error
