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

Results go to one file, a line of JSON per run: the specification and its hash, the summary or the error, versions and
wall time. A run whose result is there is not run again, so a sweep that was stopped goes on where it was. A divergence
is a result; what failed for another reason is tried again.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbc import progress
from fedbc.errors import InputError, RunsFailed, unknown
from fedbc.runs.execute import Tracking, execute
from fedbc.runs.lines import Line, Lines, is_result
from fedbc.runs.outcome import CallEachRound
from fedbc.runs.pool import Job, check_workers, do_jobs, tell_round
from fedbc.runs.spec import PARTS, RunSpec, Tables, read_toml
from fedbc.simulation.result import Result
from fedbc.trackers import Tracker

if TYPE_CHECKING:
    import pandas as pd

OnLine = Callable[[Line], None]
Work = Callable[[RunSpec], Line]
"""Runs one specification in a worker; a function that can be sent to another process."""
Track = Callable[[str, Mapping[str, Any]], list[Tracker]]
"""Makes the trackers of a run from a name and its specification; likewise."""


def read_sweep(path: Path) -> list[RunSpec]:
    """The specifications that a sweep's file stands for, each once."""
    tables = read_toml(path)
    entries = tables.pop("sweep", [{}])
    if not isinstance(entries, list):
        raise InputError("sweep is not accepted as a single table: write [[sweep]], with two brackets")
    specs = [spec for entry in entries for spec in _expanded(tables, entry)]
    return list({spec.identity: spec for spec in specs}.values())


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


def run_to_line(spec: RunSpec, *, keep: Callable[[Result], Line] | None = None, track: Track | None = None) -> Line:
    """Run one specification in this process.

    keep: takes more of the result into the line.
    track: makes trackers for the run.
    """
    trackers = track(f"{spec.algorithm['name']}-{spec.identity}", spec.to_dict()) if track is not None else []
    outcome = execute(spec, [CallEachRound(tell_round), *map(Tracking, trackers)])
    more = keep(outcome.result) if keep is not None and outcome.error is None and outcome.result is not None else {}
    return outcome.line() | more


def run_missing(
    specs: Sequence[RunSpec],
    results: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    on_line: OnLine | None = None,
    work: Work = run_to_line,
    name: str = "runs",
    done: int = 0,
) -> None:
    """Run what `results` does not hold yet, and append a line for each run as it ends; `work` may keep more of a run.

    Only one process at a time may do so. For `name` and `done`, see `do_jobs`.
    """
    lines = Lines(results)
    if ray is None:  # a cluster's machines have data of their own
        _need_data(_missing(specs, lines.read()))
    with lines.reserve():
        known = lines.read()
        todo = _missing(specs, known)
        failed = {spec.identity for spec in todo} & known.keys()
        if failed:
            lines.forget(failed)
        done += len(specs) - len(todo)
        for line in do_jobs(jobs_of(todo, work), workers=workers, ray=ray, name=name, done=done):
            lines.append(line)
            if on_line is not None:
                on_line(line)


def jobs_of(specs: Sequence[RunSpec], work: Work) -> list[Job]:
    """Specifications as jobs of a pool."""
    tables = [spec.to_dict() for spec in specs]
    return [
        Job(functools.partial(work, spec), label, table["run"]["rounds"], {"hash": spec.identity, "spec": table})
        for spec, table, label in zip(specs, tables, labels(tables), strict=True)
    ]


def _missing(specs: Sequence[RunSpec], known: Mapping[str, Line]) -> list[RunSpec]:
    return [s for s in specs if s.identity not in known or not is_result(known[s.identity])]


def _need_data(specs: Sequence[RunSpec]) -> None:
    """Data that must be downloaded, or are missing, concern no single run."""
    for spec in {s.data_name: s for s in reversed(specs)}.values():
        spec.build_part("data")


def raise_if_failed(lines: Sequence[Line], results: Path, name: str) -> None:
    """RunsFailed if some of the lines are neither results nor divergences."""
    failed = [line for line in lines if not is_result(line)]
    if failed:
        last = failed[-1]
        raise RunsFailed(
            f"{len(failed)} of {len(lines)} {name} failed, the last one by {last['hash']}: {last['error']}; the "
            f"others are in {results}, and the same command tries these again"
        )


def labels(tables: Sequence[Tables]) -> list[str]:
    """What tells runs apart, in a few words each: the algorithm, and the arguments in which the runs differ."""
    flat = [flatten(table) for table in tables]
    varied = [name for name in differences(flat) if name != "algorithm.name"]
    return [
        " ".join([str(f["algorithm.name"]), *(f"{name.split('.', 1)[1]} {f[name]}" for name in varied if name in f)])
        for f in flat
    ]


def flatten(tables: Tables) -> dict[str, Any]:
    """A specification as one table, with names such as `algorithm.lr`."""
    return {f"{part}.{key}": value for part, table in tables.items() for key, value in table.items()}


def differences(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """The arguments in which runs that have them differ."""
    names = dict.fromkeys(name for table in flat for name in table)
    return [name for name in names if len({str(table[name]) for table in flat if name in table}) > 1]


@dataclass(frozen=True)
class Sweep:
    """What became of a sweep's runs."""

    lines: list[Line]
    """one per specification, in their order"""
    results: Path
    """the file that holds them"""

    @property
    def varied(self) -> list[str]:
        """The arguments in which runs that have them differ, such as `algorithm.lr`."""
        return differences([flatten(line["spec"]) for line in self.lines])

    @property
    def table(self) -> pd.DataFrame:
        """One row per run: the arguments in which they differ, its summary, its error."""
        import pandas as pd

        rows = [(flatten(line["spec"]), line) for line in self.lines]
        return pd.DataFrame(
            [
                {name: arguments.get(name) for name in self.varied}
                | line.get("summary", {})
                | {"error": line.get("error", ""), "seconds": line.get("seconds")}
                for arguments, line in rows
            ]
        )

    def raise_if_failed(self) -> None:
        """RunsFailed if some runs have neither a result nor diverged."""
        raise_if_failed(self.lines, self.results, "runs")


def sweep(
    what: str | Path | Sequence[RunSpec],
    results: str | Path | None = None,
    *,
    workers: int | None = None,
    ray: str | None = None,
    track: Track | None = None,
    quiet: bool = False,
) -> Sweep:
    """Run many specifications on all cores; what the results file holds already is not run again, but for failures.

    what: a TOML file with [[sweep]] tables, or the specifications themselves.
    results: the file of results, one line of JSON per run; beside the TOML file if not given.
    workers: worker processes; one per core if not given.
    ray: run on the Ray cluster of this address instead; "local" starts Ray on this machine.
    track: makes trackers for a run from its name and its specification.
    quiet: show no progress, and no run's error.
    """
    check_workers(workers)
    specs = read_sweep(Path(what)) if isinstance(what, str | Path) else list(what)
    if results is None and not isinstance(what, str | Path):
        raise InputError("results is missing: give the file that the results go to, such as 'results.jsonl'")
    file = Path(results) if results is not None else Path(str(what)).with_suffix(".jsonl")
    work = functools.partial(run_to_line, track=track)
    with progress.shown(quiet=quiet) as display:
        run_missing(specs, file, workers=workers, ray=ray, on_line=tell_errors(display), work=work)
    known = Lines(file).read()
    return Sweep([known[spec.identity] for spec in specs], file)


def tell_errors(display: progress.Display) -> OnLine:
    """Says above the bars why a run failed."""

    def on_line(line: Line) -> None:
        if "error" in line:
            display.say(f"{line['hash']}: {line['error']}")

    return on_line
