"""Figures of the studies: the toy example, the partitions, the theorem in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbc.drawing import COLOURS
from fedbc.paper import epsilon, theory, toy
from fedbc.paper.drawing import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PINK,
    SKY,
    YELLOW,
    legend_once,
    mark_empty,
    panels,
    plain_log,
)
from fedbc.paper.drawing import picture as new_picture
from fedbc.paper.evidence import Evidence

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

_THEORY = {"alpha": "dual rate alpha", "steps": "local steps K", "apart": "devices apart (delta)", "gamma": "gamma"}


def toy_example(found: Evidence) -> Picture | None:
    """Paths of z over the contours of f, and the gap against gamma."""
    study = found.studies["toy"]
    if study is None:
        return None
    chosen = [toy.FEDAVG, toy.FIXED[0.1], toy.CONSENSUS]
    picture, axes = panels([f"{name}" for name in chosen], 3.1, 3.2)
    grid_x, grid_y = np.meshgrid(np.linspace(-0.8, 2.2, 80), np.linspace(-1.5, 1.2, 80))
    levels = np.array(
        [
            [toy.value(np.array([a, b])) for a, b in zip(ra, rb, strict=True)]
            for ra, rb in zip(grid_x, grid_y, strict=True)
        ]
    )
    levels = np.round(levels, 9)  # the last digits are the machine's, and would draw other contours
    for a, name in zip(axes, chosen, strict=True):
        walk = study["walks"][name]
        path, own = np.array(walk["path"]), np.array(walk["local"])
        a.contour(grid_x, grid_y, levels, levels=12, colors=INK, alpha=0.25, linewidths=0.7)
        a.plot(*path.T, "o-", color=BLUE, markersize=2, linewidth=1, label="z, round by round")
        a.plot(*own.T, "s", color=ORANGE, markersize=6, label="x_1, x_2 at the end")
        a.plot(*toy.CENTRES.T, "^", color=GREEN, markersize=6, label="best for one device")
        a.plot(*study["optimum"], "*", color=PINK, markersize=12, label="z*, best for both")
        a.set_xlabel(f"f(z) - f(z*) = {walk['gap']:.4f}\nmean f_i(x_i) = {walk['local_loss']:.3f}")
        a.grid(visible=False)
    legend_once(picture, axes)
    return picture


def partitions(found: Evidence) -> Picture | None:
    """Examples on every device."""
    study = found.studies["partitions"]
    if study is None:
        return None
    names = ["CIFAR-10", "MNIST"]
    picture, axes = panels([*names, *(f"synthetic, {d} devices" for d in study["synthetic"])], 2.7)
    for a, name in zip(axes, names, strict=False):
        for colour, row in zip(COLOURS, [r for r in study["sizes"] if r["dataset"] == name], strict=False):
            a.plot(
                range(1, 21), row["sizes"], "o-", color=colour, markersize=2.5, linewidth=1, label=f"{row['exponent']}"
            )
        a.legend(title="exponent")
    for a, sizes in zip(axes[2:], study["synthetic"].values(), strict=True):
        a.bar(range(1, len(sizes) + 1), sorted(sizes), color=BLUE, width=0.8)
        a.set_axisbelow(True)
        plain_log(a, "y")
    for a in axes:
        a.set_xlabel("device, by size")
    axes[0].set_ylabel("examples")
    return picture


def theorem(found: Evidence) -> Picture | None:
    """The running mean of ‖∇f(z)‖² against T, one panel for each quantity varied."""
    lines = {line["hash"]: line for line in found.studies["theory"] or []}
    if not lines:
        return None
    picture = new_picture(11.6, 5.6)
    grid = picture.subplots(2, 4, sharex=True)
    for row, problem in zip(grid, theory.PROBLEMS, strict=True):
        for a, (name, title) in zip(row, _THEORY.items(), strict=True):
            cases = [c for n, c in theory.cases() if n == name and c.problem == problem]
            for colour, case in zip((SKY, GREEN, YELLOW, ORANGE, PINK), cases, strict=True):
                line = lines.get(case.key)
                if line is not None:
                    a.plot(line["round"], line["mean"], color=colour, label=f"{getattr(case, name):g}", linewidth=1.3)
            a.set_xscale("log")
            a.set_yscale("log")
            a.set_title(f"{problem}: {title}")
            if a.get_legend_handles_labels()[0]:
                a.legend(fontsize=7)
        row[0].set_ylabel("mean of ‖∇f(z)‖² so far")
    for a in grid[-1]:
        a.set_xlabel("T, rounds")
    mark_empty(list(grid.flat))
    return picture


def plateaus(found: Evidence) -> Picture | None:
    """Where ‖∇f(z)‖² ends, and the corollary's trade-off."""
    lines = {line["hash"]: line for line in found.studies["theory"] or []}
    if not lines:
        return None
    picture, axes = panels([f"plateau against {t}" for t in _THEORY.values()] + ["corollary: lambda >= 0 only"], 2.6)
    shown = [*((n, n, "plateau") for n in _THEORY), (theory.FREE, "gamma", "local_sqnorm")]
    for colour, problem in zip((BLUE, ORANGE), theory.PROBLEMS, strict=True):
        for a, (sweep, name, key) in zip(axes, shown, strict=True):
            known = [(c, lines.get(c.key)) for n, c in theory.cases() if n == sweep and c.problem == problem]
            points = [(getattr(c, name), float(np.mean(line[key]))) for c, line in known if line is not None]
            xs = [x for x, _ in points]
            smallest = min((x for x in xs if x > 0), default=1)
            a.plot(
                [x or smallest / 5 for x in xs], [y for _, y in points], "o-", color=colour, label=problem, markersize=3
            )
            a.set_xscale("log")
            a.set_yscale("log")
            a.set_xlabel(f"{name} (0 at the left edge)" if 0 in xs else {"steps": "K"}.get(name, name))
    axes[0].set_ylabel("‖∇f(z)‖², last tenth")
    axes[-1].set_ylabel("(1/T) Σ ‖∇f_i(x_i)‖², mean of devices")
    legend_once(picture, axes)
    return picture


def steps_against_epsilon(found: Evidence) -> Picture | None:
    """The steps that the local solver takes to epsilon, beside the paper's orders."""
    lines = {line["hash"]: line for line in found.studies["epsilon"] or []}
    if not lines:
        return None
    picture, axes = panels(list(epsilon.MODELS), 4.2, 3.3)
    for a, model in zip(axes, epsilon.MODELS, strict=True):
        for stochastic, colour, name, power in ((False, BLUE, "gradient descent", 1), (True, ORANGE, "SGD", 2)):
            cases = [c for c in epsilon.cases() if c.model == model and c.stochastic == stochastic]
            points = epsilon.points([lines[c.key] for c in cases if c.key in lines])
            if not points:
                continue
            at = np.array([p.epsilon for p in points])
            a.fill_between(at, [p.least for p in points], [p.most for p in points], color=colour, alpha=0.2)
            a.plot(at, [p.median for p in points], "o-", color=colour, label=name, markersize=4, linewidth=1.5)
            order = points[0].median * (at[0] / at) ** power
            a.plot(at, order, "--", color=colour, linewidth=1, label="O(1/epsilon)" if power == 1 else "O(1/epsilon²)")
        a.set(xscale="log", yscale="log", xlabel="epsilon")
    axes[0].set_ylabel("local steps")
    legend_once(picture, axes)
    return picture
