"""The time from `fedbc run` on W1 to its first finished round.

    python -m benchmarks.startup

A run is started with a checkpoint after every round, and the clock stops when the first checkpoint appears. The series
begins with an empty compilation cache: the first start compiles, the others find what it kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import results

BAR = 3.0
SETTING = ("--data", "synthetic", "--data-seed", "2", "--epochs", "5", "--sample", "10", "--momentum", "0.5")
PATIENCE = 300


def once(folder: Path, compiled: Path) -> dict[str, float]:
    """Seconds until the first round was finished, and until the whole command of three rounds was."""
    command = [sys.executable, "-m", "fedbc", "run", "fedbc", *SETTING, "--rounds", "3", "--quiet"]
    command += ["--checkpoint-every", "1", "--out", str(folder)]
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(compiled)})
    first = None
    while process.poll() is None and first is None and time.perf_counter() - began < PATIENCE:
        if (folder / "checkpoint.safetensors").exists():
            first = time.perf_counter() - began
        time.sleep(0.002)
    code = process.wait(timeout=PATIENCE)
    if code or first is None:
        raise RuntimeError(f"fedbc run ended with code {code}; first round seen after {first} s")
    return {"first_round": first, "whole_command": time.perf_counter() - began}


def measure(times: int) -> dict[str, Any]:
    """Several starts, one after the other."""
    with tempfile.TemporaryDirectory() as parent:
        starts = [once(Path(parent) / str(i), Path(parent) / "compiled") for i in range(1 + times)]
    return {
        "first_start": starts[0],
        "later_starts": starts[1:],
        "median_first_round": statistics.median(s["first_round"] for s in starts[1:]),
    }


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="starts after the first; default: %(default)s")
    parser.add_argument("--out", type=Path, default=results.DEFAULT, help="results file, its section is replaced")
    options = parser.parse_args(arguments)
    results.update(options.out, "startup", value=measure(options.times))


if __name__ == "__main__":
    main()
