"""The paper's figures from results; a figure whose runs are missing is None, and the report says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbc.drawing import COLOURS, running_mean
from fedbc.paper import printed
from fedbc.paper.catalogue import CLASSES, DRAWS, EPOCHS, EXPERIMENTS, EXPONENTS, TOLERANCES, WITH_MORE_ROUNDS
from fedbc.paper.drawing import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PINK,
    SKY,
    YELLOW,
    band,
    legend_once,
    panels,
    plain_log,
)
from fedbc.paper.drawing import (
    picture as new_picture,
)
from fedbc.paper.evidence import Evidence
from fedbc.paper.experiment import Dataset
from fedbc.paper.hyperparameters import TUNINGS, Tuning
from fedbc.paper.methods import METHODS, Arguments
from fedbc.runs import Line
from fedbc.selection.grids import RATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

COLOUR = {
    "fedbc": BLUE, "fedavg": ORANGE, "qfedavg-reference": GREEN, "qfedavg": GREEN, "fedprox": PINK,
    "scaffold": YELLOW, "scaffold-reference": YELLOW, "fedavg-uniform": SKY, "fedprox-uniform": "#8a6d3b",
    "fedavg-root": "#7d7d7d",
}  # fmt: skip
SHOWN = ("fedbc", "fedavg", "fedavg-uniform", "qfedavg", "fedprox", "scaffold")


def teaser(found: Evidence) -> Picture | None:
    """Global and local accuracy against gamma."""
    columns = {c: [found.values("synthetic-gamma", "fedbc", c, tolerance=t) for t in TOLERANCES] for c in _TEASER}
    if not any(columns["global_accuracy"]):
        return None
    picture = new_picture(6, 4.2)
    axes, below = picture.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axes.set_title("FedBC with the same fixed gamma on every device")
    x = np.array(TOLERANCES)
    shown = np.where(x == 0, x[1] / 3, x)
    for colour, (column, label) in zip((BLUE, ORANGE), _TEASER.items(), strict=True):
        band(axes, shown, [[100 * v for v in vs] for vs in columns[column]], colour, label)
    shares = [found.constrained("synthetic-gamma", "fedbc", tolerance=t) for t in TOLERANCES]
    band(below, shown, [[100 * v for v in vs] for vs in shares], GREEN, "devices with lambda_i > 0 at the end")
    below.set_xscale("log")
    below.set_xticks(shown[::2], [f"{t:g}" for t in x[::2]])
    below.minorticks_off()
    below.set_xlabel("gamma")
    below.set_ylabel("devices, %")
    axes.set_ylabel("accuracy, %")
    legend_once(picture, [axes, below])
    return picture


_TEASER = {"global_accuracy": "global: z on all test sets", "local_accuracy": "local: x_i on its own, mean"}


def synthetic_curves(column: str, label: str, *, log: bool = False) -> Callable[[Evidence], Picture | None]:
    """A column's curves over rounds, one panel for each E."""

    def draw(found: Evidence) -> Picture | None:
        if not any(found.first("synthetic", m, epochs=e) for m in SHOWN for e in EPOCHS):
            return None
        picture, axes = panels([f"E = {e}" for e in EPOCHS], 2.7)
        for a, epochs in zip(axes, EPOCHS, strict=True):
            for key in SHOWN:
                line = found.first("synthetic", key, epochs=epochs)
                if line is not None and column in line["curves"]:
                    curves = line["curves"]
                    a.plot(curves["round"], curves[column], color=COLOUR[key], linewidth=1.1, label=METHODS[key].label)
            a.set_xlabel("round")
            if log:
                plain_log(a, "y")
        axes[0].set_ylabel(label)
        legend_once(picture, axes)
        return picture

    return draw


def _draw_coefficients(axes: Axes, line: Line) -> None:
    c = line["coefficients"]
    rounds = np.arange(1, len(c["min"]) + 1)
    for name, colour, label in (
        ("max_by_size", ORANGE, "largest device, by n_i"),
        ("min_by_size", SKY, "smallest device, by n_i"),
        ("max", "#b03030", "largest device, by lambda_i"),
        ("min", GREEN, "smallest device, by lambda_i"),
    ):
        axes.plot(rounds, c[name], color=colour, alpha=0.2, linewidth=0.6)
        axes.plot(rounds, running_mean(c[name], 7), color=colour, linewidth=1.4, label=label)
    axes.set_xlabel("round")


def coefficients(
    experiment: str, by: str, at: tuple[int, ...], symbol: str, width: float
) -> Callable[[Evidence], Picture | None]:
    """The round's smallest and largest device's weight in FedBC's mean, beside the weight by size."""

    def draw(found: Evidence) -> Picture | None:
        lines = {x: found.first(experiment, "fedbc", **{by: x}) for x in at}
        if not any(lines.values()):
            return None
        picture, axes = panels([f"{symbol} = {x}" for x in at], width)
        for a, line in zip(axes, lines.values(), strict=True):
            if line is not None:
                _draw_coefficients(a, line)
        axes[0].set_ylabel("coefficient")
        legend_once(picture, axes)
        return picture

    return draw


