"""`fedbc compare`: several methods on one federation, side by side, on the terminal and as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc import drawing, storage
from fedbc.cli import options, tables
from fedbc.cli.ending import stopping
from fedbc.cli.explain import GroupedCommand
from fedbc.cli.run import specifications
from fedbc.errors import InputError
from fedbc.personalization import sentence
from fedbc.reports import advice_table, compare, is_comparison, run_comparison
from fedbc.runs import CATALOG, RunFolder, usual_folder
from fedbc.selection import CONTROLS, with_tuning


@click.command(
    "compare",
    cls=GroupedCommand,
    params=[flag.click_option() for flag in options.FLAGS],
    short_help="Compare methods on a federation: a table, a page, figures.",
)
@click.argument("what", nargs=-1, required=True, metavar="ALGORITHM... | RUN...")
@click.option(
    "--seeds",
    default=1,
    show_default=True,
    help="Seeds per method, from --seed on.",
)
@click.option(
    "--splits",
    default=1,
    show_default=True,
    help="Repeat with so many divisions of each device's examples into training and test sets.",
)
@options.problem
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the page and all else; below runs/, named after the methods, if not given. A comparison that is "
    "there is renewed, and its finished runs are used again.",
)
@click.option(
    "--personalize",
    "personal",
    is_flag=True,
    help="Find for each device the model that serves it best, from each run's global model, and advise.",
)
@click.option(
    "--controls",
    is_flag=True,
    help=f"Add what local accuracy should be seen beside: {', '.join(CONTROLS)}, and FedAvg's z fine-tuned.",
)
@options.metrics
@options.workers
@options.ray
@click.option("--any-rounds", is_flag=True, help="Compare RUN folders of unequal length, too.")
@options.quiet
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def compare_command(
    what: tuple[str, ...],
    seeds: int,
    splits: int,
    data_name: str | None,
    model_name: str | None,
    config: Path | None,
    out: Path | None,
    personal: bool,
    controls: bool,
    metrics: str | None,
    workers: int | None,
    ray: str | None,
    any_rounds: bool,
    quiet: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Run ALGORITHMs on one federation, or load RUN folders, and show them side by side.

    \b
    fedbc compare fedbc fedavg ditto --seeds 3 --rounds 200 --epochs 5 --sample 10 --momentum 0.5
    fedbc compare fedbc fedprox --data mnist --classes 2 --seeds 5 --out mnist
    fedbc compare runs/fedbc-synthetic-1 runs/fedavg-synthetic-1

    A folder with several runs stands for all of them; runs that differ in nothing but seed and split are one
    method.
    """
    drawing.need()  # before anything is run
    wanted = options.listed(metrics)
    if _are_folders(what):
        others = {"--data": data_name, "--model": model_name, "--config": config, "--workers": workers, "--ray": ray}
        if controls:
            raise InputError("--controls cannot be given with folders of runs: they were run already")
        _refuse_settings(others, {"--seeds": seeds, "--splits": splits}, values)
        target = _target(out or usual_folder("compare", *dict.fromkeys(Path(w).name for w in what)))
        comparison = compare([folder.path for folder in _run_folders(what)], any_rounds=any_rounds, metrics=wanted)
    else:
        specs = specifications((*what, *CONTROLS) if controls else what, data_name, model_name, config, values)
        if controls:
            specs = {name: with_tuning(spec) for name, spec in specs.items()}
        target = _target(out or usual_folder("compare", *specs, next(iter(specs.values())).data_name))
        with stopping(target / "runs"):
            comparison = run_comparison(
                specs,
                target,
                seeds=seeds,
                splits=splits,
                metrics=wanted,
                workers=workers,
                ray=ray,
                quiet=quiet or as_json,
            )
    if personal:
        with stopping(target):
            comparison = comparison.personalized(target / "personal", quiet=quiet or as_json)
    page = comparison.write(target)
    if as_json:
        print(json.dumps(json.loads(storage.to_json(comparison.table.to_dict("records"))), indent=2))
    elif not quiet:
        Console(markup=False).print(
            tables.of_report(comparison.summary), comparison.summary.caption, sep="\n", highlight=False
        )
        if (table := comparison.metrics_table) is not None:
            Console(markup=False).print(tables.of_report(table), table.caption, sep="\n", highlight=False)
        for words in (*(f"Missing: {f}" for f in comparison.failures), *comparison.words):
            Console(markup=False).print(words, highlight=False)
        for name in comparison.personal:
            own = comparison.advice[comparison.advice["method"] == name]
            table = advice_table(own, brief=True)
            Console(markup=False).print(
                f"From the global model of {name}:", tables.of_report(table), sentence(own), sep="\n", highlight=False
            )
        Console(soft_wrap=True, markup=False).print(
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


def _refuse_settings(others: dict[str, Any], counts: dict[str, int], values: dict[str, Any]) -> None:
    given = [name for name, value in others.items() if value is not None]
    given += [name for name, count in counts.items() if count != 1]
    given += [f.spelling for f in options.FLAGS if values.get(f.key) is not None]
    if given:
        raise InputError(f"{given[0]} cannot be given with folders of runs: they keep their specifications")


def _target(target: Path) -> Path:
    if not is_comparison(target):
        storage.refuse_existing(target)
    return target


def _run_folders(what: tuple[str, ...]) -> list[RunFolder]:
    """The run folders that paths stand for: themselves, or those in them."""
    found: list[RunFolder] = []
    for path in map(Path, what):
        if not path.is_dir():
            raise InputError(f"{path} is not a folder with runs")
        within = [folder for folder in RunFolder.find(path) if folder.spec.exists()]
        if not within:
            raise InputError(f"{path} holds no runs: neither it nor a folder in it has a spec.json")
        found += [folder for folder in within if folder not in found]
    return found
