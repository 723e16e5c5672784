"""`fedbc paper`: the FedBC paper's tables and figures, reproduced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fedbc import progress, storage
from fedbc.cli.errors import Stopped
from fedbc.errors import InputError, unknown
from fedbc.paper.catalogue import EXPERIMENTS, Experiment, Part
from fedbc.paper.drawing import Figure
from fedbc.paper.gallery import FIGURES
from fedbc.paper.methods import method
from fedbc.paper.runner import Runner
from fedbc.paper.studies import STUDIES, Study
from fedbc.paper.tables import PLANS, Plan

SHOWN: dict[str, Plan | Figure] = {**PLANS, **FIGURES}
"""The paper's tables and figures by name."""

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
        kind = "Figure" if isinstance(one, Figure) else "Table"
        made.add_row(one.name, f"{kind}. {one.title}", ", ".join(one.needs))
    Console().print(table, made)


@paper_group.command("run")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="Every experiment, one after the other.")
@_of_a_part
@click.option("--workers", type=click.IntRange(1), help="Worker processes; one a core if not given.")
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster instead; `local` starts Ray on this machine.")
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
    chosen = _named(names, part)
    runner = Runner(folder, workers=workers, ray=ray)
    with progress.shown() as display:
        try:
            for e in chosen:
                if isinstance(e, Study):
                    e.run(folder / e.file, display.count)
                    continue
                runner.run(e, part, say=display.say)
        except KeyboardInterrupt:
            raise Stopped(f"stopped; what is done is in {folder}, the same command goes on") from None
    done = ", ".join(e.name for e in chosen)
    command = "fedbc paper report" + ("" if folder == RESULTS else f" --results {folder}")
    Console(soft_wrap=True).print(f"Done: {done}. The report of all that was run: {command}", highlight=False)


@paper_group.command("status")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_of_a_part
@click.option("--workers", type=click.IntRange(1), help="Worker processes to estimate the time for.")
@_results
def status_command(names: tuple[str, ...], part: Part, workers: int | None, folder: Path) -> None:
    """Show how many runs of each experiment are done, and about how long the rest takes on this machine."""
    runner = Runner(folder, workers=workers)
    wanted = _named(names, part)
    table = Table(header_style="bold", pad_edge=False)
    for heading in ("experiment", "what", "done", "of", "time left"):
        table.add_column(heading, justify="left" if heading in ("experiment", "what") else "right")
    total = 0.0
    for study in (s for s in wanted if isinstance(s, Study)):
        done = study.done(folder)
        minutes = study.minutes * (1 - done / study.total)
        total += minutes
        table.add_row(study.name, study.title, str(done), str(study.total), duration(minutes))
    experiments = [e.name for e in wanted if isinstance(e, Experiment)]
    for row in runner.status(experiments, part):
        minutes = row.core_minutes_left / runner.workers
        total += minutes
        table.add_row(row.name, row.title, str(row.done), str(row.total), duration(minutes))
    Console().print(table)
    left = f"About {duration(total)} left with {runner.workers} workers." if total else "Nothing is left to run."
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
    help="The Markdown page to write; its pictures go to a folder beside it.  [default: docs/paper.md, or paper.md in "
    "the results folder if that was given]",
)
@_results
def report_command(html: Path | None, markdown: Path | None, folder: Path) -> None:
    """Write the report from what has been run: tables, figures and a verdict on each claim."""
    from fedbc.paper.report import Report  # Matplotlib and Jinja take a second to import

    report = Report.of(folder)
    if not report.found.anything:
        raise InputError(f"nothing was run in {folder}: fedbc paper run NAME comes first (fedbc paper list has names)")
    html = html or folder / "report.html"
    markdown = markdown or (Path("docs/paper.md") if folder == RESULTS else folder / "paper.md")
    for path in (html, markdown):
        path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(html, report.html())
    report.write_markdown(markdown)
    Console(soft_wrap=True).print(f"Report: {html}\nMarkdown: {markdown}", highlight=False)


def _named(names: tuple[str, ...], part: Part) -> list[Study | Experiment]:
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
    for key in part.methods:
        if not any(key in e.methods for e in experiments):
            have = "; ".join(f"{e.name} has {', '.join(e.methods)}" for e in experiments)
            raise InputError(f"method={key!r} is not run there: {have or 'studies have no methods'}")
    return found


def duration(minutes: float) -> str:
    """Minutes as people say them."""
    if minutes == 0:
        return "–"
    if minutes < 1:
        return "< 1 min"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
