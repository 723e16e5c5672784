"""Many runs at once: a grid or a list of specifications on all cores, or on a Ray cluster.

A sweep's file holds the tables of a run ([algorithm], [data], [model], [run]), which all its runs share, and any number
of [[sweep]] tables, each of which overlays them and may have a grid:

    [run]
    rounds = 200

    [[sweep]]
    algorithm = { name = "fedbc", momentum = 0.5 }
    [sweep.grid]
    "algorithm.lr" = [0.001, 0.01, 0.1]
    "run.seed" = [0, 1, 2]

Results go to one file, a line of JSON a run: the specification and its hash, the summary or the error, versions and
wall time. A run whose hash is there is not run again, so a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedbc import runtime, storage
from fedbc.errors import FedBCError, InputError, unknown
from fedbc.experiments.spec import PARTS, RunSpec, read_toml

Line = dict[str, Any]
"""One line of results: hash, spec, seconds, and summary or error."""

OnLine = Callable[[Line], None]
CarryOut = Callable[[str], Line]
"""Runs one specification, given as JSON, in a worker; a function that can be sent to another process."""


def read_sweep(path: Path) -> list[RunSpec]:
    """The specifications that a sweep's file stands for, each once."""
    tables = read_toml(path)
    entries = tables.pop("sweep", [{}])
    if not isinstance(entries, list):
        raise InputError("sweep is not accepted as a single table: write [[sweep]], with two brackets")
    specs = [spec for entry in entries for spec in _expanded(tables, entry)]
    return list({fingerprint(spec): spec for spec in specs}.values())


