"""Pictures of runs. Matplotlib is imported when a picture is drawn, not when fedbc is."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbc import storage
from fedbc.simulation.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
"""Okabe and Ito's palette, readable by the colour-blind."""

PANELS = (
    ("global_accuracy", "Global accuracy", "z on all test sets, %", 100),
    ("local_accuracy", "Local accuracy", "x_i on its own test set, mean, %", 100),
    ("global_loss", "Training loss", "z on all training sets", 1),
)


def curves(results: Mapping[str, Result], path: Path, *, title: str = "") -> Path:
    """Draw accuracy and loss over rounds, one line a method, to a PNG, SVG or PDF file."""
    from matplotlib.figure import Figure

    shown = [p for p in PANELS if any(p[0] in r.history and r.history[p[0]].notna().any() for r in results.values())]
    figure = Figure(figsize=(4.3 * max(1, len(shown)), 3.6), layout="constrained")
    figure.suptitle(title, fontsize=11)
    for axes, (column, heading, label, factor) in zip(
        figure.subplots(1, max(1, len(shown)), squeeze=False)[0], shown, strict=False
    ):
        for colour, (name, result) in zip(COLOURS * len(results), results.items(), strict=False):
            if column in result.history:
                _curve(axes, result, column, factor, colour, name)
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel("round")
        axes.set_ylabel(label, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    figure.axes[0].legend(frameon=False, fontsize=9)
    return save(figure, path)


def _curve(axes: Axes, result: Result, column: str, factor: float, colour: str, name: str) -> None:
    """The measured values faintly, and their mean over nine neighbouring points on top, so that both can be seen."""
    rows = result.history.dropna(subset=[column])
    values = rows[column] * factor
    axes.plot(rows["round"], values, color=colour, alpha=0.25, linewidth=0.8)
    smooth = values.rolling(9, min_periods=1, center=True).mean()
    axes.plot(rows["round"], smooth, color=colour, linewidth=1.8, label=name)


def save(figure: Any, path: Path) -> Path:
    """Write a figure in the format of the file's ending, atomically."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:] or "png", dpi=150)
    storage.write_atomically(path, buffer.getvalue())
    return path
