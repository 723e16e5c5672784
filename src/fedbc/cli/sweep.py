"""`fedbc sweep`: a grid or a list of runs on all cores."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fedbc import progress
from fedbc.cli import tracking
from fedbc.cli.errors import Stopped
from fedbc.errors import InputError
from fedbc.experiments import sweep

ABSENT = "–"
"""Stands for an argument that a run's algorithm does not have."""


@click.command("sweep", short_help="Run a grid or a list of specifications on all cores.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Results file (.jsonl); beside FILE if not given.")
@click.option("--workers", type=int, help="Worker processes; one a core if not given.")
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster instead; `local` starts Ray on this machine.")
@click.option("--best", default=10, show_default=True, help="How many of the best runs to show.")
@tracking.options
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def sweep_command(
    file: Path,
    out: Path | None,
    workers: int | None,
    ray: str | None,
    best: int,
    quiet: bool,
    tensorboard: Path | None,
    mlflow: str | None,
    wandb: bool,
    wandb_project: str | None,
) -> None:
    """Run the specifications of FILE (TOML); what the results file holds already is not run again, but for failures.

    \b
    [run]
    rounds = 200
    [[sweep]]
    algorithm = { name = "fedbc", momentum = 0.5 }
    [sweep.grid]
    "algorithm.lr" = [0.001, 0.01, 0.1]
    "run.seed" = [0, 1, 2]
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} is not accepted: give a whole number >= 1")
    specs = sweep.read_sweep(file)
    wanted = tracking.Wanted.of_options(tensorboard, mlflow, wandb, wandb_project)
    wanted.check()
    how = functools.partial(sweep.carry_out, track=wanted.named)
    results = out or file.with_suffix(".jsonl")
    hashes = [sweep.fingerprint(spec) for spec in specs]
    with progress.shown(quiet=quiet) as display:

        def on_line(line: dict[str, Any]) -> None:
            if "error" in line:
                display.say(f"{line['hash']}: {line['error']}")

        try:
            sweep.run_sweep(specs, results, workers=workers, ray=ray, on_line=on_line, how=how)
        except KeyboardInterrupt:
            raise Stopped(f"stopped; what is done is in {results}, the same command goes on") from None
    found = sweep.read_results(results)
    lines = [found[h] for h in hashes]
    if not quiet:
        _show(lines, best, results)
    sweep.raise_if_failed(lines, results, "runs")


def _show(lines: list[dict[str, Any]], best: int, results: Path) -> None:
    good = sorted((r for r in lines if "summary" in r), key=lambda r: -r["summary"].get("global_accuracy", 0))
    varied = _varied(lines)
    table = Table(header_style="bold", pad_edge=False)
    for name in varied:
        table.add_column(name)
    for heading in ("global accuracy %", "local accuracy %", "seconds"):
        table.add_column(heading, justify="right")
    for line in good[:best]:
        cells = [str(_value(line, name)) for name in varied]
        scores = (line["summary"].get(f"{kind}_accuracy", float("nan")) for kind in ("global", "local"))
        table.add_row(*cells, *(f"{100 * s:.2f}" for s in scores), f"{line['seconds']:.1f}")
    console = Console(soft_wrap=True)
    console.print(table)
    failed = sum("error" in r for r in lines)
    console.print(f"{len(good)} runs done, {failed} failed. Results: {results}", highlight=False)


def _varied(lines: list[dict[str, Any]]) -> list[str]:
    """The arguments in which runs that have them differ."""
    names = list(dict.fromkeys(f"{part}.{key}" for r in lines for part, table in r["spec"].items() for key in table))
    return [name for name in names if len({str(_value(r, name)) for r in lines} - {ABSENT}) > 1]


def _value(line: dict[str, Any], name: str) -> Any:
    part, key = name.split(".", 1)
    return line["spec"][part].get(key, ABSENT)
