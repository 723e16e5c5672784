"""An environment of its own for each peer: made once, from a pinned list, and kept in the cache folder."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"


class Absent(Exception):
    """A contestant cannot be had; the message says why."""


def python(name: str | None, cache: Path) -> tuple[str, float]:
    """The interpreter of an environment, and the seconds it took to set up; None is the one that runs now."""
    if name is None:
        return sys.executable, 0.0
    wanted = (REQUIREMENTS / f"{name}.txt").read_text()
    folder = cache / name
    interpreter, stamp = folder / "bin" / "python", folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return str(interpreter.absolute()), 0.0
    began = time.perf_counter()
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]
    _run([str(interpreter), *install, str(REQUIREMENTS / f"{name}.txt")])
    stamp.write_text(wanted)
    return str(interpreter.absolute()), time.perf_counter() - began


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
        raise Absent(f"its environment could not be set up: {' '.join(said[-2:])}")
