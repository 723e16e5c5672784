"""`fedbc paper`: the FedBC paper's tables and figures, reproduced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fedbc import drawing, paper, progress
from fedbc.cli import options
from fedbc.cli.ending import stopping
from fedbc.errors import InputError
from fedbc.paper import EXPERIMENTS, SHOWN, STUDIES, Experiment, Part, Runner, Study, method

RESULTS = Path("results")

_results = click.option(
    "--results", "folder", type=click.Path(path_type=Path), default=RESULTS, show_default=True,
    help="Folder of results, hyper-parameters and unfinished runs.",
)  # fmt: skip


def _of_a_part(command: Callable[..., None]) -> Callable[..., None]:
    """A command's options that say which runs are meant; it takes them as `part`."""

    @click.option("--full", is_flag=True, help="Also what the two-core budget leaves out.")
    @click.option("--seeds", type=click.IntRange(1), help="Only so many seeds, for a first look.")
    @click.option("--settings", type=click.IntRange(1), help="Only so many settings of an experiment, likewise.")
    @click.option(
        "--method", "methods", multiple=True, metavar="KEY",
        help="Only this method, such as fedbc or fedavg-uniform; may be given more than once.",
    )  # fmt: skip
    @functools.wraps(command)
    def with_part(
        *, full: bool, seeds: int | None, settings: int | None, methods: tuple[str, ...], **others: Any
    ) -> None:
        for key in methods:
            method(key)  # an unknown one is refused
        command(part=Part(full, seeds, settings, methods), **others)

    return with_part


@click.group("paper", short_help="Reproduce the FedBC paper's tables and figures.")
def paper_group() -> None:
    """Reproduce the FedBC paper's tables and figures, beside its own numbers."""


@paper_group.command("list")
def list_command() -> None:
    """List the experiments, in the order in which they are worth running, and the tables and figures made of them."""
    table = Table(header_style="bold", pad_edge=False)
    for heading in ("experiment", "what", "runs", "with --full"):
        table.add_column(heading, justify="right" if heading in ("runs", "with --full") else "left")
    for s in STUDIES.values():
        table.add_row(s.name, s.title, str(s.total), str(s.total))
    for e in EXPERIMENTS.values():
        table.add_row(e.name, e.title, str(len(e.runs({}))), str(len(e.runs({}, Part(full=True)))))
    made = Table("table or figure", "what", "made of", header_style="bold", pad_edge=False)
    for one in SHOWN.values():
        made.add_row(one.name, f"{one.kind}. {one.title}", ", ".join(one.needs))
    Console().print(table, made)


@paper_group.command("run")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="Every experiment, one after the other.")
@_of_a_part
@click.option("--workers", type=click.IntRange(1), help="Worker processes; one per core if not given.")
@options.ray
@_results
def run_command(
    names: tuple[str, ...], everything: bool, part: Part, workers: int | None, ray: str | None, folder: Path
) -> None:
    """Run the experiments NAME, or those of a table or figure NAME (see `fedbc paper list`).

    What the results folder holds already is not run again. Hyper-parameters are chosen first where they have not been.
    Ctrl-C at any moment; the same command goes on.
    """
    if bool(names) == everything:
        raise InputError("name is missing: give names of `fedbc paper list`, or --all, and not both")
    with stopping(folder):
        done = ", ".join(paper.run(names, folder, part=part, workers=workers, ray=ray))
    command = "fedbc paper report" + ("" if folder == RESULTS else f" --results {folder}")
    Console(soft_wrap=True).print(f"Done: {done}. The report of all that was run: {command}", highlight=False)


@paper_group.command("choose")
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@click.option(
    "--method", "methods", multiple=True, metavar="KEY", help="Only this method's; may be given more than once."
)
@click.option("--workers", type=click.IntRange(1), help="Worker processes; one per core if not given.")
@options.ray
@_results
def choose_command(
    groups: tuple[str, ...], methods: tuple[str, ...], workers: int | None, ray: str | None, folder: Path
) -> None:
    """Choose the hyper-parameters of GROUP (such as synthetic-e5, see `fedbc paper status`) on validation data.

    Choices that are there stay in force until all of a group's new ones are made; then `fedbc paper run` runs the cells
    anew whose hyper-parameters have changed. Ctrl-C at any moment; the same command goes on.
    """
    for key in methods:
        method(key)  # an unknown one is refused
    with stopping(folder):
        paper.choose(groups, folder, methods=methods, workers=workers, ray=ray)
    Console(soft_wrap=True).print(f"Chosen: {', '.join(groups)}. What to run anew: fedbc paper status", highlight=False)


@paper_group.command("status")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_of_a_part
@click.option("--workers", type=click.IntRange(1), help="Worker processes to estimate the time for.")
@_results
def status_command(names: tuple[str, ...], part: Part, workers: int | None, folder: Path) -> None:
    """Show how many runs of each experiment are done, and about how long the rest takes on this machine."""
    runner = Runner(folder, workers=workers)
    wanted = paper.select(names, part)
    table = Table(header_style="bold", pad_edge=False)
    for heading in ("experiment", "what", "done", "of", "time left"):
        table.add_column(heading, justify="left" if heading in ("experiment", "what") else "right")
    total = 0.0
    for study in (s for s in wanted if isinstance(s, Study)):
        done = study.done(folder)
        minutes = study.minutes * (1 - done / study.total)
        total += minutes
        table.add_row(study.name, study.title, str(done), str(study.total), _time(minutes))
    experiments = [e.name for e in wanted if isinstance(e, Experiment)]
    for row in runner.status(experiments, part):
        minutes = row.core_minutes_left / runner.workers
        total += minutes
        table.add_row(row.name, row.title, str(row.done), str(row.total), _time(minutes))
    Console().print(table)
    left = f"About {_time(total)} left with {runner.workers} workers." if total else "Nothing is left to run."
    Console().print(left, highlight=False)


@paper_group.command("report")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="The page to write; it needs no other file.  [default: report.html in the results folder]",
)
@click.option(
    "--markdown",
    type=click.Path(path_type=Path),
    help="The Markdown page to write; its pictures go to a folder beside it.  [default: paper.md in the "
    "results folder]",
)
@_results
def report_command(html: Path | None, markdown: Path | None, folder: Path) -> None:
    """Write the report from what has been run: tables, figures and a verdict on each claim."""
    drawing.need()
    html, markdown = paper.write_report(folder, html=html, markdown=markdown)
    Console(soft_wrap=True).print(f"Report: {html}\nMarkdown: {markdown}", highlight=False)


def _time(minutes: float) -> str:
    return progress.duration(60 * minutes) if minutes else "–"
