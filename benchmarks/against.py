"""A round of this checkout against one of an older commit, in turns: `python benchmarks/against.py efb4687`.

Each workload is set up in three processes: the old commit (in a git worktree that is removed afterwards), this
checkout with its defaults, and, for W2, this checkout with optimizer="adam". They take turns, a block of rounds each,
in an order that rotates; only one computes at a time, so that what else the machine does falls on all alike. What is
compared is a turn with the others of the same round of turns: medians of those ratios of wall time, with their
quartiles, and beside them those of the processor time of both cores, which other work disturbs less.

efb4687 is the commit before the local solver became a part of its own. All of it takes about ten minutes on two quiet
cores; FEDBC_DATA says where the data are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if __package__ is None:
    sys.path.insert(0, str(ROOT))

from benchmarks.workloads import WORKLOADS, Workload  # noqa: E402

BLOCKS = {"W1": 96, "W2": 2, "W3": 2, "W4": 1}
"""Rounds of a turn: about a second."""
WARM = {"W1": 32, "W2": 2, "W3": 2, "W4": 1}
"""Rounds before the first turn, in which all is compiled."""
BARS = {"new": (0.97, 1.03), "adam": (0.0, 1.3)}
"""Of new against old, and of Adam against the default."""


class Contestant:
    """A process with a run that goes on when it is told to."""

    def __init__(self, name: str, source: Path, job: dict[str, Any]) -> None:
        self.name = name
        path = os.pathsep.join([str(source / "src"), str(ROOT)])
        environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(job)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        place = Path(self._answer()).resolve()
        if not place.is_relative_to(source.resolve()):
            raise SystemExit(f"{name} took fedbc from {place}, not from its own checkout")

    def seconds(self, rounds: int) -> tuple[float, float]:
        """Of so many more rounds, per round: wall time and processor time."""
        assert self.process.stdin is not None
        print(rounds, file=self.process.stdin, flush=True)
        wall, processor = (float(part) / rounds for part in self._answer().split())
        return wall, processor

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended: its error is above")
        return line.strip()


def serve(job: dict[str, Any]) -> None:
    """Answer with the package's place, then with the seconds of each block of rounds."""
    import inspect

    import fedbc
    from fedbc.simulation.settings import Settings
    from fedbc.simulation.simulate import Simulation  # where earlier commits have it, too

    answers, sys.stdout = sys.stdout, sys.stderr
    loader, arguments = job["data"]
    federation = getattr(fedbc.data, loader)(**arguments)
    kind, arguments = job["model"]
    algorithm = fedbc.FedBC(lr=job["lr"], momentum=job["momentum"])
    settings = Settings(
        epochs=job["epochs"], batch_size=job["batch_size"], sample=job["sample"], evaluate=(), seed=0, **job["chosen"]
    )
    run = Simulation(algorithm, getattr(fedbc.models, kind)(**arguments), federation, settings)
    knows_ahead = "ahead" in inspect.signature(run.advance).parameters
    print(fedbc.__file__, file=answers, flush=True)
    for line in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        for left in reversed(range(int(line))):
            run.advance(**({"ahead": left} if knows_ahead else {}))
        print(time.perf_counter() - began, time.process_time() - used, file=answers, flush=True)


def compare(workload: Workload, old: Path, turns: int) -> list[dict[str, Any]]:
    """The ratios of a workload."""
    job = {
        "data": workload.data, "model": workload.model, "epochs": workload.epochs, "batch_size": workload.batch_size,
        "sample": workload.sample, "lr": workload.lr, "momentum": workload.momentum, "chosen": {},
    }  # fmt: skip
    contestants = [Contestant("old", old, job), Contestant("new", ROOT, job)]
    if workload.name == "W2":
        adam = job | {"chosen": {"optimizer": "adam"}, "momentum": 0.0, "lr": 0.001}
        contestants.append(Contestant("adam", ROOT, adam))
    for one in contestants:
        one.seconds(WARM[workload.name])
    table: dict[str, list[tuple[float, float]]] = {one.name: [] for one in contestants}
    for turn in range(turns):
        first = turn % len(contestants)
        for one in contestants[first:] + contestants[:first]:
            table[one.name].append(one.seconds(BLOCKS[workload.name]))
    for one in contestants:
        one.close()
    return [ratio(workload.name, table, one, other) for one, other in (("new", "old"), ("adam", "new")) if one in table]


def ratio(workload: str, table: dict[str, list[tuple[float, float]]], one: str, other: str) -> dict[str, Any]:
    """Of two contestants, turn by turn."""
    mine, theirs = np.array(table[one]), np.array(table[other])
    (low, _), (middle, processor), (high, _) = np.percentile(mine / theirs, [25, 50, 75], axis=0)
    least, most = BARS[one]
    return {
        "workload": workload,
        "ratio": f"{one} / {other}",
        "median": round(float(middle), 4),
        "quartiles": [round(float(low), 4), round(float(high), 4)],
        "of_the_fastest": round(float(mine[:, 0].min() / theirs[:, 0].min()), 4),
        "processor": round(float(processor), 4),
        "milliseconds": {n: round(1e3 * float(np.median(a[:, 0])), 3) for n, a in ((one, mine), (other, theirs))},
        "within": bool(least <= middle <= most),
    }


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A git worktree of a commit, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "old"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--detach", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(place)], check=True)


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="efb4687")
    parser.add_argument("--workloads", default=",".join(BLOCKS), help="default: %(default)s")
    parser.add_argument("--turns", type=int, default=15, help="of each contestant; default: %(default)s")
    parser.add_argument("--out", type=Path, help="a file for the ratios, one line of JSON each")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(json.loads(given.serve))
        return
    found = []
    with checkout(given.commit) as old:
        for name in given.workloads.split(","):
            for line in compare(WORKLOADS[name], old, given.turns):
                print(json.dumps(line, ensure_ascii=False), flush=True)
                found.append(line)
    if given.out is not None:
        given.out.write_text("".join(json.dumps(line) + "\n" for line in found))
    sys.exit(0 if all(line["within"] for line in found) else 1)


if __name__ == "__main__":
    main()
