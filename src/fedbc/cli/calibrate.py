"""`fedbc calibrate`: the balance between global and local accuracy, swept, drawn and recommended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc.cli import options
from fedbc.cli.ending import stopping, tell
from fedbc.cli.explain import GroupedCommand
from fedbc.cli.run import specifications
from fedbc.cli.tables import of_report
from fedbc.errors import InputError
from fedbc.runs import RunSpec, read_toml
from fedbc.selection import REFERENCES, calibrate, calibration_tables

SWEPT = ("algorithm__tolerance", "algorithm__start", "run__validation", "run__pooled")
"""Options of a run that the sweep itself sets."""


@click.command(
    "calibrate",
    cls=GroupedCommand,
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
    f"[default {', '.join(REFERENCES)}]",
)
@options.selection
@options.problem
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder; runs/calibrate-DATA if not given. One that was begun goes on.",
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes; one per core if not given.")
@options.ray
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
    named, files = _references(references)
    specs = specifications(("fedbc", *named), data_name, model_name, config, values)
    base = specs.pop("fedbc")
    others = {REFERENCES.get(name, name): spec for name, spec in specs.items()}
    others |= {name: replace(base, algorithm=table) for name, table in files.items()}
    folder = out or Path("runs") / f"calibrate-{base.data_name}"
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
            references=others,
            test=test,
            workers=workers,
            ray=ray,
            quiet=quiet,
        )
    if not quiet:
        Console().print(*map(of_report, calibration_tables(calibrated)), sep="\n")
        tell(calibrated.words, calibrated.report, calibrated.recommended)


def _references(given: tuple[str, ...]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Methods by name, which take the command line's values, and [algorithm] tables from files."""
    if given == ("none",):
        return [], {}
    files = {}
    for path in (Path(g) for g in given if g.endswith(".toml")):
        table = read_toml(path).get("algorithm", {})
        files[path.stem] = dict(RunSpec(table).algorithm)
    return [g for g in given or REFERENCES if not g.endswith(".toml") and g != "fedbc"], files


def _tolerances(text: str | None) -> tuple[float | str, ...] | None:
    if text is None:
        return None
    try:
        found = [t if t == "learned" else float(t) for t in (part.strip() for part in text.split(","))]
    except ValueError:
        raise InputError(f"tolerances={text!r} is not accepted: give numbers, inf or learned, with commas") from None
    return tuple(found)
