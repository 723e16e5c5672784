"""Draw the pictures of docs/concepts.md from real runs: `python tools/concept_pictures.py` (a minute on two cores)."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedbc
from fedbc import storage
from fedbc.paper.drawing import BLUE, GREEN, INK, ORANGE, Figure, band, draw, legend_once, panels

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
TOLERANCES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MODEL = fedbc.models.logistic(60, 10)


def run(algorithm: fedbc.Algorithm, seed: int, rounds: int, **options: Any) -> fedbc.Result:
    """Twelve devices that disagree, half of them a round."""
    federation = fedbc.data.synthetic(devices=12, alpha=0.5, beta=0.5, seed=1)
    options = {"epochs": 2, "sample": 6, "evaluate_every": 4} | options
    return fedbc.simulate(algorithm, MODEL, federation, rounds=rounds, seed=seed, **options)


def gamma(found: object, rounds: int = 60, seeds: int = 3) -> Any:
    """Global and local accuracy against gamma, for both places where local training may start."""
    del found
    titles = {"local": "from x_i (Algorithm 2's letter)", "global": "from z (the experiments', and our default)"}
    picture, axes = panels(list(titles.values()), 4.2, 3.3)
    scores = {
        "global_accuracy": (BLUE, "global: z on all test sets"),
        "local_accuracy": (ORANGE, "local: x_i on its own"),
    }
    ends = {"global_accuracy": fedbc.FedAvg(lr=0.05), "local_accuracy": fedbc.LocalOnly(lr=0.05)}
    for a, start in zip(axes, titles, strict=True):
        table = [[_ends(_bc(g, start), seed, rounds) for seed in range(seeds)] for g in TOLERANCES]
        for column, (colour, label) in scores.items():
            band(a, TOLERANCES, [[100 * row[column] for row in rows] for rows in table], colour, label)
            level = np.mean([_ends(ends[column], seed, rounds)[column] for seed in range(seeds)])
            name = {"global_accuracy": "FedAvg's global", "local_accuracy": "local-only"}[column]
            a.axhline(100 * level, color=colour, linestyle="--", linewidth=1, label=name)
        a.set_xscale("log")
        a.set_xlabel("gamma, the same on every device")
    axes[0].set_ylabel("accuracy, %")
    limits = np.array([a.get_ylim() for a in axes])
    for a in axes:
        a.set_ylim(limits.min(), limits.max())
    legend_once(picture, axes)
    return picture


def _bc(tolerance: float, start: str) -> fedbc.FedBC:
    return fedbc.FedBC(lr=0.05, dual_lr=0.1, tolerance=tolerance, start=start)


def _ends(algorithm: fedbc.Algorithm, seed: int, rounds: int) -> dict[str, Any]:
    return run(algorithm, seed, rounds).summary(last=20)


def multipliers(found: object, rounds: int = 120) -> Any:
    """Drift against the tolerance, and what lambda makes of it, for three devices."""
    del found
    tolerance = 0.3
    result = run(_bc(tolerance, "local"), 1, rounds, sample=None)
    picture, (left, right) = panels(["drift ‖x_i − z‖²", "multiplier lambda_i"], 4.2, 3.0)
    last = result.devices[result.devices["round"] == rounds].sort_values("multiplier")
    chosen = last["device"].iloc[[0, len(last) // 2, -1]]
    names = ("at ease", "in between", "straining most")
    for colour, mark, device, name in zip((GREEN, BLUE, ORANGE), "os^", chosen, names, strict=True):
        rows = result.devices[result.devices["device"] == device]
        style = {"color": colour, "linewidth": 1.6, "marker": mark, "markevery": max(1, rounds // 8), "markersize": 4}
        left.plot(rows["round"], rows["drift"], label=f"device {device}: {name}", **style)
        right.plot(rows["round"], rows["multiplier"], **style)
    left.axhline(tolerance, color=INK, linestyle="--", linewidth=1, label=f"gamma = {tolerance}")
    for a in (left, right):
        a.set_xlabel("round")
    legend_once(picture, [left, right])
    return picture


def weights(found: object, rounds: int = 100) -> Any:
    """Each device's share in the server's mean, by size and by lambda."""
    del found
    federation = fedbc.data.synthetic(devices=30, alpha=0.5, beta=0.5, seed=2)
    algorithm = fedbc.FedBC(lr=0.01, dual_lr=0.001, momentum=0.5)
    result = fedbc.simulate(
        algorithm, MODEL, federation, rounds=rounds, epochs=5, sample=10, seed=1, evaluate=["global"]
    )
    late = result.devices[result.devices["round"] > rounds // 5]
    table = late.groupby("device")[["examples", "coefficient", "coefficient_by_examples"]].mean()
    table = table.sort_values("examples").reset_index(drop=True)
    picture, (axes,) = panels(["Mean share of a device in the rounds that it took part in"], 7.6, 3.2)
    at = np.arange(1, len(table) + 1)
    axes.bar(at - 0.2, 100 * table["coefficient_by_examples"], 0.4, color=ORANGE, label="by size, n_i / Σ n (FedAvg)")
    axes.bar(at + 0.2, 100 * table["coefficient"], 0.4, color=BLUE, label="by lambda_i / Σ lambda (FedBC)", hatch="///")
    axes.axhline(10, color=INK, linestyle="--", linewidth=1, label="equal shares, 10 devices a round")
    axes.set_xlabel("device, from the fewest examples to the most")
    axes.set_ylabel("share, %")
    axes.legend(loc="upper left")
    return picture


PICTURES = {"gamma": gamma, "lambda": multipliers, "weights": weights}


def main(folder: Path = FOLDER, **smaller: int) -> list[Path]:
    """Draw them all; `rounds` and `seeds` make a quicker sketch."""
    written = []
    for name, paint in PICTURES.items():
        known = {k: v for k, v in smaller.items() if k in paint.__annotations__}
        figure = Figure(name, name, "", "", partial(paint, **known))
        drawn = draw(figure, None)  # type: ignore[arg-type]  # these pictures run what they need
        assert drawn is not None
        path = folder / f"{name}.svg"
        storage.write_atomically(path, drawn.alone.encode())
        written.append(path)
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    for file in main(parser.parse_args().folder):
        print(file)
