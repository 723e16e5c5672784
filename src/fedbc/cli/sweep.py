"""`fedbc sweep`: a grid or a list of runs on all cores."""

from __future__ import annotations

import math
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from fedbc.cli import options, tracking
from fedbc.cli.ending import stopping
from fedbc.runs import Line, State, Sweep, flatten, state_of, sweep

ACCURACIES = {"global_accuracy": "global accuracy %", "local_accuracy": "local accuracy %"}
LOSSES = {"global_test_loss": "global test loss", "local_test_loss": "local test loss"}
ABSENT = "–"
"""Stands for an argument that a run's algorithm does not have."""


@click.command("sweep", short_help="Run a grid or a list of specifications on all cores.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Results file (.jsonl); beside FILE if not given.")
@options.workers
@options.ray
@click.option("--best", default=10, show_default=True, help="How many of the best runs to show.")
@tracking.options
@options.quiet
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
    wanted = tracking.Wanted.of_options(tensorboard, mlflow, wandb, wandb_project)
    wanted.check()
    results = out or file.with_suffix(".jsonl")
    with stopping(results):
        done = sweep(file, results, workers=workers, ray=ray, track=wanted.named, quiet=quiet)
    if not quiet:
        _show(done, best)
    done.raise_if_failed()


def _show(done: Sweep, best: int) -> None:
    good = [line for line in done.lines if state_of(line) is State.FINISHED]
    scored = any(not math.isnan(_score(line, "global_accuracy")) for line in good)
    # Where answers are quantities there is no accuracy: the smaller the loss, the better.
    shown = ACCURACIES if scored else LOSSES
    first = next(iter(shown))
    good.sort(key=lambda line: _last_if_nan(-_score(line, first) if scored else _score(line, first)))
    table = Table(header_style="bold", pad_edge=False)
    for name in done.varied:
        table.add_column(name)
    for heading in (*shown.values(), "seconds"):
        table.add_column(heading, justify="right")
    for line in good[:best]:
        arguments = flatten(line["spec"])
        cells = [str(arguments.get(name, ABSENT)) for name in done.varied]
        scores = (_score(line, column) for column in shown)
        cells += [f"{100 * score:.2f}" if scored else f"{score:.4g}" for score in scores]
        table.add_row(*cells, f"{line['seconds']:.1f}")
    console = Console(soft_wrap=True, markup=False)
    console.print(table)
    failed = len(done.lines) - len(good)
    console.print(f"{len(good)} runs done, {failed} failed. Results: {done.results}", highlight=False)


def _score(line: Line, column: str) -> float:
    """Of a line's summary; what is not a number is a word there."""
    return float(line["summary"].get(column, math.nan))


def _last_if_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value
