"""`fedbc calibrate`: the balance between global and local accuracy, swept, drawn and recommended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc import progress, storage
from fedbc.cli import options
from fedbc.cli.errors import Stopped
from fedbc.cli.run import specifications
from fedbc.cli.tables import of_report
from fedbc.errors import InputError
from fedbc.experiments.spec import RunSpec, read_toml
from fedbc.experiments.workers import Line
from fedbc.selection import calibration as core
from fedbc.selection.choice import weight_of
from fedbc.selection.final import chosen_on, score_on_test, write_choice

SWEPT = ("algorithm__tolerance", "algorithm__start", "run__validation", "run__pooled")
"""Options of a run that the sweep itself sets."""


@click.command(
    "calibrate",
    cls=options.GroupedCommand,
    params=[flag.click_option() for flag in options.FLAGS if flag.key not in SWEPT],
    short_help="Find FedBC's balance of global and local accuracy.",
)
@click.option(
    "--prefer",
    default="balanced",
    show_default=True,
    metavar="global|local|balanced|WEIGHT",
    help="What to recommend for; a weight is that of global accuracy, from 0 to 1.",
)
@click.option(
    "--tolerances",
    metavar="LIST",
    help="gammas to try, such as 0.01,0.1,inf,learned; by default from the drift of a run without constraint.",
)
@click.option("--points", default=6, show_default=True, help="How many fixed tolerances, if --tolerances is not given.")
@click.option("--starts", default="global,local", show_default=True, help="Where local training starts: z, x_i.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="How many seeds, from --seed on.")
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="NAME|FILE",
    help="Method to draw beside it, or a TOML file with its [algorithm]; may be repeated; `none` for none. "
    f"[default {', '.join(core.REFERENCES)}]",
)
@options.selection
@options.problem
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder; runs/calibrate-DATA if not given. One that was begun goes on.",
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes; one a core if not given.")
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster instead; `local` starts Ray on this machine.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def calibrate_command(
    prefer: str,
    tolerances: str | None,
    points: int,
    starts: str,
    seeds: int,
    validation: float,
    references: tuple[str, ...],
    test: bool,
    data_name: str | None,
    model_name: str | None,
    config: Path | None,
    out: Path | None,
    workers: int | None,
    ray: str | None,
    quiet: bool,
    **values: Any,
) -> None:
    """Sweep FedBC's tolerance gamma on validation data, find the Pareto front between global and local accuracy, and
    recommend a setting. The test sets are not used, unless --test asks for the score of the choice.

    \b
    fedbc calibrate --rounds 200 --epochs 5 --sample 10 --momentum 0.5
    fedbc calibrate --data mnist --classes 2 --prefer 0.7 --tolerances 0.01,0.1,1,learned --seeds 5
    """
    weight = weight_of(prefer)
    named, files = _references(references)
    specs = specifications(("fedbc", *named), data_name, model_name, config, values)
    base = specs.pop("fedbc")
    if base.run.get("pooled"):
        raise InputError("pooled = true cannot be calibrated: with one device there is nothing to balance")
    others = {core.REFERENCES.get(name, name): spec for name, spec in specs.items()}
    others |= {name: replace(base, algorithm=table) for name, table in files.items()}
    first = int(base.run.get("seed", 0))
    plan = core.Calibration(
        base,
        others,
        tuple(range(first, first + seeds)),
        validation,
        _tolerances(tolerances),
        points,
        tuple(dict.fromkeys(starts.split(","))),
    )
    about = _checked(plan)
    folder = out or Path("runs") / f"calibrate-{base.data['name']}"
    _own(folder)
    file = folder / "results.jsonl"
    lines = _swept(plan, file, workers, ray, quiet)
    outcome = core.evaluate(plan, lines, weight)
    chosen = plan.spec(outcome.chosen, first)
    from fedbc.selection import calibration_report as report  # pandas and Jinja are not needed to say what is wrong

    words = report.sentences(outcome)
    toml = write_choice(folder / "recommended.toml", replace(chosen, run=base.run), "\n".join(words))
    if test:
        columns = ("global_accuracy", "local_accuracy")
        tested = score_on_test(chosen, plan.seeds, columns, folder / "test.jsonl", workers=workers).sentence()
        words, about = [*words, tested], [*about, tested]
    html = report.write(report.page(outcome, replace(chosen, run=base.run), about), folder)
    if not quiet:
        console = Console(soft_wrap=True)
        Console().print(*map(of_report, _tables(report, outcome)), sep="\n")
        for sentence in words:
            Console().print(sentence, highlight=False, markup=False)
        console.print(f"Report: {html}\nRun it: fedbc run --config {toml}", highlight=False, markup=False)


def _tables(report: Any, outcome: core.Outcome) -> list[Any]:
    found = [report.settings_table(outcome, brief=True)]
    return [*found, report.references_table(outcome)] if len(outcome.references) else found


def _references(given: tuple[str, ...]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Methods by name, which take the command line's values, and [algorithm] tables from files."""
    if given == ("none",):
        return [], {}
    files = {}
    for path in (Path(g) for g in given if g.endswith(".toml")):
        table = read_toml(path).get("algorithm", {})
        files[path.stem] = dict(RunSpec(table).algorithm)
    return [g for g in given or core.REFERENCES if not g.endswith(".toml") and g != "fedbc"], files


def _tolerances(text: str | None) -> tuple[float | str, ...] | None:
    if text is None:
        return None
    try:
        found = [t if t == "learned" else float(t) for t in (part.strip() for part in text.split(","))]
    except ValueError:
        raise InputError(f"tolerances={text!r} is not accepted: give numbers, inf or learned, with commas") from None
    return tuple(dict.fromkeys(found))


def _checked(plan: core.Calibration) -> list[str]:
    """Refuse what cannot be run before anything is; say what the choice is made on."""
    federation, model = plan.base.build_part("data"), plan.base.build_part("model")
    for spec in (plan.base, *plan.references.values()):
        plan.selecting(spec, plan.seeds[0]).check(spec.build_part("algorithm"), model, federation)
    for setting in (core.Setting(s, t) for s in plan.starts for t in plan.tolerances or ("learned",)):
        plan.spec(setting, 0).build_part("algorithm")
    return [chosen_on(federation, model, plan.validation, len(plan.seeds))]


def _own(folder: Path) -> None:
    """A folder of ours, or a new one."""
    if not (folder / "results.jsonl").exists():
        storage.refuse_existing(folder)
        with storage.explained(folder):
            folder.mkdir(parents=True, exist_ok=True)


def _swept(plan: core.Calibration, file: Path, workers: int | None, ray: str | None, quiet: bool) -> dict[str, Line]:
    with progress.shown(quiet=quiet) as display:

        def on_line(line: Line) -> None:
            if "error" in line:
                display.say(f"{line['hash']}: {line['error']}")

        try:
            return plan.run(file, workers=workers, ray=ray, on_line=on_line)
        except KeyboardInterrupt:
            raise Stopped(f"stopped; what is done is in {file.parent}, the same command goes on") from None
