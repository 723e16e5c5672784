"""What there is to run of the paper, by the names of experiments, tables and figures; and running it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbc import progress
from fedbc.errors import InputError, unknown
from fedbc.paper.catalogue import EXPERIMENTS
from fedbc.paper.drawing import Figure
from fedbc.paper.experiment import Experiment, Part
from fedbc.paper.gallery import FIGURES
from fedbc.paper.runner import Runner
from fedbc.paper.studies import STUDIES, Study
from fedbc.paper.tables import PLANS, TablePlan

SHOWN: dict[str, TablePlan | Figure] = {**PLANS, **FIGURES}
"""The paper's tables and figures by name."""


def run(
    names: Sequence[str],
    results: str | Path = "results",
    *,
    part: Part | None = None,
    workers: int | None = None,
    ray: str | None = None,
    quiet: bool = False,
) -> list[str]:
    """Run experiments, or those of tables and figures; the names of what was run are returned.

    names: of `fedbc paper list`; all of it if there is none.
    results: the folder of results, hyper-parameters and unfinished runs; what it holds is not run again.
    part: which runs are meant, if not all of the budget's.
    workers, ray, quiet: as in `fedbc.sweep`.
    """
    folder, chosen = Path(results), select(names, part)
    runner = Runner(folder, workers=workers, ray=ray)
    with progress.shown(quiet=quiet) as display:
        for one in chosen:
            if isinstance(one, Study):
                one.run(folder / one.file, display.count)
            else:
                runner.run(one, part, say=display.say)
    return [one.name for one in chosen]


def choose(
    groups: Sequence[str],
    results: str | Path = "results",
    *,
    methods: Sequence[str] = (),
    workers: int | None = None,
    ray: str | None = None,
    quiet: bool = False,
) -> None:
    """Choose the hyper-parameters of tuning groups on validation data, such as those of `synthetic-e5`.

    Choices that are there stay until all of a group's new ones are made.

    methods: only these methods' hyper-parameters, and those that they are searched next to.
    results, workers, ray, quiet: as in `run`.
    """
    runner = Runner(Path(results), workers=workers, ray=ray)
    with progress.shown(quiet=quiet) as display:
        for group in groups:
            runner.choose(group, methods, say=display.say)


def select(names: Sequence[str] = (), part: Part | None = None) -> list[Study | Experiment]:
    """The experiments of these names, and those of tables and figures; all, in the order of their worth, if none."""
    known: dict[str, Study | Experiment] = {**STUDIES, **EXPERIMENTS}
    # A name that both have is the experiment's.
    made_of = {name: one.needs for name, one in SHOWN.items()} | {name: (name,) for name in known}
    for name in names:
        if name not in made_of:
            raise unknown("experiment", name, made_of)
    wanted = dict.fromkeys(needed for name in names for needed in made_of[name])
    found = [known[name] for name in wanted] or list(known.values())
    experiments = [e for e in found if isinstance(e, Experiment)]
    for key in part.methods if part is not None else ():
        if not any(key in e.methods for e in experiments):
            have = "; ".join(f"{e.name} has {', '.join(e.methods)}" for e in experiments)
            raise InputError(f"method={key!r} is not run there: {have or 'studies have no methods'}")
    return found
