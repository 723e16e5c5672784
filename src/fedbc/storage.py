"""Files: pytrees as named arrays in safetensors, and writes that are whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import stat
import struct
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

Arrays = dict[str, np.ndarray]
FOR_EVER = -1
"""Seconds to wait for a lock, however long its holder works."""
OF_LATE = 600
"""Seconds within which a file that grows is taken for one that is being written."""


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
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """As it comes back from JSON: tuples are lists, and numbers that JSON does not have are words."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_arrays(path: Path, arrays: Arrays, facts: dict[str, Any], *, private: bool = False) -> None:
    """Write arrays and facts (JSON) to one file, atomically, with a checksum over both."""
    whole = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    text = json.dumps(facts)
    metadata = {"facts": text, "sha256": _checksum(whole, text)}
    write_atomically(path, _in_order(to_safetensors(whole, metadata)), private=private)


def _in_order(file: bytes) -> bytes:
    """The same file with its metadata in one order: safetensors writes them in another one in each process."""
    (size,) = struct.unpack("<Q", file[:8])
    head = json.loads(file[8 : 8 + size])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + file[8 + size :]


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


def drop_leftovers(path: Path) -> None:
    """Remove what `write_atomically` left beside a file when its process was killed; its writer must be alone."""
    with contextlib.suppress(OSError):
        for leftover in path.parent.glob(f".{path.name}.*"):
            if not leftover.name.endswith(".lock"):
                leftover.unlink(missing_ok=True)


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
            if path.exists() and os.name != "posix":
                path.rmdir()
            os.rename(temporary, path)  # takes the place of an empty folder, which nobody can take in between
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def is_safe_from_others(path: Path) -> bool:
    """Whether no other user of the machine, but root, could have written a file or folder, or put it in its place."""
    if not hasattr(os, "getuid"):
        return True
    user, whole = os.getuid(), path.resolve()
    for place in (whole, *whole.parents):
        found = place.stat()
        others = found.st_mode & stat.S_IWOTH
        # Some systems give each user a group of their own, of the same number.
        group = found.st_mode & stat.S_IWGRP and found.st_gid != found.st_uid
        is_guarded = place != whole and found.st_mode & stat.S_ISVTX  # as /tmp: an entry is its owner's to replace
        if found.st_uid not in (user, 0) or ((others or group) and not is_guarded):
            return False
    return True


def is_there(path: Path) -> bool:
    """Whether a path exists; one in a folder that may not be entered is an InputError."""
    try:
        return path.exists()
    except PermissionError as error:
        raise InputError(f"{path} cannot be reached ({error.strerror})") from None


def refuse_existing(path: Path) -> None:
    """An InputError if the path is there already, unless it is an empty folder."""
    if is_there(path) and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} exists already: give another folder, or remove it first")


@contextlib.contextmanager
def hold(path: Path, taken: str, *, seconds: float = 0) -> Iterator[None]:
    """Keep a file or a folder to this process; an InputError says `taken` if another one has it so many seconds long.

    The lock ends with its process, however that ends.
    """
    from filelock import Timeout

    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock_of(path)
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            raise InputError(taken) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # who waits for it notices that it is gone, and makes another one
            os.unlink(lock.lock_file)
        lock.release()


def is_held(path: Path) -> bool:
    """Whether a process holds it; for who may not ask the lock, whether it was written of late."""
    from filelock import Timeout

    lock = _lock_of(path)
    if not Path(lock.lock_file).exists():
        return False
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return path.exists() and time.time() - path.stat().st_mtime < OF_LATE


def _lock_of(path: Path) -> Any:
    """A hidden file beside it: some systems let nobody read a file that is locked."""
    from filelock import FileLock  # a device that starts anew for each message does without

    return FileLock(path.with_name(f".{path.name}.lock"), thread_local=False, poll_interval=0.05)


def drop_torn_line(file: IO[bytes]) -> None:
    """Take back the last line of an open file if its writer was killed in the midst; the file is left at its end."""
    size = end = file.seek(0, os.SEEK_END)
    step = 4096
    while end > 0:
        begin = max(0, end - step)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end < size:
        file.truncate(end)
    file.seek(end)


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
