"""`fedbc tune`: a method's hyper-parameters, chosen on validation data by the paper's grids or Optuna's samplers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc import progress
from fedbc.cli import options
from fedbc.cli.errors import Stopped
from fedbc.cli.run import specifications
from fedbc.cli.tables import of_report
from fedbc.errors import InputError, unknown
from fedbc.experiments.catalog import CATALOG, entry
from fedbc.experiments.spec import RunSpec
from fedbc.experiments.workers import Line
from fedbc.paper.methods import METHODS
from fedbc.selection import spaces, tuning
from fedbc.selection.calibration import measured_sparely
from fedbc.selection.final import chosen_on, score_on_test, write_choice
from fedbc.selection.study import GRID, PRUNERS, SAMPLERS, Plan, library


@click.command(
    "tune",
    cls=options.GroupedCommand,
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
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1), help="Seeds a trial, from --seed on.")
@options.selection
@options.problem
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder; runs/tune-ALGORITHM-DATA if not given. One that was begun goes on.",
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes; one a core if not given.")
@click.option("--best", default=10, show_default=True, help="How many of the best trials to show.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
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
    library()
    (base,) = specifications((algorithm,), data_name, model_name, config, values).values()
    plan = _plan(base, grid, sampler, trials, searches, score, pruner, seeds, validation)
    about = _checked(plan, validation)
    folder = out or Path("runs") / f"tune-{algorithm}-{base.data['name']}"
    plan.write(folder)
    _carried_out(plan, folder, workers, quiet)
    outcome = tuning.outcome(plan, folder)
    from fedbc.selection import tuning_report as report

    chosen = plan.spec(outcome.best, plan.seeds[0])
    final = replace(chosen, run=base.run)
    words = report.sentences(plan, outcome)
    toml = write_choice(folder / "best.toml", final, "\n".join(words))
    if test:
        tested = score_on_test(chosen, plan.seeds, tuple(plan.score), folder / "test.jsonl", workers=workers).sentence()
        words, about = [*words, tested], [*about, tested]
    html = report.write(report.page(plan, outcome, final, about), folder)
    if not quiet:
        Console().print(of_report(report.trials_table(plan, outcome, best)))
        for sentence in words:
            Console().print(sentence, highlight=False, markup=False)
        lines = f"Report: {html}\nRun it: fedbc run --config {toml}"
        Console(soft_wrap=True).print(lines, highlight=False, markup=False)


def _plan(
    base: RunSpec,
    grid: str | None,
    sampler: str | None,
    trials: int | None,
    searches: tuple[str, ...],
    score: str | None,
    pruner: str,
    seeds: int,
    validation: float,
) -> Plan:
    name = str(base.algorithm["name"])
    kind, paper = entry("algorithm", name), spaces.paper_method(name)
    fixed = {k: v for k, v in base.algorithm.items() if k != "name"}
    searched = [spaces.parse(text, kind) for text in searches]
    for dimension in searched:
        if dimension.name in fixed:
            raise InputError(
                f"search={str(dimension)!r} and a fixed {dimension.name} were given: leave one of them out"
            )
    if grid is not None and sampler is not None:
        raise InputError("--grid and --sampler cannot both be given")
    if grid not in (None, "paper", "own"):
        raise unknown("grid", grid, ["paper", "own"])
    if grid == "paper" and paper is None:
        have = ", ".join(k for k in METHODS if spaces.paper_method(k) and k in CATALOG["algorithm"])
        raise InputError(f"grid='paper' is not accepted for {name}: the paper has grids for {have}")
    if sampler is None and (grid is not None or paper is not None):
        method = paper if grid != "own" else None
        space = spaces.grid_of(method.grid if method else {}, searched, fixed)
        if trials is not None:
            raise InputError(f"trials={trials} is not accepted for a grid, which has its points: give a --sampler")
        if method is not None:
            base = replace(base, algorithm={**method.fixed, **base.algorithm})
        how, count = GRID, len(spaces.points(space))
    else:
        how, count = sampler or "tpe", trials or 30
        space = spaces.ranges_of(kind, searched, fixed)
    if not space:
        raise InputError("there is nothing to search: every hyper-parameter is fixed, give --search")
    first = int(base.run.get("seed", 0))
    run = measured_sparely(base.run) | {"validation": validation}
    wanted = score or (paper.score.removesuffix("_accuracy") if paper is not None else "global")
    objective = tuning.score_of(wanted)
    return Plan(replace(base, run=run), space, objective, tuple(range(first, first + seeds)), how, pruner, count)


def _checked(plan: Plan, validation: float) -> list[str]:
    """Refuse what cannot be run before anything is; say what the choice is made on."""
    if plan.sampler not in (GRID, *SAMPLERS):
        raise unknown("sampler", plan.sampler, SAMPLERS)
    if plan.pruner not in PRUNERS:
        raise unknown("pruner", plan.pruner, PRUNERS)
    ends = [{n: d.values[i] if d.values else (d.low, d.high)[i] for n, d in plan.space.items()} for i in (0, -1)]
    federation, model = plan.base.build_part("data"), plan.base.build_part("model")
    for point in ends:
        point = {n: int(v) if plan.space[n].whole else v for n, v in point.items()}  # type: ignore[arg-type]
        spec = plan.spec(point, plan.seeds[0])
        algorithm = spec.build_part("algorithm")
        spec.check(algorithm, model, federation)
        adapts = algorithm.fine_tune() is not None or spec.run.get("fine_tune") is not None
        if "finetuned_accuracy" in plan.score and not adapts:
            raise InputError(f"score='finetuned' is not accepted for {algorithm.name}: give --fine-tune, too")
    return [chosen_on(federation, model, validation, len(plan.seeds))]


def _carried_out(plan: Plan, folder: Path, workers: int | None, quiet: bool) -> None:
    with progress.shown(quiet=quiet) as display:

        def on_line(line: Line) -> None:
            if "error" in line:
                display.say(f"{line['hash']}: {line['error']}")

        try:
            tuning.carry_out(plan, folder, workers=workers, on_line=on_line)
        except KeyboardInterrupt:
            raise Stopped(f"stopped; what is done is in {folder}, the same command goes on") from None
