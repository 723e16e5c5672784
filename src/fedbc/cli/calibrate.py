"""`fedbc calibrate`: the balance between global and local accuracy, swept, drawn and recommended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc import storage
from fedbc.cli import options
from fedbc.cli.ending import stopping, tell
from fedbc.cli.explain import GroupedCommand
from fedbc.cli.run import specifications
from fedbc.cli.tables import of_report
from fedbc.errors import InputError
from fedbc.runs import RunSpec, read_toml, usual_folder
from fedbc.selection import OTHERS, Calibrated, Gives, calibrate, calibration_tables

SWEPT = ("algorithm__tolerance", "algorithm__start", "run__validation", "run__pooled")
"""Options of a run that the sweep itself sets."""


@click.command(
    "calibrate",
    cls=GroupedCommand,
    params=[flag.click_option() for flag in options.FLAGS if flag.key not in SWEPT],
    short_help="Find a balance of global and local accuracy, and a method for it.",
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
    "--method",
    "methods",
    multiple=True,
    metavar="NAME|FILE",
    help="Method to choose from beside FedBC, or a TOML file with its [algorithm]; may be repeated; `none` for none. "
    f"[default {', '.join(OTHERS)}]",
)
@click.option(
    "--personalize/--no-personalize",
    "personal",
    default=True,
    help="Personalise the best z of each method on the devices, to choose from that, too. [default yes]",
)
@options.selection
@options.problem
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder; runs/calibrate-DATA if not given. One that was begun goes on.",
)
@options.workers
@options.ray
@options.quiet
@click.option("--json", "as_json", is_flag=True, help="Print candidates, devices and the recommendation as JSON.")
def calibrate_command(
    prefer: str,
    tolerances: str | None,
    points: int,
    starts: str,
    seeds: int,
    validation: float,
    methods: tuple[str, ...],
    personal: bool,
    test: bool,
    data_name: str | None,
    model_name: str | None,
    config: Path | None,
    out: Path | None,
    workers: int | None,
    ray: str | None,
    quiet: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Find a good balance of global and local accuracy on validation data: the Pareto front over FedBC's tolerances,
    other methods and personalisation, a recommendation, and what each device gets by it. The test sets are not used,
    unless --test asks for the score of the choice.

    \b
    fedbc calibrate --rounds 200 --epochs 5 --sample 10 --momentum 0.5
    fedbc calibrate --data mnist --classes 2 --prefer 0.7 --tolerances 0.01,0.1,1,learned --seeds 5
    """
    named, files = _methods(methods)
    specs = specifications(("fedbc", *named), data_name, model_name, config, values)
    base = specs.pop("fedbc")
    others = {OTHERS.get(name, name): spec for name, spec in specs.items()}
    others |= {name: replace(base, algorithm=table) for name, table in files.items()}
    folder = out or usual_folder("calibrate", base.data_name)
    with stopping(folder):
        calibrated = calibrate(
            base,
            folder,
            prefer=prefer,
            tolerances=_tolerances(tolerances),
            points=points,
            starts=starts.split(","),
            seeds=seeds,
            validation=validation,
            methods=others,
            personalize=personal,
            test=test,
            workers=workers,
            ray=ray,
            quiet=quiet or as_json,
        )
    if as_json:
        print(storage.to_json(_plain(calibrated)), end="")
    elif not quiet:
        Console(markup=False).print(*map(of_report, calibration_tables(calibrated)), sep="\n")
        tell(calibrated.words, calibrated.report, calibrated.recommended)
        if calibrated.gives is Gives.PERSONAL:
            Console(markup=False).print("Then, with the run's folder: fedbc personalize RUN", highlight=False)


def _plain(calibrated: Calibrated) -> dict[str, Any]:
    """For programs."""
    outcome = calibrated.outcome
    return {
        "recommended": outcome.best["candidate"],
        "gives": calibrated.gives,
        "words": calibrated.words,
        "spec": calibrated.chosen.to_dict(),
        "candidates": outcome.candidates.to_dict("records"),
        "devices": outcome.devices.to_dict("records"),
    }


def _methods(given: tuple[str, ...]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Methods by name, which take the command line's values, and [algorithm] tables from files."""
    if given == ("none",):
        return [], {}
    files = {}
    for path in (Path(g) for g in given if g.endswith(".toml")):
        table = read_toml(path).get("algorithm", {})
        files[path.stem] = dict(RunSpec(table).algorithm)
    return [g for g in given or OTHERS if not g.endswith(".toml") and g != "fedbc"], files


def _tolerances(text: str | None) -> tuple[float | str, ...] | None:
    if text is None:
        return None
    try:
        found = [t if t == "learned" else float(t) for t in (part.strip() for part in text.split(","))]
    except ValueError:
        raise InputError(f"tolerances={text!r} is not accepted: give numbers, inf or learned, with commas") from None
    return tuple(found)
