"""`fedbc tune`: a method's hyper-parameters, chosen on validation data by the paper's grids or Optuna's samplers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc.cli import options
from fedbc.cli.ending import stopping, tell
from fedbc.cli.explain import GroupedCommand
from fedbc.cli.run import specifications
from fedbc.cli.tables import of_report
from fedbc.runs import usual_folder
from fedbc.selection import PRUNERS, SAMPLERS, trials_table, tune


@click.command(
    "tune",
    cls=GroupedCommand,
    params=[flag.click_option() for flag in options.FLAGS if flag.key != "run__validation"],
    short_help="Choose a method's hyper-parameters on validation data.",
)
@click.argument("algorithm")
@click.option(
    "--grid",
    metavar="paper|own",
    help="Try every point of the paper's grid (default where a method has one), or of the lists that --search gives.",
)
@click.option(
    "--sampler",
    metavar="|".join(SAMPLERS),
    help="Draw points by a sampler of Optuna's. [default tpe, for methods without a grid]",
)
@click.option("--trials", type=click.IntRange(1), help="How many points a sampler draws. [default 30]")
@click.option(
    "--search",
    "searches",
    multiple=True,
    metavar="NAME=LOW..HIGH[:log][:int]|NAME=A,B",
    help="Where to search a hyper-parameter; may be repeated. What is given by its own option is kept.",
)
@click.option(
    "--score",
    metavar="global|local|finetuned|balanced|WEIGHT",
    help="What is to be high, as its mean over "
    "the last 20 rounds. [default global; as the paper for methods with a grid]",
)
@click.option("--pruner", default="median", show_default=True, metavar="|".join(PRUNERS), help="Ends hopeless trials.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1), help="Seeds per trial, from --seed on.")
@options.selection
@options.problem
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder; runs/tune-ALGORITHM-DATA if not given. One that was begun goes on.",
)
@options.workers
@options.ray
@click.option("--best", default=10, show_default=True, help="How many of the best trials to show.")
@options.quiet
def tune_command(
    algorithm: str,
    grid: str | None,
    sampler: str | None,
    trials: int | None,
    searches: tuple[str, ...],
    score: str | None,
    pruner: str,
    seeds: int,
    validation: float,
    test: bool,
    data_name: str | None,
    model_name: str | None,
    config: Path | None,
    out: Path | None,
    workers: int | None,
    ray: str | None,
    best: int,
    quiet: bool,
    **values: Any,
) -> None:
    """Choose ALGORITHM's hyper-parameters by the mean of the last rounds on validation data held out from training.

    \b
    fedbc tune fedbc --rounds 200 --epochs 5 --sample 10
    fedbc tune ditto --sampler tpe --trials 50 --search lr=1e-3..1:log --search momentum=0,0.5,0.9 --score local

    Ctrl-C at any moment; the same command goes on. More --trials make a study longer.
    """
    (base,) = specifications((algorithm,), data_name, model_name, config, values).values()
    folder = out or usual_folder("tune", algorithm, base.data_name)
    with stopping(folder):
        tuned = tune(
            base,
            folder,
            search=searches,
            grid=grid,
            sampler=sampler,
            trials=trials,
            score=score,
            pruner=pruner,
            seeds=seeds,
            validation=validation,
            test=test,
            workers=workers,
            ray=ray,
            quiet=quiet,
        )
    if not quiet:
        Console(markup=False).print(of_report(trials_table(tuned, best)))
        tell(tuned.words, tuned.report, tuned.best)
