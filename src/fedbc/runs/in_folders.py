"""One or several methods on one federation, each run in a folder: what `fedbc run` does."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from fedbc import checks, progress, storage
from fedbc.errors import InputError
from fedbc.machines import here
from fedbc.runs import on_machines
from fedbc.runs.execute import begin, execute_in
from fedbc.runs.outcome import CallEachRound, Observer, Row
from fedbc.runs.spec import Problem, RunSpec
from fedbc.simulation.ending import Ending
from fedbc.simulation.result import Result, RunFolder
from fedbc.trackers import Tracker

ENDING = tuple(field.name for field in fields(Ending))
"""What may be another than before when a run is gone on with, beside the rounds."""
Jobs = Mapping[str, tuple[RunFolder, RunSpec]]
"""A folder and a specification for each method's name."""
Track = Callable[[RunFolder, RunSpec], Sequence[Tracker]]
OnRound = Callable[[Mapping[str, Any]], object]


class How(TypedDict, total=False):
    """How runs are carried out; `run` says what each means."""

    checkpoint_every: int
    on_round: OnRound | None
    track: Track | None
    debug: bool
    quiet: bool
    ray: str | None
    machines: int


def run(spec: RunSpec, out: str | Path | None = None, **how: Unpack[How]) -> Result:
    """Run a specification in a folder of its own, with checkpoints, and write the result there.

    out: the folder, a new one; below runs/, named after algorithm and data, if not given.
    how: `checkpoint_every` keeps the whole state every so many rounds (20); `on_round` is called with each row of
        history; `track` makes the run's trackers from its folder and specification; `debug` compiles nothing; `quiet`
        shows no progress; `ray` is the address of a Ray cluster of which so many `machines` share the run, and start
        anew from the checkpoint if one of them dies ("local" starts Ray on this machine). All of them see the folder.
    """
    (result,) = run_methods([spec], out, **how).values()
    return result


def run_methods(specs: Sequence[RunSpec], out: str | Path | None = None, **how: Unpack[How]) -> dict[str, Result]:
    """Run several methods on one federation, one after the other; the results by the names of their algorithms.

    out: the folder in which each has its own; for the rest see `run`.
    """
    if not specs:
        raise InputError("specs=[] is not accepted: give at least one specification")
    methods = {str(spec.algorithm["name"]): spec for spec in specs}
    if len(methods) < len(specs):
        raise InputError("specs has one algorithm twice: run each by itself, or use fedbc.sweep")
    if out is None and not here().alone:
        raise InputError("out is missing: give a folder that all machines see")
    with contextlib.nullcontext(checks.path("out", out)) if out is not None else reserved_folder(methods) as parent:
        return _run_each(
            {name: (RunFolder(parent / name if len(methods) > 1 else parent), spec) for name, spec in methods.items()},
            anew=parent,
            **how,
        )


def resume(
    folder: str | Path, *, rounds: int | None = None, ending: Mapping[str, Any] | None = None, **how: Unpack[How]
) -> dict[str, Result]:
    """Go on with the run of a folder, or with all runs in it, to the same bits as without the interruption.

    rounds: how many in all; as the runs' specifications say if not given. For the rest see `run`.
    ending: `target_accuracy`, `patience` or `time_budget`, where they are to be others than the specifications say.
    """
    parent = Path(folder)
    if not parent.is_dir():
        raise InputError(f"resume={str(folder)!r} is not a folder")
    folders = [found for found in RunFolder.find(parent) if found.spec.exists()]
    if not folders:
        raise InputError(f"resume={str(folder)!r} is not a run folder: it has no spec.json")
    specs = {found: RunSpec.from_dict(found.read_spec()) for found in folders}
    for name in ending or {}:
        checks.choice("ending", name, ENDING)
    more = {**(ending or {}), **({} if rounds is None else {"rounds": rounds})}
    jobs = {
        str(spec.algorithm["name"]): (found, replace(spec, run={**spec.run, **more})) for found, spec in specs.items()
    }
    return _run_each(jobs, **how)


def usual_folder(work: str, *about: str) -> Path:
    """The folder of a comparison, a study or a calibration if nobody says: below runs/, by what it is about."""
    return Path("runs") / "-".join((work, *about))


@contextlib.contextmanager
def reserved_folder(specs: Mapping[str, RunSpec]) -> Iterator[Path]:
    """A new folder below runs/ for the runs of some methods, for nobody else; if it stays empty, it goes again."""
    first = next(iter(specs.values()))
    pooled = "-pooled" if first.run.get("pooled") else ""
    name, number = f"{'-'.join(specs)}-{first.data_name}{pooled}", 1
    with storage.explained(Path("runs")):
        Path("runs").mkdir(exist_ok=True)
        while True:
            folder = Path("runs") / f"{name}-{number}"
            try:
                folder.mkdir()
                break
            except FileExistsError:  # maybe of a process that began at the same moment
                number += 1
    try:
        yield folder
    finally:
        for empty in (folder, folder.parent):
            with contextlib.suppress(OSError):
                empty.rmdir()


