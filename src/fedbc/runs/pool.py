"""Where jobs are done: by processes of this machine, or on a Ray cluster; one core per job."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import jax

from fedbc import checks, progress, runtime
from fedbc.errors import InputError
from fedbc.runs.lines import Line

TELL_SECONDS = 0.5
"""How often a worker says at most how far its job is."""
JOBS_BETWEEN_TIDYING = 20


@dataclass(frozen=True)
class Job:
    """Something that a worker does, and what is known of it beforehand."""

    work: Callable[[], Line]
    """makes the job's line of results; can be sent to another process, where it may call `tell_round`"""
    label: str
    """what the display calls it"""
    rounds: int
    about: Line = field(default_factory=dict)
    """what its line holds whatever happens, also where its worker dies"""

    def fail(self, why: str) -> Line:
        """The line of a job whose worker did not live to write one."""
        return self.about | {"error": why}


def tell_round(row: Mapping[str, Any]) -> None:
    """In a worker: say how far the job is, now and then. Elsewhere: nothing."""
    if _teller is not None:
        _teller(row)


_teller: Callable[[Mapping[str, Any]], None] | None = None


def check_workers(workers: int | None) -> None:
    """An InputError for a number of worker processes that is none; None is one per core."""
    if workers is not None:
        checks.integer("workers", workers, at_least=1)


def do_jobs(
    jobs: Sequence[Job], *, workers: int | None = None, ray: str | None = None, name: str = "runs", done: int = 0
) -> Iterator[Line]:
    """Do jobs in worker processes, one per core if not told how many, or on Ray; their lines come as they end.

    The open display (`fedbc.progress.shown`), if there is one, shows them under `name`, with `done` more that are done
    already.
    """
    check_workers(workers)
    bars = progress.current().sweep(name, done + len(jobs), done)
    try:
        if jobs and ray is not None:
            yield from _on_ray(jobs, ray, bars)
        elif jobs:
            yield from _on_processes(jobs, workers or runtime.usable_cores(), bars)
    finally:
        bars.close()


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    job: Job | None = None


def _on_processes(jobs: Sequence[Job], count: int, bars: progress.SweepBars) -> Iterator[Line]:
    """Worker processes with one lane each; one that dies costs its job, and another takes its place."""
    waiting = list(jobs)[::-1]
    workers = [_start() for _ in range(min(count, len(jobs)))]
    try:
        while waiting or any(w.job for w in workers):
            for number, worker in enumerate(workers):
                if worker.job is None and waiting:
                    worker.job = waiting.pop()
                    worker.pipe.send(worker.job.work)
                    bars.begin(number, worker.job.label, worker.job.rounds)
            ready = wait([w.pipe for w in workers if w.job] + [w.process.sentinel for w in workers if w.job])
            for number, worker in enumerate(workers):
                if worker.job is None or not {worker.pipe, worker.process.sentinel} & set(ready):
                    continue
                try:
                    kind, content = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    kind, content = "line", worker.job.fail(f"the process died (exit {worker.process.exitcode})")
                    workers[number] = _start()
                if kind == "round":
                    bars.round(number, content)
                    continue
                worker.job = None
                bars.end(number, content)
                yield content
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()
            worker.pipe.close()


def _start() -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    before = os.environ.get("FEDBC_LANES")
    os.environ["FEDBC_LANES"] = "1"  # read by the new process when it imports fedbc
    try:
        process = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs,), daemon=True)
        process.start()
    finally:
        if before is None:
            del os.environ["FEDBC_LANES"]
        else:
            os.environ["FEDBC_LANES"] = before
    theirs.close()  # so that the end of the process is the end of the pipe
    return _Worker(process, ours)


def _work(pipe: Connection) -> None:
    """A worker's life: a job in, rounds now and then and a line at the end out, until the pipe closes."""
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
            pipe.send(("line", _one_of_many(pipe.recv())))
        except EOFError:
            return


_jobs = itertools.count(1)


def _one_of_many(work: Callable[[], Line]) -> Line:
    """Do one job; a worker may do thousands, each with compiled programs of its own.

    They are forgotten now and then, not after every job, for jobs share small programs (those that initialise models,
    for instance).
    """
    line = work()
    if next(_jobs) % JOBS_BETWEEN_TIDYING == 0:
        jax.clear_caches()
        gc.collect()
    return line


def _on_ray(jobs: Sequence[Job], address: str, bars: progress.SweepBars) -> Iterator[Line]:
    """The same on a Ray cluster."""
    with ray_cluster(address, lanes=1) as ray:
        remote = ray.remote(num_cpus=1, max_retries=1)(_on_node)
        tasks = {remote.remote(os.getcwd(), job.work): job for job in jobs}
        while tasks:
            (ended,), _ = ray.wait(list(tasks), num_returns=1)
            job = tasks.pop(ended)
            try:
                line = ray.get(ended)
            except ray.exceptions.RayError as error:
                line = job.fail(f"{type(error).__name__}: {str(error).splitlines()[0]}")
            bars.end(None, line)
            yield line


def _on_node(folder: str, work: Callable[[], Line]) -> Line:
    enter(folder)
    return _one_of_many(work)


def enter(folder: str) -> None:
    """Go where the process is that asked Ray, if the node has such a folder: paths are meant from there."""
    with contextlib.suppress(OSError):
        os.chdir(folder)


def need_ray(address: str) -> None:
    """An InputError if Ray is not installed, or nobody answers at a cluster's address: Ray would try for minutes."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns that it is going to be so
    try:
        import ray  # noqa: F401
    except ImportError:
        raise InputError("--ray needs Ray: pip install 'fedbc[ray]'") from None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # "local", "auto", or for Ray to judge
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"ray={address!r} is not accepted: nobody answers there ({reason})") from None


@contextlib.contextmanager
def ray_cluster(address: str, *, lanes: int | None) -> Iterator[Any]:
    """Ray, connected to a cluster, whose processes have so many lanes; "local" starts it on this machine."""
    need_ray(address)
    import ray

    environment = {"env_vars": {"FEDBC_LANES": str(lanes)}} if lanes is not None else {}
    where = {"include_dashboard": False} if address == "local" else {"address": address}
    try:
        ray.init(**where, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"ray={address!r} is not accepted: {str(error).splitlines()[0]}") from None
    try:
        yield ray
    finally:
        ray.shutdown()