def multipliers(found: Evidence) -> Picture | None:
    """lambda_i against n_i, at the end and on the way."""
    line = found.first("synthetic", "fedbc", epochs=5)
    if line is None:
        return None
    picture, axes = panels(["Shares at the end of training", "lambda on the way"], 4.2, 3)
    sizes, last = np.array(line["sizes"]), np.array(line["multipliers"])
    axes[0].plot(sizes, last / last.sum(), "o", color=BLUE, markersize=4, label="lambda_i / Σ lambda")
    axes[0].plot(sizes, sizes / sizes.sum(), "x", color=ORANGE, markersize=4, label="n_i / Σ n")
    plain_log(axes[0], "y")
    axes[0].legend()
    for colour, (number, values) in zip(COLOURS, line["snapshots"].items(), strict=False):
        axes[1].plot(sizes, values, "o", color=colour, markersize=3.5, label=f"round {number}")
    axes[1].legend()
    for a in axes:
        plain_log(a, "x")
        a.set_xlabel("n_i, training examples")
    return picture


def against(
    experiment: str, by: str, at: tuple[Any, ...], column: str, factor: float, label: str, axis: str, **setting: Any
) -> Callable[[Evidence], Picture | None]:
    """A column's mean and deviation over seeds against one part of the setting, for every method."""

    def draw(found: Evidence) -> Picture | None:
        keys = [k for k in (*SHOWN, "fedprox-uniform") if k in EXPERIMENTS[experiment].methods]
        values = {
            k: [[factor * v for v in found.values(experiment, k, column, **{by: x}, **setting)] for x in at]
            for k in keys
        }
        if not any(any(v) for v in values.values()):
            return None
        picture, (axes,) = panels([""], 5.6, 3.6)
        for key in keys:
            band(axes, at, values[key], COLOUR[key], METHODS[key].label)
        if by == "epochs":
            axes.set_xscale("log")
        axes.set_xticks(at, [str(x) for x in at])
        axes.minorticks_off()
        axes.set_xlabel(axis)
        axes.set_ylabel(label)
        legend_once(picture, [axes])
        return picture

    return draw


def users(found: Evidence) -> Picture | None:
    """z's accuracy on the round's smallest and largest device, for every method and E."""
    if not any(found.first("synthetic", k, epochs=e) for k in SHOWN for e in EPOCHS):
        return None
    picture = new_picture(2.1 * len(SHOWN), 1.7 * len(EPOCHS))
    grid = picture.subplots(len(EPOCHS), len(SHOWN), sharex=True, sharey=True)
    for row, epochs in zip(grid, EPOCHS, strict=True):
        for a, key in zip(row, SHOWN, strict=True):
            line = found.first("synthetic", key, epochs=epochs)
            if line is not None:
                c = line["coefficients"]
                for which, colour in (("min", BLUE), ("max", ORANGE)):
                    values = [100 * v for v in c[f"{which}_accuracy"]]
                    label = {"min": "smallest device", "max": "largest device"}[which]
                    rounds = range(1, len(values) + 1)
                    # Thousands of dots are smaller, and no less sharp, as an image.
                    a.plot(rounds, values, ".", color=colour, markersize=2.2, alpha=0.5, rasterized=True)
                    a.plot(rounds, running_mean(values, 10), color=colour, linewidth=1, label=label)
        row[0].set_ylabel(f"E = {epochs}\naccuracy, %")
    for a, key in zip(grid[0], SHOWN, strict=True):
        a.set_title(METHODS[key].label)
    for a in grid[-1]:
        a.set_xlabel("round")
    legend_once(picture, list(grid.flat))
    return picture


def cifar_variance(found: Evidence) -> Picture | None:
    """Variance of accuracy over devices against the exponent, for E = 1 and 5."""
    names = {1: "cifar10-e1", 5: "cifar10-e5"}
    if not any(found.values(n, k, "accuracy_variance") for n in names.values() for k in SHOWN):
        return None
    picture = new_picture(9, 5.2)
    grid = picture.subplots(2, 3)
    for row, (epochs, name) in zip(grid, names.items(), strict=True):
        for a, classes in zip(row, CLASSES, strict=True):
            for key in SHOWN:
                values = [
                    [1e4 * v for v in found.values(name, key, "accuracy_variance", classes=classes, exponent=e)]
                    for e in EXPONENTS
                ]
                band(a, EXPONENTS, values, COLOUR[key], METHODS[key].label)
            a.set_title(f"C = {classes}, E = {epochs}")
            a.set_xlim(1.05, 1.55)
            a.set_xticks(EXPONENTS)
        row[0].set_ylabel("variance over devices, %²")
    for a in grid[-1]:
        a.set_xlabel("exponent")
    legend_once(picture, list(grid.flat))
    return picture


