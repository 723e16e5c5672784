"""`fedbc list`, `fedbc show` and `fedbc data show`: what there is, and what was done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from fedbc import storage
from fedbc.cli import options, tables
from fedbc.data.picture import picture
from fedbc.errors import InputError
from fedbc.experiments.catalog import CATALOG, entry
from fedbc.simulation.result import Result, load


@click.command("list", short_help="Algorithms, data sets and models, one line each.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_command(as_json: bool) -> None:
    """List the algorithms, data sets and models, with one line each."""
    if as_json:
        print(
            json.dumps(
                {kind: {n: e.summary for n, e in entries.items()} for kind, entries in CATALOG.items()}, indent=2
            )
        )
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for kind, entries in CATALOG.items():
        table.add_row(f"[bold]{kind}[/bold]", "")
        for e in entries.values():
            table.add_row(f"  {e.name}", e.summary)
    Console().print(table)


@click.command("show", short_help="The result of a run.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print specification and summary as JSON.")
def show_command(run: Path, as_json: bool) -> None:
    """Show a finished run, or all runs of a folder with several."""
    folders = [run]
    if run.is_dir() and not (run / "spec.json").exists():
        folders = sorted(p.parent for p in run.glob("*/spec.json")) or [run]
    results: dict[str, Result] = {folder.name: load(folder) for folder in folders}
    if as_json:
        shown = {name: {"spec": r.spec, "summary": r.summary()} for name, r in results.items()}
        print(storage.to_json(shown), end="")
        return
    console = Console()
    for name, result in results.items():
        console.print(f"[bold]{name}[/bold]")
        for part, values in result.spec.items():
            console.print(f"  {part:<10}" + ", ".join(f"{k} = {v}" for k, v in values.items()), highlight=False)
    console.print(tables.comparison(results))
    console.print(tables.explanation(results))


@click.group("data", short_help="Look at data sets.")
def data_group() -> None:
    """Look at data sets."""


@data_group.command(
    "show",
    cls=options.GroupedCommand,
    params=[flag.click_option() for flag in options.FLAGS if flag.part == "data"],
    short_help="The partition of a federation, as a table and a picture.",
)
@click.argument("name", default="synthetic")
@click.option("--out", type=click.Path(path_type=Path), help="PNG, SVG or PDF file for a picture of the partition.")
def show_data(name: str, out: Path | None, **values: Any) -> None:
    """Show how a data set is split over devices."""
    chosen = entry("data", name)
    options.refuse_unused(values, "data", [name])
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"out={str(out)!r} is not accepted: give a file that ends in .png, .svg or .pdf")
    federation = chosen.make(options.given(values, "data", name))
    sizes = federation.train.sizes + federation.test.sizes
    console = Console(soft_wrap=True)
    console.print(str(federation), highlight=False)
    smallest, median, largest = sizes.min(), int(np.median(sizes)), sizes.max()
    console.print(f"Examples a device: smallest {smallest}, median {median}, largest {largest}", highlight=False)
    if out is not None:
        storage.refuse_existing(out)
        picture(federation, out)
        console.print(f"Picture: {out}", highlight=False)