def _run_each(
    jobs: Jobs,
    *,
    anew: Path | None = None,
    checkpoint_every: int = 20,
    on_round: OnRound | None = None,
    track: Track | None = None,
    debug: bool = False,
    quiet: bool = False,
    ray: str | None = None,
    machines: int = 1,
) -> dict[str, Result]:
    """Run each in its folder, one after the other; everything is checked before anything is written.

    anew: the folder that must not exist yet; None goes on with runs that were begun.
    """
    checks.integer("checkpoint_every", checkpoint_every, at_least=1)
    work = functools.partial(_run_here, checkpoint_every=checkpoint_every, track=track, debug=debug)
    if ray is not None:
        if anew is not None:
            storage.refuse_existing(anew)
        return _share(jobs, anew, work, ray=ray, machines=machines, on_round=on_round, quiet=quiet)
    if machines != 1:
        raise InputError(f"machines={machines} needs ray=ADDRESS; without Ray, each machine calls fedbc.machines.join")
    return work(jobs, anew, on_round=on_round, quiet=quiet)


def _run_here(
    jobs: Jobs,
    anew: Path | None,
    *,
    checkpoint_every: int,
    on_round: OnRound | None = None,
    track: Track | None,
    debug: bool,
    quiet: bool,
) -> dict[str, Result]:
    """In this process, with the machines that it joined."""
    machines = here()
    problems = machines.together("build the run", lambda: _build(jobs))
    for name, (_, spec) in jobs.items():
        spec.check(*problems[name])
    trackers = {name: list(track(folder, spec)) if track is not None else [] for name, (folder, spec) in jobs.items()}
    if anew is not None:
        machines.led("make the folder", lambda: _make_folders(anew, jobs))
    results = {}
    with progress.shown(quiet=quiet or not machines.leads) as display:
        for name, (folder, spec) in jobs.items():
            observers: list[Observer] = [CallEachRound(display.run(name, spec.settings()[0]))]
            observers += [CallEachRound(on_round)] if on_round is not None else []
            results[name] = execute_in(
                folder,
                spec,
                observers,
                problem=problems[name],
                checkpoint_every=checkpoint_every,
                debug=debug,
                trackers=trackers[name],
            ).finished()
    return results


def _share(
    jobs: Jobs,
    anew: Path | None,
    work: Callable[..., object],
    *,
    ray: str,
    machines: int,
    on_round: OnRound | None,
    quiet: bool,
) -> dict[str, Result]:
    """By processes on a Ray cluster; this one tells how far they are."""
    placed = {name: (RunFolder(folder.path.resolve()), spec) for name, (folder, spec) in jobs.items()}
    go_on = functools.partial(_go_on, placed, anew.resolve() if anew is not None else None, work)
    with progress.shown(quiet=quiet) as display:
        display.say(f"Ray starts {machines} machines")

        def tell(name: str, spec: RunSpec) -> Callable[[Row], None]:
            bar = functools.cache(lambda: display.run(name, spec.settings()[0]))  # there when the run begins

            def on_row(row: Row) -> None:
                bar()(row)
                if on_round is not None:
                    on_round(row)

            return on_row

        told = {folder: tell(name, spec) for name, (folder, spec) in placed.items()}
        on_machines.share(go_on, told, ray=ray, machines=machines, say=display.say)
    return {name: folder.read() for name, (folder, _) in jobs.items()}


def _go_on(jobs: Jobs, anew: Path | None, work: Callable[..., object]) -> None:
    """On one of the machines: begin, or go on with what was begun before one of them died."""
    begun = here().any(any(folder.is_one for folder, _ in jobs.values()))[0]
    work(jobs, None if begun else anew, quiet=True)


def _make_folders(parent: Path, jobs: Jobs) -> None:
    storage.refuse_existing(parent)
    for folder, spec in jobs.values():
        begin(folder, spec)


def _build(jobs: Jobs) -> dict[str, Problem]:
    """The federation and the model are the same for all."""
    _, first = next(iter(jobs.values()))
    algorithms = {name: spec.build_part("algorithm") for name, (_, spec) in jobs.items()}
    model, federation = first.build_part("model"), first.build_part("data")
    return {name: (algorithm, model, federation) for name, algorithm in algorithms.items()}
