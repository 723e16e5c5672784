"""Where the runs of a sweep are carried out: processes of this machine, or a Ray cluster; one core a run."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import jax

from fedbc import progress
from fedbc.errors import InputError

Line = dict[str, Any]
"""One line of results: hash, spec, seconds, and summary or error."""

CarryOut = Callable[[str], Line]
"""Runs one specification, given as JSON, in a worker; a function that can be sent to another process. It calls
`tell_round` with each row of history, if its rounds are to be seen."""

Failed = Callable[[str, str], Line]
"""Makes the line of a specification whose worker did not live to do so; the second argument says what happened."""

TELL_SECONDS = 0.5
"""How often a worker says at most how far its run is."""
RUNS_BETWEEN_TIDYING = 20


def tell_round(row: Mapping[str, Any]) -> None:
    """In a sweep's worker: say how far the run is, now and then. Elsewhere: nothing."""
    if _teller is not None:
        _teller(row)


_teller: Callable[[Mapping[str, Any]], None] | None = None


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    task: str | None = None


def on_processes(
    names: Mapping[str, str], count: int, how: CarryOut, failed: Failed, bars: progress.SweepBars
) -> Iterator[Line]:
    """Worker processes with one lane each; one that dies costs its run, and another takes its place.

    names: the specifications, as JSON, and what the display calls them.
    """
    waiting = list(names)[::-1]
    workers = [_started(how) for _ in range(min(count, len(names)))]
    try:
        while waiting or any(w.task for w in workers):
            for number, worker in enumerate(workers):
                if worker.task is None and waiting:
                    worker.task = waiting.pop()
                    worker.pipe.send(worker.task)
                    bars.begin(number, names[worker.task], json.loads(worker.task)["run"]["rounds"])
            ready = wait([w.pipe for w in workers if w.task] + [w.process.sentinel for w in workers if w.task])
            for number, worker in enumerate(workers):
                if worker.task is None or not {worker.pipe, worker.process.sentinel} & set(ready):
                    continue
                try:
                    kind, content = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    kind, content = "line", failed(worker.task, f"the process died (exit {worker.process.exitcode})")
                    workers[number] = _started(how)
                if kind == "round":
                    bars.round(number, content)
                    continue
                worker.task = None
                bars.end(number, content)
                yield content
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()
            worker.pipe.close()


def _started(how: CarryOut) -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    before = os.environ.get("FEDBC_LANES")
    os.environ["FEDBC_LANES"] = "1"  # read by the new process when it imports fedbc
    try:
        process = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs, how), daemon=True)
        process.start()
    finally:
        if before is None:
            del os.environ["FEDBC_LANES"]
        else:
            os.environ["FEDBC_LANES"] = before
    theirs.close()  # so that the end of the process is the end of the pipe
    return _Worker(process, ours)


def _work(pipe: Connection, how: CarryOut) -> None:
    """A worker's life: a specification in, rounds now and then and a line at the end out, until the pipe closes."""
    global _teller
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    progress.silence()
    told_at = -TELL_SECONDS

    def tell(row: Mapping[str, Any]) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at >= TELL_SECONDS:
            told_at = now
            try:
                pipe.send(("round", dict(row)))
            except OSError:  # the parent is gone, and nobody waits for the result
                raise SystemExit from None

    _teller = tell
    while True:
        try:
            pipe.send(("line", _one_of_many(how, pipe.recv())))
        except EOFError:
            return


_runs = itertools.count(1)


def _one_of_many(how: CarryOut, text: str) -> Line:
    """Carry one specification out; a worker may run thousands, each with compiled programs of its own.

    They are forgotten now and then, not after every run, for runs share small programs (those that initialise models,
    for instance).
    """
    line = how(text)
    if next(_runs) % RUNS_BETWEEN_TIDYING == 0:
        jax.clear_caches()
        gc.collect()
    return line


def on_ray(
    names: Mapping[str, str], address: str, how: CarryOut, failed: Failed, bars: progress.SweepBars
) -> Iterator[Line]:
    """The same on a Ray cluster."""
    try:
        import ray
    except ImportError:
        raise InputError("--ray needs Ray: pip install 'fedbc[ray]'") from None
    environment = {"env_vars": {"FEDBC_LANES": "1"}}
    ray.init(address=None if address == "local" else address, runtime_env=environment, log_to_driver=False)
    try:
        # Ray takes functions only, and `how` may be a partial one.
        remote: Any = ray.remote(num_cpus=1, max_retries=1)(lambda text: _one_of_many(how, text))
        tasks = {remote.remote(text): text for text in names}
        while tasks:
            (done,), _ = ray.wait(list(tasks), num_returns=1)
            text = tasks.pop(done)
            try:
                line = ray.get(done)
            except ray.exceptions.RayError as error:
                line = failed(text, f"{type(error).__name__}: {str(error).splitlines()[0]}")
            bars.end(None, line)
            yield line
    finally:
        ray.shutdown()
