"""What all pictures share: one palette, one running mean, one way to write a figure, and the libraries that draw.

Matplotlib, Altair, vl-convert and Jinja come with the extra `report`, and are imported when something is drawn.
"""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedbc import storage
from fedbc.errors import InputError, Notice

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
"""Okabe and Ito's palette, readable by the colour-blind."""
COLOURS_ON_DARK = ["#2B8FD0", *COLOURS[1:-1], "#F0F0F0"]
"""The same where its black would not be seen, and its blue hardly."""
MORE, MORE_ON_DARK = (
    [
        *("#882255", "#44AA99", "#999933", "#332288", "#AA4499", "#8C6D31", "#6B6E70"),
        *("#661100", "#117733", "#CC6677", "#88CCEE", "#DDCC77", "#5B3F8C"),
    ],
    [
        *("#D4608F", "#44AA99", "#B5B54A", "#8F86E0", "#C86BB8", "#BD9E39", "#A3A8AC"),
        *("#C8694F", "#3FA864", "#E58A98", "#88CCEE", "#DDCC77", "#A98BDB"),
    ],
)
"""For the other methods, and pages of many runs: after Tol's muted palette. All methods have a colour of their own."""
FIRST = ("fedbc", "fedavg")
"""The kinds that have the first colours; the others follow in their own order."""
INK, FAINT, GREY = "#1d2733", "#d8dee4", "#8a94a0"
"""Letters, lines of a grid, and marks that stand back."""

LIBRARIES = {"matplotlib": "Matplotlib", "altair": "Altair", "vl_convert": "vl-convert", "jinja2": "Jinja"}


def need(*names: str) -> ModuleType:
    """The first of these libraries that draw, or of all; an InputError says how to install what is not there."""
    for name in names or LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            raise InputError(f"drawing needs {LIBRARIES[name]}: pip install 'fedbc[report]'") from None
    return importlib.import_module(next(iter(names or LIBRARIES)))


def places(names: Sequence[str], kinds: Mapping[str, str], known: Sequence[str], room: int) -> dict[str, int]:
    """Which of `room` colours each name has: that of its kind, so that a method looks the same wherever it is drawn.

    kinds: what each name is one of; a name that is not there is one of its own.
    known: the kinds in the order of their colours.
    A name whose colour is taken has the next one that is free; when all are taken, they are given again.
    """
    home = {kind: place for place, kind in enumerate(dict.fromkeys((*FIRST, *known)))}
    found: dict[str, int] = {}
    # Those that have their kind's colour come first, lest another one takes it.
    for name in sorted(names, key=lambda n: kinds.get(n, n) not in home):
        taken = set(found.values()) if len(found) < room else set()
        first = home.get(kinds.get(name, name), len(found))
        found[name] = next(place % room for place in range(first, first + room + 1) if place % room not in taken)
    return {name: found[name] for name in names}


def running_mean(values: Any, half: int = 4) -> np.ndarray:
    """The mean over `half` neighbours on each side, fewer on both sides near the ends and in short series.

    So a curve begins and ends where it does, and no value counts more on one side than on the other.
    """
    numbers = np.asarray(values, float)
    sums = np.concatenate([[0.0], numbers.cumsum()])
    places = np.arange(len(numbers))
    reach = np.minimum(min(half, len(numbers) // 10), np.minimum(places, places[::-1]))
    return (sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1)


def as_it_is(text: str) -> str:
    """A name for Matplotlib, to which what stands between dollars would be a formula."""
    return text.replace("$", r"\$")


FORMATS = (".png", ".svg", ".pdf")


def check_format(path: Path) -> None:
    """An InputError unless a file's ending is that of a picture."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"path={str(path)!r} is not accepted: its name must end in one of {', '.join(FORMATS)}")


def save_figure(figure: Any, path: Path, **more: Any) -> Path:
    """Write a figure of Matplotlib's in the format of the file's ending, atomically; what its font lacks is told."""
    check_format(path)
    buffer = io.BytesIO()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        figure.savefig(buffer, format=path.suffix[1:].lower(), dpi=150, **more)
    letters = [w for w in found if "missing from font" in str(w.message)]
    for other in (w for w in found if w not in letters):
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    if letters:
        warnings.warn(
            f"{path}: the font lacks {len(letters)} letters of its names, drawn as boxes", Notice, stacklevel=2
        )
    storage.write_atomically(path, buffer.getvalue())
    return path
