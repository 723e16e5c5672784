"""From a specification to a recommended balance, in one call: what `fedbc calibrate` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedbc import checks, drawing, progress, storage
from fedbc.errors import InputError
from fedbc.runs import RunSpec
from fedbc.runs.many import tell_errors
from fedbc.selection.calibration import REFERENCES, STARTS, Calibration, Outcome, Setting, evaluate
from fedbc.selection.choice import weight_of
from fedbc.selection.final import chosen_on, score_on_test, write_choice


@dataclass(frozen=True)
class Calibrated:
    """A calibration's outcome, and the files that tell it."""

    outcome: Outcome
    chosen: RunSpec
    """the recommended run"""
    words: list[str]
    """what is recommended and how sure that is, in plain words"""
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
    references: Mapping[str, RunSpec] | None = None,
    test: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    quiet: bool = False,
) -> Calibrated:
    """Sweep FedBC's tolerance gamma on validation data, and recommend a balance of global and local accuracy.

    base: the run to vary, one of FedBC's.
    out: the folder; runs/calibrate-DATA if not given. One that was begun goes on.
    prefer: "global", "local", "balanced", or the weight of global accuracy, from 0 to 1.
    tolerances: the gammas to try, numbers, math.inf or "learned"; from the drift of a run without constraint if not
        given.
    points: how many fixed tolerances, if they are not given.
    starts: where local training starts: "global" (z), "local" (x_i).
    seeds: how many seeds, from the base's on.
    validation: the share of each device's training data to choose on.
    references: methods to draw beside it, by the names to show; FedAvg, FedProx, Ditto, pFedMe and local-only training
        on the same data if not given.
    test: train the choice on all the training data and score it on the test sets, once.
    workers, ray, quiet: as in `fedbc.sweep`.
    """
    if base.algorithm["name"] != "fedbc":
        raise InputError(f"base is a run of {base.algorithm['name']}: only FedBC has a tolerance to calibrate")
    if base.run.get("pooled"):
        raise InputError("pooled = true cannot be calibrated: with one device there is nothing to balance")
    drawing.need()
    weight = weight_of(prefer)
    checks.integer("seeds", seeds, at_least=1)
    if references is None:
        references = {label: replace(base, algorithm={"name": name}) for name, label in REFERENCES.items()}
    plan = Calibration(
        base,
        references,
        tuple(range(base.seed, base.seed + seeds)),
        validation,
        None if tolerances is None else tuple(dict.fromkeys(tolerances)),
        points,
        tuple(dict.fromkeys(starts)),
    )
    about = _check(plan)
    folder = Path(out) if out is not None else Path("runs") / f"calibrate-{base.data['name']}"
    file = _take(folder)
    with progress.shown(quiet=quiet) as display:
        lines = plan.run(file, workers=workers, ray=ray, on_line=tell_errors(display))
        outcome = evaluate(plan, lines, weight)
        chosen = plan.spec(outcome.chosen, base.seed)
        from fedbc.selection import calibration_report as report  # what draws is not needed to say what is wrong

        words = report.sentences(outcome)
        final = replace(chosen, run=base.run)
        toml = write_choice(folder / "recommended.toml", final, "\n".join(words))
        if test:
            columns = ("global_accuracy", "local_accuracy")
            tested = score_on_test(chosen, plan.seeds, columns, folder / "test.jsonl", workers=workers).sentence()
            words, about = [*words, tested], [*about, tested]
    page = report.page(outcome, final, about).write_all(folder, "report.html")
    return Calibrated(outcome, final, words, page, toml)


def _check(plan: Calibration) -> list[str]:
    """Refuse what cannot be run before anything is; say what the choice is made on."""
    federation, model = plan.base.build_part("data"), plan.base.build_part("model")
    for spec in (plan.base, *plan.references.values()):
        plan.selecting(spec, plan.seeds[0]).check(spec.build_part("algorithm"), model, federation)
    for setting in (Setting(s, t) for s in plan.starts for t in plan.tolerances or ("learned",)):
        plan.spec(setting, 0).build_part("algorithm")
    return [chosen_on(federation, model, plan.validation, len(plan.seeds))]


def _take(folder: Path) -> Path:
    """The results file in a folder of ours, or in a new one."""
    file = folder / "results.jsonl"
    if not file.exists():
        storage.refuse_existing(folder)
        with storage.explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
    return file
