"""Measure all contestants on the workloads, alternating, in one run on one machine.

    python -m benchmarks.run                                    everything; about an hour on two cores
    python -m benchmarks.run --workloads W1 --contestants fedbc,fedjax,limit
    python -m benchmarks.run --workloads mcmahan,resnet         networks of one's own (`benchmarks.networks`)
    python -m benchmarks.run --workloads own_networks,modules   all of these, and PyTorch modules; about 20 minutes
    python -m benchmarks.run --quick                            one round each, to see that all works

Only one contestant computes at any time: each waits until it is asked for a turn (a round; 48 rounds on W1, whose
rounds take milliseconds). All train the same devices in the same rounds, from the same initial model. W2 to W4 need
the data sets (FEDBC_DATA). Results go to benchmarks/results.json; `python -m benchmarks.report` makes the page of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import environments, machine, results
from benchmarks.environments import Absent
from benchmarks.workloads import ALL, Workload, build, devices_of, prepare

ROOT = Path(__file__).parent.parent
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PAUSE = 0.05  # seconds between turns: threads of the one before may spin for a moment after their last work
PATIENCE = 3600  # seconds to wait for an answer
WARM_UP = (False, True, False)  # whether each of the first rounds, which compile, has an evaluation
MODES = {"own_networks": (False,), "modules": (False,)}  # by group: whether turns have an evaluation; default: both


@dataclass(frozen=True)
class Entry:
    """A contestant: its worker's module, its environment (None: this one) and the variants to try."""

    module: str
    environment: str | None
    variants: tuple[str, ...]


CONTESTANTS = {
    "fedbc": Entry("fedbc", None, ("FedBC", "FedAvg")),
    "pytorch": Entry(
        "pytorch", "torch", ("1 thread", *([f"{CORES} threads", f"{CORES} processes"] if CORES > 1 else []))
    ),
    "flower": Entry("flower", "flower", ("ray",)),
    "pfl": Entry("pfl", "pfl", ("1 process", *([f"{CORES} processes"] if CORES > 1 else []))),
    "fedjax": Entry("fedjax", "fedjax", ("jit",)),
    "limit": Entry("limit", None, ("as stored", "decoded beforehand")),
    "modules": Entry("modules", None, ("FedAvg",)),
}


@dataclass
class Turn:
    """Rounds that a contestant runs without a break."""

    evaluate: bool
    rounds: list[int]


