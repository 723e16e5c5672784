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
wall time. A run whose result is there is not run again, so a sweep that was stopped goes on where it was. A divergence
is a result; what failed for another reason is tried again.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedbc import progress, runtime, storage
from fedbc.errors import FedBCError, InputError, RunsFailed, unknown
from fedbc.experiments.spec import PARTS, RunSpec, read_toml
from fedbc.experiments.workers import CarryOut, Line, on_processes, on_ray, tell_round
from fedbc.trackers import Tracker

OnLine = Callable[[Line], None]


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
    if full["run"]["validation"] is None:  # results from before there was this argument are still found
        del full["run"]["validation"]
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


def counts(line: Line) -> bool:
    """A result, or a divergence, which is one; what failed for another reason is run again."""
    return "summary" in line or str(line.get("error", "")).startswith("Diverged")


def forget(path: Path, hashes: set[str]) -> None:
    """Take runs out of a results file, so that they are run again."""
    kept = [json.dumps(line) for h, line in read_results(path).items() if h not in hashes]
    storage.write_atomically(path, "".join(text + "\n" for text in kept))


Track = Callable[[str, Mapping[str, Any]], list[Tracker]]
"""Makes the trackers of a run from a name and its specification; a function that can be sent to another process."""


def carry_out(text: str, keep: Callable[[Any], Line] | None = None, track: Track | None = None) -> Line:
    """Run one specification, given as JSON, in this process.

    keep: takes more of the result into the line.
    track: makes trackers for the run.
    """
    from fedbc.simulation.simulate import simulate, versions

    began = time.perf_counter()
    spec = RunSpec.from_dict(json.loads(text))
    line: Line = {"hash": fingerprint(spec), "spec": spec.to_dict()}
    try:
        algorithm, model, federation = spec.build()
        with contextlib.ExitStack() as stack:
            made = track(f"{spec.algorithm['name']}-{line['hash']}", line["spec"]) if track is not None else []
            trackers = [stack.enter_context(tracker) for tracker in made]

            def on_round(row: Mapping[str, Any]) -> None:
                tell_round(row)
                for tracker in trackers:
                    tracker(row)

            result = simulate(algorithm, model, federation, **spec.run_arguments(), on_round=on_round)
            line["summary"] = result.summary()
            for tracker in trackers:
                tracker.finish(line["summary"])
        line |= keep(result) if keep is not None else {}
    except FedBCError as error:
        line["error"] = f"{type(error).__name__}: {error}"
    return line | {"seconds": time.perf_counter() - began, "versions": versions()}


def run_sweep(
    specs: list[RunSpec],
    results: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    on_line: OnLine | None = None,
    how: CarryOut = carry_out,
    name: str = "runs",
    done: int = 0,
) -> None:
    """Run what `results` does not hold yet, and append a line for each run as it ends; `how` may keep more of a run.

    Only one process at a time may do so. For `name` and `done`, see `carry_out_all`.
    """
    if ray is None:  # a cluster's machines have data of their own
        _need_data(_missing(specs, read_results(results)))
    with storage.written_by_us(results):
        known = read_results(results)
        todo = _missing(specs, known)
        failed = {fingerprint(s) for s in todo} & known.keys()
        if failed:
            forget(results, failed)
        done += len(specs) - len(todo)
        for line in carry_out_all(todo, workers=workers, ray=ray, how=how, name=name, done=done):
            append_line(results, line)
            if on_line is not None:
                on_line(line)


def _missing(specs: list[RunSpec], known: Mapping[str, Line]) -> list[RunSpec]:
    return [s for s in specs if (h := fingerprint(s)) not in known or not counts(known[h])]


def _need_data(specs: list[RunSpec]) -> None:
    """Data that must be downloaded, or are missing, concern no single run."""
    for spec in {s.data["name"]: s for s in reversed(specs)}.values():
        spec.build_part("data")


def carry_out_all(
    specs: list[RunSpec],
    *,
    workers: int | None = None,
    ray: str | None = None,
    how: CarryOut = carry_out,
    name: str = "runs",
    done: int = 0,
) -> Iterator[Line]:
    """Run specifications in worker processes or on Ray; their lines come as they end.

    The open display (`fedbc.progress.shown`), if there is one, shows them under `name`, with `done` runs more that are
    done already.
    """
    bars = progress.current().sweep(name, done + len(specs), done)
    names = dict(zip([storage.to_json(s.to_dict()) for s in specs], labels(specs), strict=True))
    try:
        if names and ray is not None:
            yield from on_ray(names, ray, how, _failed, bars)
        elif names:
            yield from on_processes(names, workers or runtime.usable_cores(), how, _failed, bars)
    finally:
        bars.close()


def _failed(text: str, error: str) -> Line:
    spec = RunSpec.from_dict(json.loads(text))
    return {"hash": fingerprint(spec), "spec": spec.to_dict(), "error": error}


def raise_if_failed(lines: list[Line], results: Path, name: str) -> None:
    """RunsFailed if some of the lines are neither results nor divergences."""
    failed = [line for line in lines if not counts(line)]
    if failed:
        last = failed[-1]
        raise RunsFailed(
            f"{len(failed)} of {len(lines)} {name} failed, the last one by {last['hash']}: {last['error']}; the "
            f"others are in {results}, and the same command tries these again"
        )


def labels(specs: list[RunSpec]) -> list[str]:
    """What tells runs apart, in a few words each: the algorithm, and the arguments in which the runs differ."""
    tables = [{(p, k): v for p, t in s.to_dict().items() for k, v in t.items()} for s in specs]
    keys = dict.fromkeys(key for table in tables for key in table if key != ("algorithm", "name"))
    values = {key: {str(t[key]) for t in tables if key in t} for key in keys}
    varied = [key for key in keys if len(values[key]) > 1]
    return [
        " ".join([str(t["algorithm", "name"]), *(f"{k} {t[p, k]}" for p, k in varied if (p, k) in t)]) for t in tables
    ]


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
