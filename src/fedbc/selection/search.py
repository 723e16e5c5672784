"""From a specification to tuned hyper-parameters, in one call: what `fedbc tune` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedbc import checks, drawing, progress
from fedbc.errors import InputError, unknown
from fedbc.runs import RunSpec, check_workers, entry, usual_folder
from fedbc.runs.many import tell_errors
from fedbc.selection import spaces, tuning
from fedbc.selection.calibration import measured_sparely
from fedbc.selection.final import chosen_on, score_on_test, write_choice
from fedbc.selection.grids import GRIDS
from fedbc.selection.study import GRID, PRUNERS, SAMPLERS, StudyPlan, library


@dataclass(frozen=True)
class Tuned:
    """A study's outcome, and the files that tell it."""

    plan: StudyPlan
    outcome: tuning.Findings
    chosen: RunSpec
    """the best run"""
    words: list[str]
    """what was found, in plain words"""
    report: Path
    """the page"""
    best: Path
    """a file for `fedbc run --config`"""


def tune(
    base: RunSpec,
    out: str | Path | None = None,
    *,
    search: Sequence[str] = (),
    grid: str | None = None,
    sampler: str | None = None,
    trials: int | None = None,
    score: str | None = None,
    pruner: str = "median",
    seeds: int = 1,
    validation: float = 0.2,
    test: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    quiet: bool = False,
) -> Tuned:
    """Choose a method's hyper-parameters by the mean of the last rounds on validation data held out from training.

    base: the run to tune; the hyper-parameters that its algorithm's table states are kept.
    out: the folder; runs/tune-ALGORITHM-DATA if not given. One that was begun goes on.
    search: where to search, such as "lr=1e-4..1:log", "inner_steps=1..10:int" or "momentum=0,0.5,0.9".
    grid: "paper" tries every point of the paper's grid (the default where a method has one), "own" every point of the
        lists in `search`.
    sampler: draws points by a sampler of Optuna's: tpe (the default for methods without a grid), random, cmaes or qmc.
    trials: how many points a sampler draws; 30 if not given.
    score: what is to be high: "global", "local", "finetuned", "balanced" or the weight of global accuracy; as in the
        paper for methods with a grid, global for others, if not given.
    pruner: ends hopeless trials: "median", "halving" or "none".
    seeds: seeds per trial, from the base's on.
    validation: the share of each device's training data to choose on.
    test: train the choice on all the training data and score it on the test sets, once.
    workers, ray, quiet: as in `fedbc.sweep`; machines of a cluster need to see the folder.
    """
    library()
    drawing.need()
    checks.integer("seeds", seeds, at_least=1)
    check_workers(workers)
    plan = _plan(base, grid, sampler, trials, search, score, pruner, seeds, validation)
    about = _check(plan, validation)
    name = str(base.algorithm["name"])
    folder = Path(out) if out is not None else usual_folder("tune", name, base.data_name)
    plan.write(folder)
    with progress.shown(quiet=quiet) as display:
        tuning.run_study(plan, folder, workers=workers, ray=ray, on_line=tell_errors(display))
        outcome = tuning.read_findings(plan, folder)
        from fedbc.selection import tuning_report as report  # what draws is not needed to say what is wrong

        chosen = plan.spec(outcome.best, plan.seeds[0])
        final = replace(chosen, run=base.run)
        words = report.sentences(plan, outcome)
        toml = write_choice(folder / "best.toml", final, "\n".join(words))
        if test:
            file = folder / "test.jsonl"
            tested = score_on_test(chosen, plan.seeds, {c: c for c in plan.score}, file, workers=workers).sentence()
            words, about = [*words, tested], [*about, tested]
    page = report.page(plan, outcome, final, about).write_all(folder, "report.html")
    return Tuned(plan, outcome, final, words, page, toml)


def _plan(
    base: RunSpec,
    grid: str | None,
    sampler: str | None,
    trials: int | None,
    searches: Sequence[str],
    score: str | None,
    pruner: str,
    seeds: int,
    validation: float,
) -> StudyPlan:
    name = str(base.algorithm["name"])
    kind, paper = entry("algorithm", name), GRIDS.get(name)
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
        raise InputError(f"grid='paper' is not accepted for {name}: the paper has grids for {', '.join(GRIDS)}")
    if sampler is None and (grid is not None or paper is not None):
        used = paper if grid != "own" else None
        space = spaces.grid_of(used.values if used else {}, searched, fixed)
        if trials is not None:
            raise InputError(f"trials={trials} is not accepted for a grid, which has its points: give a --sampler")
        if used is not None:
            base = replace(base, algorithm={**used.fixed, **base.algorithm})
        how, count = GRID, len(spaces.points(space))
    else:
        how, count = sampler or "tpe", trials or 30
        space = spaces.ranges_of(kind, searched, fixed)
    if not space:
        raise InputError("there is nothing to search: every hyper-parameter is fixed, give --search")
    first = base.seed
    run = measured_sparely(base.run) | {"validation": validation}
    wanted = score or (paper.score if paper is not None else "global")
    objective = tuning.score_of(wanted)
    return StudyPlan(replace(base, run=run), space, objective, tuple(range(first, first + seeds)), how, pruner, count)


def _check(plan: StudyPlan, validation: float) -> list[str]:
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
