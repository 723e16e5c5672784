"""The time of the paper's tuning grid: 95 configurations of W1 at 200 rounds, as `fedbc sweep` runs them.

    python -m benchmarks.grid

Worker processes, one per core, begin with an empty compilation cache. Accuracy is measured every fifth round, as tuning
needs it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.workloads import SEED, WORKLOADS

METHODS = ("fedavg", "qfedavg", "fedprox", "scaffold", "fedbc")
ROUNDS = 200


def specifications(rounds: int) -> list[Any]:
    """The grids of the paper's five global methods, each point once."""
    from fedbc.paper.methods import METHODS as KNOWN
    from fedbc.runs import RunSpec

    workload = WORKLOADS["W1"]
    name, arguments = workload.data
    run = {"rounds": rounds, "epochs": workload.epochs, "sample": workload.sample, "batch_size": workload.batch_size}
    run |= {"seed": SEED, "evaluate": ["global"], "evaluate_every": 5}
    points = [point for method in METHODS for point in KNOWN[method].candidates()]
    return [RunSpec(point, {"name": name, **arguments}, run=run) for point in points]


def measure(rounds: int, workers: int | None, first: int | None) -> dict[str, Any]:
    """Run the grid, or its first points."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "compiled")  # before JAX is imported
        from fedbc import runtime
        from fedbc.runs import Lines, run_missing

        specs = specifications(rounds)[:first]
        file = Path(folder) / "grid.jsonl"
        began = time.perf_counter()
        run_missing(specs, file, workers=workers)
        seconds = time.perf_counter() - began
        lines = Lines(file).read().values()
    return {
        "configurations": len(specs),
        "rounds": rounds,
        "workers": workers or runtime.usable_cores(),
        "seconds": seconds,
        "failed": sum("error" in line for line in lines),
    }


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--workers", type=int, help="worker processes; default: one per core")
    parser.add_argument("--first", type=int, help="only so many points, to see that all works")
    parser.add_argument("--out", type=Path, default=results.DEFAULT, help="results file, its section is replaced")
    options = parser.parse_args(arguments)
    results.update(options.out, "grid", value=measure(options.rounds, options.workers, options.first))


if __name__ == "__main__":
    main()
