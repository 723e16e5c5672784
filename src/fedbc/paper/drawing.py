"""How the figures look: light and dark pages, one legend, means with their spread."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedbc.drawing import COLOURS
from fedbc.paper.evidence import Evidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

INK = "#223344"
"""Text and axes; on a page it becomes the page's own colour of text, so that dark pages work."""
WIDEST = 8
"""Of an inch drawn, in letter heights of the page."""
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = COLOURS[:6]


@dataclass(frozen=True)
class Figure:
    """A picture with the words that go with it."""

    kind: ClassVar[str] = "Figure"
    name: str
    title: str
    caption: str
    needs: tuple[str, ...]
    """the experiments whose runs it draws"""
    draw: Callable[[Evidence], Picture | None]


def picture(width: float, height: float) -> Picture:
    """An empty picture."""
    from matplotlib.figure import Figure as Picture

    return Picture(figsize=(width, height), layout="constrained")


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    plain: Any = dict.fromkeys(inked, INK)
    plain |= {"svg.fonttype": "none", "svg.hashsalt": "fedbc", "font.family": "sans-serif", "font.size": 9}
    plain |= {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25}
    plain |= {"legend.frameon": False, "legend.fontsize": 8, "axes.titlesize": 9.5}
    with matplotlib.rc_context(plain):
        yield


@dataclass(frozen=True)
class Drawn:
    """A figure as SVG; drawing takes long, and both uses of it are made from one."""

    figure: Figure
    text: str
    width: float
    """in inches"""

    @property
    def alone(self) -> str:
        """For use by itself: white behind it."""
        at = self.text.index(">") + 1
        return f'{self.text[:at]}\n <rect width="100%" height="100%" fill="#ffffff"/>{self.text[at:]}'

    @property
    def inline(self) -> str:
        """For a page, in whose colours it is."""
        text = re.sub(re.escape(INK), "currentColor", self.text, flags=re.IGNORECASE)
        # Ids are a figure's own: several share a page.
        text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{self.figure.name}-", text)
        label = f'role="img" aria-label="{self.figure.title}" '
        # As wide as the page, but letters no larger than the page's own.
        largest = f'style="max-width: {WIDEST * self.width:.0f}rem"'
        text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', largest, text, count=1)
        return text.replace("<svg ", f"<svg {label}", 1)


def draw(figure: Figure, found: Evidence) -> Drawn | None:
    """Draw a figure; None if it has no data."""
    with _style():
        drawn = figure.draw(found)
        if drawn is None:
            return None
        buffer = io.StringIO()
        drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None}, dpi=110)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s+<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return Drawn(figure, text, drawn.get_figwidth())


def panels(titles: list[str], width: float = 3.0, height: float = 2.6) -> tuple[Picture, list[Axes]]:
    """A row of panels."""
    whole = picture(width * len(titles), height)
    axes = list(whole.subplots(1, len(titles), squeeze=False)[0])
    for a, title in zip(axes, titles, strict=True):
        a.set_title(title)
    return whole, axes


def plain_log(axes: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5: over a decade or two powers of ten are hard to read."""
    from matplotlib import ticker

    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def mark_empty(axes: list[Axes]) -> None:
    """Say of panels without data that they were not run."""
    for a in axes:
        if not a.has_data():
            a.text(0.5, 0.5, "not run", transform=a.transAxes, ha="center", va="center", alpha=0.6)
            # Hidden, not removed: panels may share an axis with others that have data.
            a.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)
            a.grid(visible=False)


def band(axes: Axes, x: Any, values: list[list[float]], colour: str, label: str) -> None:
    """Mean over seeds, with one standard deviation shaded."""
    known = [(at, v) for at, v in zip(x, values, strict=True) if v]
    if not known:
        return
    at = [k for k, _ in known]
    mean = np.array([np.mean(v) for _, v in known])
    deviation = np.array([np.std(v, ddof=1) if len(v) > 1 else 0 for _, v in known])
    axes.plot(at, mean, "o-", color=colour, label=label, markersize=3, linewidth=1.5)
    axes.fill_between(at, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)


def legend_once(whole: Picture, axes: list[Axes]) -> None:
    """One legend under all panels; panels without data say so."""
    mark_empty(axes)
    handles: dict[str, Any] = {}
    for a in axes:
        handles |= {label: h for h, label in zip(*a.get_legend_handles_labels(), strict=True)}
    if handles:
        widest = 0.5 + 0.065 * max(map(len, handles))  # inches: the line before it, and a letter's width
        columns = max(1, min(6, len(handles), int(whole.get_figwidth() / widest)))
        whole.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
