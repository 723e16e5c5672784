"""How a command that makes choices ends: stopped, or with words and files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from fedbc.cli.errors import Stopped


@contextlib.contextmanager
def stopping(place: Path) -> Iterator[None]:
    """Ctrl-C ends a command with one line: what is done is kept."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"stopped; what is done is in {place}, the same command goes on") from None


def tell(words: Sequence[str], report: Path, config: Path) -> None:
    """Print what was found, and the files that hold it."""
    for sentence in words:
        Console().print(sentence, highlight=False, markup=False)
    lines = f"Report: {report}\nRun it: fedbc run --config {config}"
    Console(soft_wrap=True).print(lines, highlight=False, markup=False)
