"""From a specification to a recommended balance, in one call: what `fedbc calibrate` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedbc import checks, drawing, progress, storage
from fedbc.data.federation import Federation
from fedbc.data.validation import held_out_sizes
from fedbc.errors import InputError
from fedbc.models.base import Model
from fedbc.runs import RunSpec, check_workers, usual_folder
from fedbc.runs.many import tell_errors
from fedbc.selection import final, measured
from fedbc.selection.calibration import STARTS, Calibration, default_methods, work
from fedbc.selection.candidates import COLUMNS, Gives, Ranking, evaluate
from fedbc.selection.choice import weight_of


@dataclass(frozen=True)
class Calibrated:
    """A calibration's outcome, and the files that tell it."""

    outcome: Ranking
    chosen: RunSpec
    """the recommended run"""
    gives: Gives
    """which of its models each device gets; a personalised one needs `fedbc.personalize` after the run"""
    words: list[str]
    """what is recommended, what each device gets and how sure that is, in plain words"""
    report: Path
    """the page"""
    recommended: Path
    """a file for `fedbc run --config`"""


def calibrate(
    base: RunSpec,
    out: str | Path | None = None,
    *,
    prefer: str | float = "balanced",
    tolerances: Sequence[float | str] | None = None,
    points: int = 6,
    starts: Sequence[str] = tuple(STARTS),
    seeds: int = 3,
    validation: float = 0.2,
    methods: Mapping[str, RunSpec] | None = None,
    personalize: bool = True,
    test: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    quiet: bool = False,
) -> Calibrated:
    """Find a good balance of global and local accuracy on validation data, over FedBC's tolerance gamma, other methods
    and personalisation, and recommend one.

    base: the run to vary, one of FedBC's.
    out: the folder; runs/calibrate-DATA if not given. One that was begun goes on.
    prefer: "global", "local", "balanced", or the weight of global accuracy, from 0 to 1.
    tolerances: the gammas to try, numbers, math.inf or "learned"; from the drift of a run without constraint if not
        given.
    points: how many fixed tolerances, if they are not given.
    starts: where local training starts: "global" (z), "local" (x_i).
    seeds: how many seeds, from the base's on.
    validation: the share of each device's training data to choose on.
    methods: methods to choose from beside FedBC, by the names to show; FedAvg, FedProx, Ditto, pFedMe, Per-FedBC and
        local-only training on the same data, with the base's hyper-parameters, if not given.
    personalize: whether the best z of each method is personalised on the devices, and that can be chosen, too.
    test: train the choice on all the training data and score it on the test sets, once.
    workers, ray, quiet: as in `fedbc.sweep`.
    """
    if base.algorithm["name"] != "fedbc":
        raise InputError(f"base is a run of {base.algorithm['name']}: only FedBC has a tolerance to calibrate")
    if base.run.get("pooled"):
        raise InputError("pooled = true cannot be calibrated: with one device there is nothing to balance")
    if isinstance(base.run.get("unseen"), float):
        raise InputError("unseen as a share cannot be calibrated with, for each seed draws other devices: give a list")
    drawing.need()
    weight = weight_of(prefer)
    checks.integer("seeds", seeds, at_least=1)
    check_workers(workers)
    federation, model = base.build_part("data"), base.build_part("model")
    plan = Calibration(
        base,
        default_methods(base) if methods is None else methods,
        tuple(range(base.seed, base.seed + seeds)),
        validation,
        None if tolerances is None else tuple(dict.fromkeys(tolerances)),
        points,
        tuple(dict.fromkeys(starts)),
        personalize,
    )
    about = [final.chosen_on(federation, model, plan.validation, len(plan.seeds))]
    _check(plan, federation, model)
    folder = Path(out) if out is not None else usual_folder("calibrate", base.data_name)
    _take(folder)
    with progress.shown(quiet=quiet) as display:
        lines, personal = plan.run(folder, workers=workers, ray=ray, on_line=tell_errors(display))
        names, examples = _devices(plan, federation)
        outcome = evaluate(plan, lines, personal, weight, names, examples)
        chosen, gives = outcome.chosen.setting.spec, outcome.chosen.gives
        from fedbc.selection import calibration_report as report  # what draws is not needed to say what is wrong

        words = report.sentences(outcome)
        toml = final.write_choice(folder / "recommended.toml", chosen, "\n".join(words))
        if test:
            tested = _tested(plan, outcome, folder, workers).sentence()
            words, about = [*words, tested], [*about, tested]
    page = report.page(outcome, chosen, about).write_all(folder, "report.html")
    return Calibrated(outcome, chosen, gives, words, page, toml)


def _check(plan: Calibration, federation: Federation, model: Model) -> None:
    """Refuse what cannot be run before anything is."""
    base = plan.setting(plan.starts[0], "learned")
    for setting in (base, *plan.others()):
        plan.spec(setting, plan.seeds[0]).check(setting.spec.build_part("algorithm"), model, federation)
    for start in plan.starts:
        for tolerance in plan.tolerances or ():
            plan.setting(start, tolerance).spec.build_part("algorithm")


def _devices(plan: Calibration, federation: Federation) -> tuple[list[str], np.ndarray]:
    """The devices that take part, and how many validation examples each has."""
    part = measured.part_of(federation, plan.base.run)
    return [str(label) for label in part.device_labels], held_out_sizes(part, plan.validation)


def _tested(plan: Calibration, outcome: Ranking, folder: Path, workers: int | None) -> final.TestScore:
    """The choice, trained on all the training data, on the test sets."""
    gives = outcome.chosen.gives
    spec = plan.spec(outcome.chosen.setting, plan.seeds[0])
    file, models = folder / "test.jsonl", folder / "models"
    if gives is not Gives.PERSONAL:
        columns = {"global_accuracy": "global_accuracy", "local_accuracy": COLUMNS[gives]}
        return final.score_on_test(spec, plan.seeds, columns, file, workers=workers)
    columns = {"global_accuracy": "global_accuracy"}
    whole = final.score_on_test(spec, plan.seeds, columns, file, workers=workers, work=work(models))
    own = final.score_on_test(
        spec,
        plan.seeds,
        {"local_accuracy": COLUMNS[gives]},
        folder / "test-personal.jsonl",
        workers=workers,
        work=measured.personal_work(models),
    )
    return replace(whole, columns=whole.columns | own.columns)


def _take(folder: Path) -> None:
    """A folder of ours, or a new one."""
    if not (folder / "results.jsonl").exists():
        storage.refuse_existing(folder)
        with storage.explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
