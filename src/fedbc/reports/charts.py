"""Charts: Altair's specifications, with a text alternative, for a page and as PNG and SVG files.

Altair and vl-convert are imported when a chart is drawn, not when fedbc is.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbc import storage
from fedbc.drawing import COLOURS, FAINT, INK, MORE, need
from fedbc.errors import InputError

FIGURE_WIDTH = 560
"""Of a PNG or SVG, in pixels; in a page a chart is as wide as its place."""

APART: dict[str, Any] = {"labelOverlap": "greedy", "labelSeparation": 6}
"""Numbers on an axis that would touch are left out, as in page.js."""

LETTERS: dict[str, Any] = {"labelFontSize": 11, "titleFontSize": 12}
"""Sizes of letters in charts, as in page.js."""


@dataclass(frozen=True)
class Chart:
    """A chart with the words that stand for it.

    name: of its files, and its anchor in a page.
    chart: Altair's chart, or its specification as a dict; a single view of width "container" fits any screen.
        Its colour for methods should have a `domain` and no `range`: the page's palette follows light and dark.
    description: what a reader who cannot see it should know; one or two sentences.
    caption: how to read it, below the picture.
    wide: whether it takes a row of its own.
    """

    name: str
    title: str
    chart: Any
    description: str
    caption: str = ""
    wide: bool = False

    def __post_init__(self) -> None:
        if not self.description.strip():
            raise InputError(f"chart {self.name} has no description: say in a sentence what it shows")

    def specification(self) -> dict[str, Any]:
        """Vega-Lite's specification, with the description in it."""
        spec = self.chart if isinstance(self.chart, dict) else _plain(self.chart)
        return {**spec, "description": self.description}


def _plain(chart: Any) -> dict[str, Any]:
    altair = need("altair")
    # A report's data are as long as its runs: Altair's limit is meant for notebooks.
    with altair.data_transformers.enable("default", max_rows=None):
        spec = chart.to_dict()
    spec.pop("config", None)  # Altair's own look; ours is that of the page
    return spec


def write_figure(chart: Chart, folder: Path) -> list[Path]:
    """Write a chart as a PNG and an SVG file in light colours, named after it."""
    vl_convert = need("vl_convert", "altair")
    spec = chart.specification() | {"background": "white"}
    if spec.get("width") == "container":
        spec["width"] = FIGURE_WIDTH
    title = spec.setdefault("title", chart.title)
    if isinstance(title, dict):
        title.setdefault("text", chart.title)
    options: dict[str, Any] = {"vl_version": _grammar(), "config": light_config()}
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{chart.name}.png", folder / f"{chart.name}.svg"]
    drawn = vl_convert.vegalite_to_svg(spec, **options)
    storage.write_atomically(files[0], vl_convert.svg_to_png(drawn, scale=2))
    storage.write_atomically(files[1], drawn)
    return files


def light_config() -> dict[str, Any]:
    """The look of charts on white; page.js makes the same from the page's colours."""
    words = {"labelColor": INK, "titleColor": INK, "titleFontWeight": "normal", **LETTERS}
    return {
        "font": "sans-serif",
        "range": {"category": [*COLOURS, *MORE], "heatmap": ["#f5f7f9", "#0b5cad"]},
        "view": {"stroke": None},
        "axis": {**words, "gridColor": FAINT, "domainColor": FAINT, "tickColor": FAINT, **APART},
        "legend": {**words, "orient": "top", "title": None},
        "title": {"color": INK, "anchor": "start", "fontSize": 14},
        "rule": {"color": INK},
        "text": {"color": INK},
    }


@functools.cache
def javascript() -> str:
    """Vega, Vega-Lite and vega-embed, to be inlined in a page once."""
    vl_convert = need("vl_convert", "altair")
    bundle: Any = vl_convert.javascript_bundle  # its annotation asks for a snippet, without which it sets `vegaEmbed`
    return bundle(vl_version=_grammar()).replace("</script", "<\\/script")


def _grammar() -> str:
    """Altair's version of Vega-Lite, as vl-convert names it."""
    return ".".join(need("altair").SCHEMA_VERSION.removeprefix("v").split(".")[:2])
