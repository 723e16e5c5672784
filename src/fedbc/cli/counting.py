"""A bar that counts the runs of a long command, where standard error is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedbc.experiments.sweep import Line, OnLine


@contextmanager
def counted(what: str, total: int, done: int, *, quiet: bool) -> Iterator[OnLine]:
    """Gives a function to be called with each line of results; errors are printed, unless quiet."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    hidden = quiet or not sys.stderr.isatty()
    with Progress(*columns, *left, console=Console(stderr=True), disable=hidden) as bar:
        task = bar.add_task(what, total=total, completed=done, note="")

        def on_line(line: Line) -> None:
            bar.advance(task)
            scores = line.get("summary", {})
            if "global_accuracy" in scores:
                bar.update(task, note=f"last global accuracy {100 * scores['global_accuracy']:.1f} %")
            if "error" in line and not quiet:
                bar.console.print(f"{line['hash']}: {line['error']}", highlight=False, soft_wrap=True, markup=False)

        yield on_line