def _expanded(common: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[RunSpec]:
    base: dict[str, dict[str, Any]] = {part: dict(common.get(part, {})) for part in PARTS}
    for name in common:
        if name not in PARTS:
            raise unknown("table", name, [*PARTS, "sweep"])
    grid = dict(entry.get("grid", {}))
    for part, table in entry.items():
        if part not in (*PARTS, "grid"):
            raise unknown("sweep: table", part, [*PARTS, "grid"])
        if part != "grid":
            # Another algorithm, data set or model does not inherit the common one's arguments.
            other = "name" in table and table["name"] != base[part].get("name", table["name"])
            base[part] = dict(table) if other else {**base[part], **table}
    for key, values in grid.items():
        if key.split(".")[0] not in PARTS or "." not in key:
            raise InputError(f'grid {key!r} is not accepted: write a table and an argument, such as "algorithm.lr"')
        if not isinstance(values, list) or not values:
            raise InputError(f"grid {key}={values!r} is not accepted: give a list with at least one value")
    for values in itertools.product(*grid.values()):
        tables = copy.deepcopy(base)
        for key, value in zip(grid, values, strict=True):
            part, argument = key.split(".", 1)
            tables[part][argument] = value
        yield RunSpec.from_dict({part: table for part, table in tables.items() if table})


def fingerprint(spec: RunSpec) -> str:
    """A hash of the whole specification, defaults included; `lanes` does not count, it is how and not what."""
    full = spec.to_dict()
    full["run"].pop("lanes")
    return hashlib.sha256(storage.to_json(full).encode()).hexdigest()[:16]


def read_results(path: Path) -> dict[str, Line]:
    """The lines of a results file by hash; a last line that was cut off in writing is passed over."""
    lines: dict[str, Line] = {}
    if path.exists():
        for number, text in enumerate(path.read_text().splitlines(), 1):
            try:
                line = json.loads(text)
                lines[line["hash"]] = line
            except (ValueError, KeyError, TypeError):
                if number < len(path.read_text().splitlines()):
                    raise InputError(f"{path} is damaged in line {number}: it is not a result") from None
    return lines


def carry_out(text: str) -> Line:
    """Run one specification, given as JSON, in this process."""
    from fedbc.simulation.simulate import simulate, versions

    began = time.perf_counter()
    spec = RunSpec.from_dict(json.loads(text))
    line: Line = {"hash": fingerprint(spec), "spec": spec.to_dict()}
    try:
        algorithm, model, federation = spec.build()
        line["summary"] = simulate(algorithm, model, federation, **spec.run_arguments()).summary()
    except FedBCError as error:
        line["error"] = f"{type(error).__name__}: {error}"
    return line | {"seconds": time.perf_counter() - began, "versions": versions()}


def run_sweep(
    specs: list[RunSpec],
    results: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    on_line: OnLine,
    how: CarryOut = carry_out,
) -> None:
    """Run what `results` does not hold yet, and append a line for each run as it ends; `how` may keep more of a run."""
    known = read_results(results)
    todo = [s for s in specs if fingerprint(s) not in known]
    for line in carry_out_all(todo, workers=workers, ray=ray, how=how):
        append_line(results, line)
        on_line(line)


def carry_out_all(
    specs: list[RunSpec], *, workers: int | None = None, ray: str | None = None, how: CarryOut = carry_out
) -> Iterator[Line]:
    """Run specifications in worker processes or on Ray; their lines come as they end."""
    todo = [storage.to_json(s.to_dict()) for s in specs]
    if not todo:
        return iter(())
    return _on_ray(todo, ray, how) if ray is not None else _on_processes(todo, workers or runtime.usable_cores(), how)


def append_line(path: Path, line: Line) -> None:
    """Add a result to a file."""
    _append(path, json.dumps(json.loads(storage.to_json(line))))


def _append(path: Path, line: str) -> None:
    """Add a line; one that was cut off before, by a crash in the midst of writing, gives way."""
    with storage.explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            whole = file.read()
            file.truncate(whole.rfind(b"\n") + 1)
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    task: str | None = None


def _on_processes(todo: list[str], count: int, how: CarryOut) -> Iterator[Line]:
    """Worker processes with one lane each; one that dies costs its run, and another takes its place."""
    waiting = list(reversed(todo))
    workers = [_started(how) for _ in range(min(count, len(todo)))]
    try:
        while waiting or any(w.task for w in workers):
            for worker in workers:
                if worker.task is None and waiting:
                    worker.task = waiting.pop()
                    worker.pipe.send(worker.task)
            ready = wait([w.pipe for w in workers if w.task] + [w.process.sentinel for w in workers if w.task])
            for number, worker in enumerate(workers):
                if worker.task is None or not {worker.pipe, worker.process.sentinel} & set(ready):
                    continue
                task, worker.task = worker.task, None
                try:
                    yield worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    spec = RunSpec.from_dict(json.loads(task))
                    code = worker.process.exitcode
                    yield {
                        "hash": fingerprint(spec),
                        "spec": spec.to_dict(),
                        "error": f"the process died (exit {code})",
                    }
                    workers[number] = _started(how)
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
    """A worker's life: a specification in, a line out, until the pipe closes."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    while True:
        try:
            pipe.send(how(pipe.recv()))
        except EOFError:
            return


def _on_ray(todo: list[str], address: str, how: CarryOut) -> Iterator[Line]:
    """The same on a Ray cluster, one core a run."""
    try:
        import ray
    except ImportError:
        raise InputError("--ray needs Ray: pip install 'fedbc[ray]'") from None
    environment = {"env_vars": {"FEDBC_LANES": "1"}}
    ray.init(address=None if address == "local" else address, runtime_env=environment, log_to_driver=False)
    try:
        # Ray takes functions only, and `how` may be a partial one.
        remote: Any = ray.remote(num_cpus=1, max_retries=1)(lambda text: how(text))
        tasks = {remote.remote(text): text for text in todo}
        while tasks:
            (done,), _ = ray.wait(list(tasks), num_returns=1)
            text = tasks.pop(done)
            try:
                yield ray.get(done)
            except ray.exceptions.RayError as error:
                spec = RunSpec.from_dict(json.loads(text))
                first = str(error).splitlines()[0]
                yield {"hash": fingerprint(spec), "spec": spec.to_dict(), "error": f"{type(error).__name__}: {first}"}
    finally:
        ray.shutdown()
