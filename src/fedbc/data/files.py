"""Published data files: where they lie, how they are fetched, whether they are what was published."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fedbc import progress, storage
from fedbc.errors import InputError

VARIABLE = "FEDBC_DATA"
_CHUNK = 1 << 18
_TIMEOUT = 30.0
_PAUSE = 1.0
_FRUITLESS = 2  # attempts in a row that bring nothing before a download is given up


@dataclass(frozen=True)
class Published:
    """A file as its authors publish it: its name, its checksum, and where to get it, best place first."""

    name: str
    md5: str
    urls: tuple[str, ...]


def folder(data_dir: str | None = None) -> Path:
    """The data folder: `data_dir`, else the one that FEDBC_DATA names, else the user's cache folder."""
    named = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    path = Path(named).expanduser() if named else platformdirs.user_cache_path("fedbc", appauthor=False)
    if path.exists() and not path.is_dir():
        raise InputError(f"data_dir={str(path)!r} is not a folder: name the folder that holds the data files")
    return path


def find(root: Path, names: Sequence[str]) -> Path | None:
    """The first of some paths within the data folder that exists."""
    return next((root / name for name in names if (root / name).exists()), None)


def read(path: Path, md5: str) -> bytes:
    """The content of a file, if it is the published one."""
    content = read_any(path)
    verify(content, str(path), md5)
    return content


def read_any(path: Path) -> bytes:
    """The content of a file, whatever it is."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None


def verify(content: bytes, name: str, md5: str) -> None:
    """Raise unless the content has the published checksum."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise damaged(name, md5, f"{len(content)} bytes with md5 {found}")


def damaged(name: str, md5: str, found: str) -> InputError:
    """The error for a file that is not what was published."""
    return InputError(
        f"{name} is damaged or not the published file ({found}; expected md5 {md5}): "
        "delete it to have it downloaded, or put the published file in its place"
    )


def obtain(dataset: str, missing: Sequence[Published], root: Path, subfolder: str = "") -> None:
    """Download files that the data folder `root` lacks into its `subfolder`."""
    target = root / subfolder
    try:
        for file in missing:
            download(file, target / file.name)
    except OSError as error:
        names = ", ".join(file.name for file in missing)
        raise InputError(
            f"{dataset} needs {names}: not found in {root}, and not to be downloaded ({error}); "
            f"put what is missing into {target}, or name the folder that has it by data_dir or {VARIABLE}"
        ) from None


def download(file: Published, target: Path) -> None:
    """Download to `target`: all of it and the right content, or nothing but a `.part` file to go on from.

    Raises OSError where no address of the file answers, InputError where the content is not the published one.
    """
    part = target.with_name(target.name + ".part")
    failures = []
    for url in file.urls:
        try:
            with progress.download(file.name) as show:
                _transfer(url, part, target, show)
            break
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {getattr(error, 'reason', None) or error}")
    else:
        raise OSError("; ".join(failures))
    try:
        if not target.exists():
            verify(part.read_bytes(), file.name, file.md5)
            part.replace(target)
    except FileNotFoundError:
        if not target.exists():  # otherwise another process was faster
            raise
    finally:
        # Gone already if all went well. Going on from wrong content would only give wrong content again.
        part.unlink(missing_ok=True)


Show = Callable[[int, int | None], None]


def _transfer(url: str, part: Path, target: Path, show: Show) -> None:
    """Bring the part file to its full length, over as many connections as it takes while each brings something."""
    fruitless = 0
    while not target.exists():
        have = _size(part)
        try:
            if _receive(url, part, target, have, show):
                return
            reason: Exception = OSError("the connection broke")
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing lies beyond what we have: it is whole, or the checksum will tell
                return
            raise
        except (OSError, http.client.HTTPException) as error:
            reason = error
        fruitless = 0 if _size(part) > have else fruitless + 1
        if fruitless == _FRUITLESS:
            raise reason
        time.sleep(_PAUSE)


def _receive(url: str, part: Path, target: Path, have: int, show: Show) -> bool:
    """One connection's worth of a file, appended to the part file; whether that completes it."""
    headers = {"User-Agent": "fedbc", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        # The folder is made only now, so that a mistyped one is not left behind where there is no network.
        part.parent.mkdir(parents=True, exist_ok=True)
        # Two first downloads at the same time: the one waits for the other.
        with storage.hold(part, f"{part} is being written", seconds=storage.FOR_EVER), part.open("ab") as out:
            if target.exists():
                return True
            if _size(part) != have:  # another process wrote to it before we had the lock
                return False
            if response.status != 206:  # the server sends the whole file, whatever we asked for
                out.truncate(0)
                have = 0
            length = response.headers.get("Content-Length")
            total = have + int(length) if length is not None else None
            show(have, total)
            while chunk := response.read(_CHUNK):
                out.write(chunk)
                have += len(chunk)
                show(have, total)
            return total is None or have == total


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