def cifar_rounds(found: Evidence) -> Picture | None:
    """Accuracy over three times the rounds, and where the paper's numbers lie."""
    keys = ("fedavg", "fedbc")
    if not any(found.first("cifar10-rounds", key) for key in keys):
        return None
    picture = new_picture(11.5, 3)
    axes = list(picture.subplots(1, len(EXPONENTS), sharey=True))
    for a, e in zip(axes, EXPONENTS, strict=True):
        for key in keys:
            line = found.first("cifar10-rounds", key, exponent=e)
            if line is None:
                continue
            curves, label = line["curves"], METHODS[key].label
            accuracy = [100 * v for v in curves["global_accuracy"]]
            a.plot(curves["round"], accuracy, color=COLOUR[key], alpha=0.3, linewidth=0.8)
            a.plot(curves["round"], running_mean(accuracy), color=COLOUR[key], linewidth=1.5, label=label)
            setting = {**WITH_MORE_ROUNDS, "exponent": e}
            paper = printed.cell("cifar10_global_e1", METHODS[key].printed, setting)
            if paper is not None:
                a.axhline(paper["mean"], color=COLOUR[key], linestyle="--", linewidth=1, label=f"{label}, the paper")
        a.set_title(f"exponent {e}")
        a.set_xlabel("round")
    axes[0].set_ylabel("global accuracy, %")
    legend_once(picture, axes)
    return picture


def controls(found: Evidence) -> Picture | None:
    """How much of FedBC's gain over FedAvg uniform weights have already: by E, and by draw of the data."""
    parts = (("synthetic", "epochs", EPOCHS, "E"), ("synthetic-draws", "draw", DRAWS, "draw of the data, E = 5"))
    keys = ("fedavg-uniform", "fedavg-root", "fedprox", "fedprox-uniform", "qfedavg-reference", "fedbc")
    if not found.values("synthetic", "fedbc", "global_accuracy"):
        return None
    picture, axes = panels(["30 devices, draw 1", "E = 5, other draws"], 4.6, 3.1)
    for a, (experiment, by, at, axis) in zip(axes, parts, strict=True):
        for number, key in enumerate(keys):
            heights = []
            for x in at:
                setting: dict[str, Any] = {by: x}
                mine, base = (found.mean(experiment, k, **setting) for k in (key, "fedavg"))
                heights.append(np.nan if mine is None or base is None else 100 * (mine - base))
            place = np.arange(len(at)) + 0.14 * (number - (len(keys) - 1) / 2)
            a.bar(place, heights, 0.13, color=COLOUR.get(key, GREEN), label=METHODS[key].label)
        a.axhline(0, color=INK, linewidth=0.8)
        a.set_axisbelow(True)
        a.set_xticks(range(len(at)), [str(x) for x in at])
        a.set_xlabel(axis)
    axes[0].set_ylabel("global accuracy less FedAvg's, points")
    legend_once(picture, axes)
    return picture


def _tuning_score(tuning: Tuning, algorithm: Arguments, found: Evidence) -> float | None:
    """FedBC's on validation data, or on the test sets as long as the group was not chosen anew."""
    lines, method = found.store.lines, METHODS["fedbc"]
    of = tuning if tuning.progress(method, lines)[0] is not None else tuning.on_test()
    return of.known_score(method, algorithm, lines)


def dual_rates(found: Evidence) -> Picture | None:
    """FedBC's accuracy over its grid: the tuning runs on the synthetic data."""
    tuned = [t for t in TUNINGS.values() if t.data is Dataset.SYNTHETIC and t.name in found.store.choices]
    if not tuned:
        return None
    tuned.sort(key=lambda t: t.epochs)
    picture, axes = panels([f"E = {t.epochs}" for t in tuned], 2.7)
    method = METHODS["fedbc"]
    for a, tuning in zip(axes, tuned, strict=True):
        for colour, rate in zip(COLOURS, RATES, strict=False):
            grid = [c for c in method.candidates() if c["lr"] == rate]
            scores = [(c["dual_lr"], _tuning_score(tuning, c, found)) for c in grid]
            points = [(x, 100 * y) for x, y in scores if y is not None]
            if points:
                a.plot(*zip(*points, strict=True), "o-", color=colour, markersize=3, label=f"lr {rate:g}")
        a.set_xscale("log")
        a.set_xlabel("dual_lr")
    axes[0].set_ylabel("global accuracy, %")
    legend_once(picture, axes)
    return picture