@dataclass
class Worker:
    """A contestant's process."""

    name: str
    variant: str
    process: subprocess.Popen | None
    log: Path
    record: dict[str, Any] = field(default_factory=lambda: {"warm_up": [], "train": [], "evaluate": []})
    own_cpu: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it has dropped out."""
        return "absent" in self.record

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer; a worker that fails is Absent from then on."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: the end of its output says so below
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else ""
        answer = json.loads(line) if line else {"error": self._last_words() if ready else "it did not answer"}
        if "error" in answer:
            raise Absent(answer["error"].strip().splitlines()[-1] if answer["error"].strip() else "it died silently")
        return answer

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def load(self, job: dict[str, Any]) -> None:
        """Have it load a workload."""
        try:
            answer = self.ask({"job": job})
        except Absent as error:
            self.record["absent"] = f"failed to start: {error}"
            return
        self.record |= {"load_seconds": answer["seconds"], "versions": answer["versions"], "facts": answer["facts"]}

    def turn(self, mode: str, evaluate: bool, rounds: dict[int, list[int]]) -> None:
        """Run the given rounds and note what they took; nothing, once it has failed."""
        if self.failed:
            return
        time.sleep(PAUSE)
        before = self.cpu()
        try:
            self.record[mode].append(self.ask({"rounds": rounds, "evaluate": evaluate}))
        except Absent as error:
            self.record["absent"] = f"failed in round {min(rounds)} or later: {error}"
            say(f"  {self.name} ({self.variant}) {self.record['absent']}")
        self.own_cpu += self.cpu() - before

    def cpu(self) -> float:
        """CPU seconds of its processes so far."""
        return machine.tree_seconds(self.process.pid) if self.process is not None else 0.0

    def close(self) -> None:
        """Let it end; kill it and its children if it does not."""
        if self.process is None:
            return
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(timeout=90)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # the session that `start` made for it
            self.process.wait()


def say(text: str) -> None:
    """Progress, for a person who waits."""
    print(text, file=sys.stderr, flush=True)


def command(entry: Entry, variant: str, python: str) -> list[str]:
    """How a worker is started."""
    module = ["-m", f"benchmarks.workers.{entry.module}"]
    if variant.endswith("processes"):
        processes = variant.split()[0]
        return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, *module]
    return [python, *module]


def start(name: str, variant: str, workload: Workload, cache: Path) -> Worker:
    """Set up a contestant's environment and start its process."""
    entry = CONTESTANTS[name]
    python, seconds = environments.python(entry.environment, cache)
    log = cache / "logs" / f"{workload.name}-{name}-{variant.replace(' ', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    # fedbc keeps compiled programs from run to run: without this its warm-up would be that of an earlier run.
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "0"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command(entry, variant, python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
    worker = Worker(name, variant, process, log)
    worker.record["environment_seconds"] = seconds
    return worker


@contextlib.contextmanager
def started(chosen: list[tuple[str, str]], workload: Workload, folder: Path, cache: Path) -> Iterator[list[Worker]]:
    """The contestants' variants, with the workload loaded; those that cannot be had are noted as absent."""
    workers: list[Worker] = []
    try:
        for name, variant in chosen:
            try:
                workers.append(start(name, variant, workload, cache))
            except Absent as error:
                workers.append(Worker(name, variant, None, Path(), {"absent": str(error)}))
        for worker in workers:
            if not worker.failed:
                say(f"  loading {worker.name} ({worker.variant})")
                worker.load(workload.job(folder, worker.variant))
            if worker.failed:
                say(f"  absent: {worker.name} ({worker.variant}): {worker.record['absent']}")
        yield workers
    finally:
        for worker in workers:
            worker.close()


def turns(workload: Workload, rounds: int) -> list[Turn]:
    """Turns without and with evaluation, one after the other, `rounds` rounds of each."""
    size = 48 if workload.name == "W1" else 1  # its rounds take milliseconds: caches must be warm, as in a run
    planned, number = [], len(WARM_UP)
    for begin in range(0, rounds, size):
        for evaluate in MODES.get(workload.group, (False, True)):
            block = list(range(number + 1, number + 1 + min(size, rounds - begin)))
            planned.append(Turn(evaluate, block))
            number += len(block)
    return planned


def variants_of(text: str) -> list[tuple[str, str]]:
    """Contestants from the command line: `name` for all its variants, `name:variant` for one."""
    chosen = []
    for part in text.split(","):
        name, _, variant = part.partition(":")
        known = CONTESTANTS[name].variants if name in CONTESTANTS else ()
        if not known or (variant and variant not in known):
            there = "; ".join(f"{n} ({', '.join(entry.variants)})" for n, entry in CONTESTANTS.items())
            raise argparse.ArgumentTypeError(f"unknown contestant {part!r}; there are {there}")
        chosen += [(name, v) for v in known if variant in ("", v)]
    return chosen


def workloads_of(text: str) -> list[Workload]:
    """Workloads from the command line, by name or group."""
    groups = {w.group: [v for v in ALL.values() if v.group == w.group] for w in ALL.values()}
    known = {**groups, **{name: [w] for name, w in ALL.items()}}
    if unknown := [name for name in text.split(",") if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown workload {unknown[0]!r}; there are {', '.join(known)}")
    return [w for name in text.split(",") for w in known[name]]


def measure(workload: Workload, chosen: list[tuple[str, str]], rounds: int, cache: Path) -> dict[str, Any]:
    """One workload, all contestants."""
    say(f"{workload.name}: {workload.title}")
    folder = cache / "data" / workload.name
    facts = prepare(workload, folder)
    _, federation = build(dataclasses.asdict(workload))
    load = os.getloadavg()[0]
    with started(chosen, workload, folder, cache) as workers:
        for worker in workers:
            say(f"  warming up {worker.name} ({worker.variant})")
            for number, evaluate in enumerate(WARM_UP, start=1):
                worker.turn("warm_up", evaluate, {number: devices_of(federation, workload, number)})
        watch = Watch(workers)
        order, planned = random.Random(0), turns(workload, rounds)
        for place, turn in enumerate(planned, start=1):
            say(f"  turn {place} of {len(planned)}{' with evaluation' if turn.evaluate else ''}")
            asked = {number: devices_of(federation, workload, number) for number in turn.rounds}
            for worker in order.sample(workers, len(workers)):
                worker.turn("evaluate" if turn.evaluate else "train", turn.evaluate, asked)
        others = watch.end()
    contestants: dict[str, dict[str, Any]] = {}
    for worker in workers:
        contestants.setdefault(worker.name, {})[worker.variant] = worker.record
    return {
        "title": workload.title,
        "setting": {key: getattr(workload, key) for key in ("sample", "batch_size", "lr", "momentum", "epochs")},
        "data": facts,
        "rounds": rounds,
        "load_average_before": round(load, 2),
        "cores_kept_busy_by_others": others,
        "contestants": contestants,
    }


class Watch:
    """Whether anybody but the contestant whose turn it is used the machine: idle contestants, or others."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self.began, self.busy, self.ours = (
            time.perf_counter(),
            machine.busy_seconds(),
            machine.tree_seconds(os.getpid()),
        )
        self.before = [worker.cpu() for worker in workers]
        for worker in workers:
            worker.own_cpu = 0.0

    def end(self) -> float | None:
        """Note each contestant's idle use; the cores that other programs kept busy, None where that is not known."""
        wall = time.perf_counter() - self.began
        for worker, before in zip(self.workers, self.before, strict=True):
            worker.record["idle_cores"] = round((worker.cpu() - before - worker.own_cpu) / wall, 3)
        busy = machine.busy_seconds()
        if busy is None or self.busy is None:
            return None
        ours = machine.tree_seconds(os.getpid()) - self.ours
        return round(max(0.0, busy - self.busy - ours) / wall, 2)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=workloads_of, default=",".join(ALL), help="default: %(default)s")
    parser.add_argument(
        "--contestants",
        type=variants_of,
        default=",".join(CONTESTANTS),
        help="names, or name:variant for one variant; default: %(default)s",
    )
    parser.add_argument("--rounds", type=int, help="measured rounds in each mode; default: 240 for W1, else 5")
    parser.add_argument("--quick", action="store_true", help="one measured round in each mode")
    parser.add_argument("--out", type=Path, default=results.DEFAULT, help="results file, sections are replaced")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".cache" / "bench", help="folder for environments, arrays and logs"
    )
    options = parser.parse_args(arguments)
    for workload in options.workloads:
        rounds = 1 if options.quick else options.rounds or workload.rounds
        chosen = [c for c in options.contestants if c[0] in workload.contestants]
        if workload.group == "own_networks":  # they are about the network, not about the method
            chosen = [c for c in chosen if c != ("fedbc", "FedBC")]
        measured = measure(workload, chosen, rounds, options.cache)
        results.update(options.out, workload.group, workload.name, value=measured)
    say(f"written to {options.out}")


if __name__ == "__main__":
    main()
