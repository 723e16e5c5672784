"""One run shared by two processes of this machine: the time of a round, its traffic, and the memory of each.

    python -m benchmarks.machines                          some twenty minutes on two cores; needs FEDBC_DATA
    python -m benchmarks.machines --workloads W1 --rounds 4 --devices 1000

Two processes of one lane each against one process of two lanes, on the workloads of `benchmarks.run`, turn by turn:
only one of the two worlds computes at any time. `python -m benchmarks.machines_report` puts the figures into
docs/machines.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.workloads import WORKLOADS, Workload, build

ROOT = Path(__file__).parent.parent
SEED = 0
WARM_UP = 3
"""Rounds that compile."""
TURN = {"W1": 48}
"""Rounds of a turn; 1 where they take long."""
SIZES = (2**10, 2**15, 2**20, 2**22, 2**24)
"""Bytes of the sums that the connection is measured with."""
SMALL = {"examples": 8, "features": 10}
"""Examples per device, and their numbers, where memory is measured."""


def rounds_worker(machines: Any, workload: Workload) -> Iterator[dict[str, Any]]:
    """Train as many rounds as each line of standard input says."""
    import jax
    import numpy as np

    import fedbc
    from fedbc.simulation.rounds import Simulation
    from fedbc.simulation.settings import Settings

    model, federation = build(workload.job(Path(), ""))
    settings = Settings(
        epochs=workload.epochs,
        batch_size=workload.batch_size,
        sample=workload.sample,
        seed=SEED,
        evaluate=("global",),
        evaluate_every=10**9,
    )
    run = Simulation(fedbc.FedBC(lr=workload.lr, momentum=workload.momentum), model, federation, settings)
    model_bytes, summand_bytes = (
        sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
        for tree in (run.algorithm.global_model(run.server), run.engine.shapes.summand)
    )
    yield {"model_bytes": model_bytes, "summand_bytes": summand_bytes, "sample": workload.sample}
    for line in sys.stdin:
        sent = machines.sent
        rows = [run.advance(ahead=10**6) for _ in range(int(line))]
        fullest = [int(run.planner.plan(row["round"]).steps.sum(1).max()) for row in rows]
        sent = (machines.sent - sent) / len(rows)
        yield {"seconds": [row["seconds"] for row in rows], "steps": fullest, "sent": sent}


def link_worker(machines: Any, repeats: int) -> Iterator[dict[str, Any]]:
    """The time of sums of several sizes."""
    import numpy as np

    for size in SIZES:
        numbers, seconds = np.ones(size // 4, np.float32), []
        for _ in range(repeats + 2):
            began = time.perf_counter()
            machines.sum(numbers)
            seconds.append(time.perf_counter() - began)
        yield {"bytes": size, "seconds": seconds[2:]}


def memory_worker(machines: Any, devices: int) -> Iterator[dict[str, Any]]:
    """Load the devices that this machine owns, train all of them once, and say what is held."""
    import numpy as np

    import fedbc
    from fedbc.simulation.rounds import Simulation
    from fedbc.simulation.settings import Settings

    imported = held()

    def load(share: fedbc.machines.Share) -> Any:
        draw, each = np.random.default_rng(machines.index), SMALL["examples"]
        x = draw.standard_normal((len(share.devices) * each, SMALL["features"]), np.float32)
        y = draw.integers(0, 10, len(x), np.int32)
        own = [(x[i * each : (i + 1) * each], y[i * each : (i + 1) * each]) for i in range(len(share.devices))]
        return own, [(a[:2], b[:2]) for a, b in own]

    federation = fedbc.machines.load(load, devices, machines, classes=10, name="made up")
    loaded = held()
    settings = Settings(epochs=1, seed=SEED, evaluate=("global",), evaluate_every=10**9)
    run = Simulation(fedbc.FedBC(), fedbc.models.logistic(SMALL["features"], 10), federation, settings)
    run.advance()
    yield {
        "owned": devices if federation.owned is None else len(federation.owned),
        "states": run.store.count,
        "state_bytes": run.store.count * run.store.bytes_per_device,
        "data_bytes": sum(a.nbytes for s in (federation.train, federation.test) for a in (s.x, s.y, s.offsets)),
        "imported": imported,
        "loaded": loaded,
        "after_a_round": held(),
        "peak": peak(),
    }


def held() -> int:
    """Bytes that this process holds now; its peak where that is not told (not Linux)."""
    memory = Path("/proc/self/statm")
    return int(memory.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if memory.exists() else peak()


def peak() -> int:
    """Bytes; Linux counts in kilobytes, macOS in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def work(task: dict[str, Any]) -> None:
    """What a process of a world does: its answers are lines of JSON."""
    import fedbc

    machines = fedbc.machines.here()
    if task["count"] > 1:
        machines = fedbc.machines.join(task["address"], task["index"], task["count"], seconds=600)
    answers = {
        "rounds": lambda: rounds_worker(machines, WORKLOADS[task["argument"]]),
        "link": lambda: link_worker(machines, task["argument"]),
        "memory": lambda: memory_worker(machines, task["argument"]),
    }[task["what"]]()
    for answer in answers:
        print(json.dumps(answer), flush=True)


