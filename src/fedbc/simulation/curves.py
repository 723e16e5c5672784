"""A picture of runs: accuracy and loss over rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedbc.algorithms import ALGORITHMS
from fedbc.drawing import COLOURS, MORE, as_it_is, need, places, running_mean, save_figure
from fedbc.simulation.metrics import TEST_LOSSES, has_accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbc.simulation.result import Result

PANELS = (
    ("global_accuracy", "Global accuracy", "z on all test sets, %", 100),
    ("local_accuracy", "Local accuracy", "xᵢ on its own test set, mean, %", 100),
    ("global_test_loss", "Loss of the global model", "z on all test sets", 1),
    ("local_test_loss", "Loss of the local models", "xᵢ on its own test set", 1),
    ("global_loss", "Training loss", "z on all training sets", 1),
)


def draw_curves(results: Mapping[str, Result], path: Path, *, title: str = "") -> Path:
    """Draw accuracy and loss over rounds, one line per method, to a PNG, SVG or PDF file."""
    return save_figure(curves(results, title=title), path)


def curves(results: Mapping[str, Result], *, title: str = "") -> Figure:
    """Accuracy and loss over rounds, one line per method."""
    need("matplotlib")
    from matplotlib.figure import Figure

    accuracy = any(has_accuracy(r.history) for r in results.values())
    panels = [p for p in PANELS if not (accuracy and p[0] in TEST_LOSSES)]
    shown = [p for p in panels if any(p[0] in r.history and r.history[p[0]].notna().any() for r in results.values())]
    runs = {name: str(r.spec.get("algorithm", {}).get("name", name)) for name, r in results.items()}
    palette = [*COLOURS, *MORE]
    colours = {name: palette[p] for name, p in places(list(runs), runs, list(ALGORITHMS), len(palette)).items()}
    figure = Figure(figsize=(4.3 * max(1, len(shown)), 3.6), layout="constrained")
    figure.suptitle(as_it_is(title), fontsize=11)
    for axes, (column, heading, label, factor) in zip(
        figure.subplots(1, max(1, len(shown)), squeeze=False)[0], shown, strict=False
    ):
        for name, result in results.items():
            if column in result.history:
                _curve(axes, result, column, factor, colours[name], name)
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel("round")
        axes.set_ylabel(label, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    figure.axes[0].legend(frameon=False, fontsize=9)
    return figure


def _curve(axes: Axes, result: Result, column: str, factor: float, colour: str, name: str) -> None:
    """The measured values faintly, and their mean over nine neighbouring points on top, so that both can be seen."""
    rows = result.history.dropna(subset=[column])
    values = rows[column] * factor
    axes.plot(rows["round"], values, color=colour, alpha=0.25, linewidth=0.8)
    axes.plot(rows["round"], running_mean(values), color=colour, linewidth=1.8, label=as_it_is(name))
