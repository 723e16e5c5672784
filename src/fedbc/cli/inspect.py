"""`fedbc list` and `fedbc data show`: what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from fedbc import storage
from fedbc.cli import options
from fedbc.cli.explain import GroupedCommand
from fedbc.data import Federation, class_counts, picture
from fedbc.errors import InputError
from fedbc.runs import CATALOG, OWN, entry


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


@click.group("data", short_help="Look at data sets.")
def data_group() -> None:
    """Look at data sets."""


@data_group.command(
    "show",
    cls=GroupedCommand,
    params=[flag.click_option() for flag in options.FLAGS if flag.part == "data"],
    short_help="The partition of a federation, as a table and a picture.",
)
@click.argument("name", default="synthetic")
@click.option("--out", type=click.Path(path_type=Path), help="PNG, SVG or PDF file for a picture of the partition.")
def show_data(name: str, out: Path | None, **values: Any) -> None:
    """Show how a data set, or your own file or folder, is split over devices."""
    named = options.named_data(name)
    options.refuse_unused(values, "data", [named["name"]])
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"out={str(out)!r} is not accepted: give a file that ends in .png, .svg or .pdf")
    said = {k: v for k, v in named.items() if k != "name"} | options.given(values, "data", named["name"])
    federation = entry("data", named["name"]).make(said)
    sizes = federation.train.sizes + federation.test.sizes
    console = Console(soft_wrap=True, markup=False)
    console.print(str(federation), highlight=False)
    smallest, median, largest = sizes.min(), int(np.median(sizes)), sizes.max()
    console.print(f"Examples per device: smallest {smallest}, median {median}, largest {largest}", highlight=False)
    if named["name"] == OWN:
        _tell_own(console, federation)
    if out is not None:
        storage.refuse_existing(out)
        picture(federation, out)
        console.print(f"Picture: {out}", highlight=False)


def _tell_own(console: Console, federation: Federation) -> None:
    """What was read from one's own files, so that a column taken for something else is noticed."""
    classes = federation.class_labels
    table = Table(header_style="bold", pad_edge=False)
    for heading in ("device", "training", "test", *classes):
        table.add_column(heading, justify="left" if heading == "device" else "right")
    counts = None
    if federation.classes is not None:
        counts = class_counts(federation.train, federation.classes) + class_counts(federation.test, federation.classes)
    for i, label in enumerate(federation.device_labels):
        cells = [federation.train.sizes[i], federation.test.sizes[i], *(counts[i] if counts is not None else ())]
        table.add_row(str(label), *map(str, cells))
    console.print(table)
    if federation.encoding is not None:
        told = f"Predicts {federation.encoding.label!r} from: {', '.join(federation.encoding.features)}"
        console.print(told, highlight=False)
