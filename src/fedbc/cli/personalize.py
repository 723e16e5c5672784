"""`fedbc personalize`: the model that serves each device best, from a run's global model and the device's own data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedbc import drawing, storage
from fedbc.cli import options
from fedbc.cli.ending import stopping
from fedbc.cli.tables import of_report
from fedbc.errors import InputError
from fedbc.personalization import Personalized, personalize
from fedbc.reports import advice_page, advice_table
from fedbc.runs import RunFolder, RunSpec

PLACE = "personalized"
"""The folder within a run's folder."""


@click.command("personalize", short_help="Find the model that serves each device best.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--how",
    type=click.Choice(["auto", "solve", "walk"]),
    default="auto",
    show_default=True,
    help="Solve the constrained problem for a path of tolerances (small models), or walk it by descent (networks).",
)
@click.option("--accuracy", default=1e-4, show_default=True, help="To which the problems are solved (epsilon_i).")
@click.option("--epochs", default=10, show_default=True, help="The most epochs of a walk.")
@click.option("--patience", default=4, show_default=True, help="Epochs without gain that end a device's walk.")
@click.option("--lr", type=float, help="Rate of walks; the run's if not given.")
@click.option("--seed", type=click.IntRange(0), help="Draws folds and batches; the run's if not given.")
@options.quiet
@click.option("--json", "as_json", is_flag=True, help="Print the advice as JSON.")
def personalize_command(run: Path, quiet: bool, as_json: bool, **settings: Any) -> None:
    """Personalise the finished RUN: each device walks the path from the run's global model to a model of its own, and
    chooses on examples of its own that it held out. The test sets tell what it gained, and advise.

    \b
    fedbc run fedbc --rounds 200 --epochs 5 --sample 10 --momentum 0.5 --out runs/mine
    fedbc personalize runs/mine

    Models, advice.csv and a page with a chart come into RUN/personalized. A folder with several runs stands for all of
    them. After Ctrl-C or a crash the same command goes on.
    """
    folders = [f for f in (RunFolder.find(run) if run.is_dir() else []) if f.is_finished] or [RunFolder(run)]
    for folder in folders:
        personalized = _personalize(folder, run, settings, quiet=quiet or as_json)
        place = folder.path / PLACE
        page = "not drawn"
        try:
            drawing.need()
        except InputError as absent:
            page = f"not drawn ({absent})"
        else:
            page = str(advice_page({folder.path.name: personalized.advice}).write_all(place, "index.html"))
        if as_json:
            print(storage.to_json(personalized.advice.to_dict("records")), end="")
        elif not quiet:
            table = advice_table(personalized.advice, brief=True)
            Console(markup=False).print(of_report(table), table.caption, personalized.words, sep="\n", highlight=False)
            Console(soft_wrap=True, markup=False).print(f"Page: {page}\nModels: {place}", highlight=False)


def _personalize(folder: RunFolder, run: Path, settings: Mapping[str, Any], *, quiet: bool) -> Personalized:
    result = folder.read()
    spec = RunSpec.from_dict(result.spec)
    model, federation = spec.build_part("model"), spec.build_part("data")
    with stopping(run):
        work = folder.path / PLACE / "work"
        personalized = personalize(result, model, federation, **settings, checkpoint=work, quiet=quiet)
    personalized.save(folder.path / PLACE)
    return personalized
