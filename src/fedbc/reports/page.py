"""The page: one HTML file that needs nothing else, in light and dark, for a desk and a phone.

Sections hold prose, tables and charts in any order. Controls at the top set a parameter of all charts that have it:
a chart takes part by a top-level parameter of that name (`alt.param(name="hidden", value=[])`) used in a filter.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbc import storage
from fedbc.drawing import COLOURS, COLOURS_ON_DARK, MORE, MORE_ON_DARK, need
from fedbc.reports import charts
from fedbc.reports.charts import Chart, write_figure
from fedbc.reports.tables import Table, write_table

if TYPE_CHECKING:
    import jinja2


@dataclass(frozen=True)
class Prose:
    """A paragraph; a `markupsafe.Markup` is taken as HTML, any other text as text."""

    text: str
    soft: bool = False
    """whether it is a remark, in smaller letters"""


@dataclass(frozen=True)
class Code:
    """Text as it is, such as a file's content; what is wider than the screen scrolls by itself."""

    text: str


@dataclass(frozen=True)
class Section:
    """A heading, with an anchor in the page's contents, and what stands below it."""

    anchor: str
    title: str
    parts: Sequence[Prose | Code | Table | Chart]

    @property
    def blocks(self) -> list[tuple[str, list[Any]]]:
        """The parts in runs of a kind, so that neighbouring charts share a row."""
        return [(kind, list(run)) for kind, run in itertools.groupby(self.parts, lambda p: type(p).__name__)]


MANY = 10
"""Of more methods or runs than these, charts have no legends, and the check boxes are folded up."""


@dataclass(frozen=True)
class Toggles:
    """Check boxes; the charts' parameter holds the list of what is switched off."""

    parameter: str
    label: str
    options: Sequence[str]
    places: Mapping[str, int] = field(default_factory=dict)
    """which of the page's colours each has; by default one after the other"""
    kind: str = field(default="toggles", init=False)

    def place(self, option: str) -> int:
        """The number of an option's colour."""
        return self.places.get(option, list(self.options).index(option) % (len(COLOURS) + len(MORE)))

    @property
    def many(self) -> bool:
        """Whether there are too many to stand in a row."""
        return len(self.options) > MANY


@dataclass(frozen=True)
class Pick:
    """One of a list, or none (null); a click on a mark whose datum has the parameter's name as a field picks it too."""

    parameter: str
    label: str
    options: Sequence[tuple[int | str, str]]
    """values, and the words for them"""
    none: str = "all"
    kind: str = field(default="pick", init=False)


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    lead: Sequence[Prose]
    sections: Sequence[Section]
    controls: Sequence[Toggles | Pick] = ()
    footer: str = ""

    @property
    def charts(self) -> list[Chart]:
        """All charts, in order."""
        return [part for section in self.sections for part in section.parts if isinstance(part, Chart)]

    @property
    def tables(self) -> list[Table]:
        """All tables, in order."""
        return [part for section in self.sections for part in section.parts if isinstance(part, Table)]

    def html(self) -> str:
        """The page's text."""
        return environment("fedbc.reports").get_template("sections.html").render(page=self, **chart_words(self.charts))

    def write(self, path: Path) -> Path:
        """Write the page to a file, atomically."""
        storage.write_atomically(path, self.html())
        return path

    def write_all(self, folder: Path, name: str) -> Path:
        """Write the page under its name, its figures as PNG and SVG, and its tables as CSV and LaTeX, into a folder."""
        with storage.explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for chart in self.charts:
                write_figure(chart, folder / "figures")
            for table in self.tables:
                write_table(table, folder / "tables")
        return self.write(folder / name)


def chart_words(shown: Sequence[Chart]) -> dict[str, Any]:
    """What the shell needs to draw charts: their specifications as JSON, and the JavaScript, once."""
    if not shown:
        return {"chart_data": None, "vega": "", "colours": _colours()}
    specs = {chart.name: chart.specification() for chart in shown}
    if len(specs) < len(shown):
        raise ValueError("two charts of a page have the same name")
    # Altair names a frame's rows by their hash: charts of the same rows share one copy.
    rows: dict[str, Any] = {}
    for spec in specs.values():
        rows |= spec.pop("datasets", {})
    text = json.dumps({"charts": specs, "rows": rows}, separators=(",", ":"), allow_nan=False)
    return {"chart_data": text.replace("<", "\\u003c"), "vega": charts.javascript(), "colours": _colours()}


def _colours() -> dict[str, list[str]]:
    return {"light": [*COLOURS, *MORE], "dark": [*COLOURS_ON_DARK, *MORE_ON_DARK]}


@functools.cache
def environment(package: str) -> jinja2.Environment:
    """Templates of a package, which may extend the shell, page.html."""
    jinja2: Any = need("jinja2")  # not at the top: the command line should not wait for it
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: _source(name, package)),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _source(name: str, package: str) -> str | None:
    for folder in (package, "fedbc.reports"):
        file = resources.files(folder) / "templates" / name
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None
