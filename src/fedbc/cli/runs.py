"""`fedbc runs`: the runs of a folder in a short list, and their removal."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from fedbc import storage
from fedbc.cli import tables
from fedbc.runs import delete, list_runs

WIDE = 1000
"""So that no folder's name is cut, however narrow the terminal."""


@click.command("runs", short_help="A short list of runs; delete some.")
@click.argument("folder", default="runs", type=click.Path(path_type=Path))
@click.option("--delete", "doomed", is_flag=True, help="Remove the runs in FOLDER, nothing else; asks first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def runs_command(folder: Path, doomed: bool, yes: bool, as_json: bool) -> None:
    """List the runs in FOLDER (default runs): state, method, data, accuracy.

    \b
    fedbc runs
    fedbc runs runs/fedbc-synthetic-1 --delete
    """
    found = list_runs(folder)
    if doomed:
        if not yes:
            click.confirm(f"Remove {len(found)} runs in {folder}?", abort=True)
        for gone in delete(folder):
            print(f"removed {gone}")
    elif as_json:
        print(json.dumps(json.loads(storage.to_json(found.to_dict("records"))), indent=2))
    else:
        Console(width=WIDE, markup=False).print(tables.of_runs(found))
