"""`fedbc compare`: several methods on one federation, side by side, on the terminal and as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc import progress, storage
from fedbc.cli import options, tables
from fedbc.cli.errors import Stopped
from fedbc.cli.run import specifications
from fedbc.errors import InputError
from fedbc.experiments import comparing
from fedbc.experiments.catalog import CATALOG
from fedbc.experiments.spec import RunSpec
from fedbc.reports.comparison import Comparison, built_models, built_part, check_same_federation, grouped
from fedbc.simulation.result import load

MARK = "comparison.json"
"""Tells a folder with a comparison from any other; it may be written anew."""


@click.command(
    "compare",
    cls=options.GroupedCommand,
    params=[flag.click_option() for flag in options.FLAGS],
    short_help="Compare methods on a federation: a table, a page, figures.",
)
@click.argument("what", nargs=-1, required=True, metavar="ALGORITHM... | RUN...")
@click.option("--seeds", default=1, show_default=True, help="Seeds a method: --seed and those that follow it.")
@options.problem
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the page and all else; below runs/, named after the methods, if not given. A comparison that is "
    "there is renewed, and its finished runs are used again.",
)
@click.option("--workers", type=int, help="Worker processes; one a core if not given.")
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster instead; `local` starts Ray on this machine.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def compare_command(
    what: tuple[str, ...],
    seeds: int,
    data_name: str | None,
    model_name: str | None,
    config: Path | None,
    out: Path | None,
    workers: int | None,
    ray: str | None,
    quiet: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Run ALGORITHMs on one federation, or load RUN folders, and show them side by side.

    \b
    fedbc compare fedbc fedavg ditto --seeds 3 --rounds 200 --epochs 5 --sample 10 --momentum 0.5
    fedbc compare fedbc fedprox --data mnist --classes 2 --seeds 5 --out mnist
    fedbc compare runs/fedbc-synthetic-1 runs/fedavg-synthetic-1

    A folder with several runs stands for all of them; runs that differ in nothing but the seed are one method.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} is not accepted: give a whole number >= 1")
    if seeds < 1:
        raise InputError(f"seeds={seeds} is not accepted: give a whole number >= 1")
    if _are_folders(what):
        others = {"--data": data_name, "--model": model_name, "--config": config, "--workers": workers, "--ray": ray}
        _refuse_settings(others, seeds, values)
        target = _target(out, "-".join(dict.fromkeys(Path(w).name for w in what)))
        comparison = loaded([Path(w) for w in what])
    else:
        specs = specifications(what, data_name, model_name, config, values)
        target = _target(out, f"{'-'.join(specs)}-{next(iter(specs.values())).data['name']}")
        comparison = _run(specs, seeds, target, workers, ray, quiet or as_json)
    _mark(target, comparison)
    page = comparison.write(target)
    if as_json:
        print(json.dumps(json.loads(storage.to_json(comparison.table.to_dict("records"))), indent=2))
    elif not quiet:
        Console().print(tables.of_report(comparison.summary), comparison.summary.caption, sep="\n", highlight=False)
        for words in comparison.words:
            Console().print(words, highlight=False)
        Console(soft_wrap=True).print(
            f"Page: {page}\nFigures: {target / 'figures'}\nTables: {target / 'tables'}", highlight=False
        )


def _are_folders(what: tuple[str, ...]) -> bool:
    """Whether run folders are meant; a mixture of folders and algorithms is refused."""
    kinds = {w: w not in CATALOG["algorithm"] and Path(w).exists() for w in what}
    if len(set(kinds.values())) > 1:
        folder = next(w for w, is_folder in kinds.items() if is_folder)
        other = next(w for w, is_folder in kinds.items() if not is_folder)
        raise InputError(
            f"{folder!r} is a folder but {other!r} is not: give algorithms to run, or folders of runs, not both"
        )
    for w, is_folder in kinds.items():
        if not is_folder and "/" in w:
            raise InputError(f"{w!r} does not exist: give folders of runs, or algorithms to run")
    return all(kinds.values())


def _refuse_settings(others: dict[str, Any], seeds: int, values: dict[str, Any]) -> None:
    given = [name for name, value in others.items() if value is not None]
    given += ["--seeds"] if seeds != 1 else []
    given += [f.spelling for f in options.FLAGS if values.get(f.key) is not None]
    if given:
        raise InputError(f"{given[0]} cannot be given with folders of runs: they keep their specifications")


def _target(out: Path | None, name: str) -> Path:
    target = out if out is not None else Path("runs") / f"compare-{name}"
    if not (target / MARK).exists():
        storage.refuse_existing(target)
    return target


def _mark(target: Path, comparison: Comparison | None) -> None:
    """Say, before the rest is written, that the folder is a comparison's; and when it is done, which runs are in it."""
    specs = [] if comparison is None else [r.spec for rs in comparison.methods.values() for r in rs]
    with storage.explained(target):
        target.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(target / MARK, storage.to_json({"runs": specs}))


def loaded(paths: list[Path]) -> Comparison:
    """A comparison of runs that were made before."""
    found = {str(folder): load(folder) for folder in comparing.run_folders(paths)}
    check_same_federation(found)
    methods = grouped(list(found.values()))
    return Comparison(methods, built_part(next(iter(found.values())), "data"), built_models(methods))


def _run(
    specs: dict[str, RunSpec], seeds: int, target: Path, workers: int | None, ray: str | None, quiet: bool
) -> Comparison:
    first = next(iter(specs.values()))
    federation, model = first.build_part("data"), first.build_part("model")
    for spec in specs.values():
        spec.check(spec.build_part("algorithm"), model, federation)
    methods = {name: comparing.with_seeds(spec, seeds) for name, spec in specs.items()}
    every = [spec for several in methods.values() for spec in several]
    if not (target / MARK).exists():
        _mark(target, None)
    kept = target / "runs"
    try:
        with progress.shown(quiet=quiet) as display:
            failures = comparing.carry_out(every, kept, workers=workers, ray=ray, say=display.say)
    except KeyboardInterrupt:
        raise Stopped(f"stopped; what is done is in {kept}, the same command goes on") from None
    results = comparing.results_of(methods, kept)
    if not results:
        raise InputError(f"no run came to its end, so there is nothing to compare: {failures[0]}")
    return Comparison(results, federation, dict.fromkeys(results, model), failures)