@dataclass(frozen=True)
class World:
    """Processes that share one work."""

    processes: list[subprocess.Popen[str]]

    def ask(self, text: str) -> list[dict[str, Any]]:
        """Tell all of them something, and read an answer of each."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
        return self.answers()

    def answers(self) -> list[dict[str, Any]]:
        """An answer of each."""
        lines = [process.stdout.readline() for process in self.processes if process.stdout is not None]
        if not all(lines):
            raise RuntimeError("a process of the world ended: see what it printed above")
        return [json.loads(line) for line in lines]


@contextlib.contextmanager
def world(what: str, argument: object, count: int, lanes: int) -> Iterator[World]:
    """So many processes of so many lanes each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"FEDBC_LANES": str(lanes), "JAX_PLATFORMS": "cpu"}
    task = {"what": what, "argument": argument, "count": count, "address": address}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.machines", "--task", json.dumps(task | {"index": index})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        for index in range(count)
    ]
    try:
        yield World(processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            process.wait(timeout=120)
    finally:
        for process in processes:
            process.kill()


def measure_rounds(workload: Workload, turns: int) -> dict[str, Any]:
    """The seconds of rounds of both worlds, in pairs of the same round."""
    size = TURN.get(workload.name, 1)
    with world("rounds", workload.name, 1, 2) as one, world("rounds", workload.name, 2, 1) as two:
        facts = one.answers()[0]
        two.answers()
        for some in (one, two):
            some.ask(str(WARM_UP * size))
        seconds: dict[str, list[float]] = {"one": [], "two": []}
        steps: dict[str, list[float]] = {"one": [], "two": []}
        sent = 0.0
        for turn in range(turns):
            for name, some in sorted({"one": one, "two": two}.items(), reverse=bool(turn % 2)):
                answers = some.ask(str(size))
                sent = max(sent, answers[-1]["sent"])
                for key, kept in (("seconds", seconds), ("steps", steps)):
                    most = zip(*(answer[key] for answer in answers), strict=True)
                    kept[name].append(statistics.mean(map(max, most)))
    ratios, uneven = ([b / a for a, b in zip(found["one"], found["two"], strict=True)] for found in (seconds, steps))
    return facts | {
        "title": workload.title,
        "one_process": seconds["one"],
        "two_processes": seconds["two"],
        "ratio": statistics.median(ratios),
        "steps_ratio": statistics.median(uneven),
        "sent_per_round": sent,
    }


def measure_link(repeats: int) -> list[dict[str, Any]]:
    """The seconds of a sum of each size, as the slower of two processes sees it."""
    found = []
    with world("link", repeats, 2, 1) as two:
        for size in SIZES:
            answers = two.answers()
            slower = [max(pair) for pair in zip(*(answer["seconds"] for answer in answers), strict=True)]
            found.append({"bytes": size, "seconds": statistics.median(slower)})
    return found


def measure_memory(devices: int) -> dict[str, Any]:
    """What each process holds, of one and of two."""
    found = {}
    for count in (1, 2):
        with world("memory", devices, count, 1) as some:
            found[str(count)] = some.answers()
    return {"devices": devices, "processes": found}


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="default: %(default)s; empty for none")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each world; default: %(default)s")
    parser.add_argument("--devices", type=int, default=1_000_000, help="for the memory; default: %(default)s; 0: skip")
    parser.add_argument("--sums", type=int, default=30, help="of each size, for the connection; 0: skip")
    parser.add_argument("--out", type=Path, default=results.DEFAULT, help="results file, parts are replaced")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.task:
        work(json.loads(options.task))
        return
    if options.devices:
        print(f"memory: {options.devices} devices", file=sys.stderr)
        results.update(options.out, "machines", "memory", value=measure_memory(options.devices))
    if options.sums:
        print("connection", file=sys.stderr)
        results.update(options.out, "machines", "link", value={"sums": measure_link(options.sums)})
    for name in filter(None, options.workloads.split(",")):
        print(f"{name}: {WORKLOADS[name].title}", file=sys.stderr)
        measured = measure_rounds(WORKLOADS[name], options.rounds)
        results.update(options.out, "machines", "rounds", name, value=measured)


if __name__ == "__main__":
    main()
