"""FedBC against FedAvg and FedProx on draws of the synthetic data: does the gain depend on the draw?

E = 5, 10 of 30 devices a round, batch 20, momentum 0.5, 200 rounds; global accuracy (mean over the last 20 rounds) and
its variance over devices. Two comparisons:

    python examples/synthetic_draws.py fixed CSV    twenty draws, one rate for all (lr 0.01, dual_lr 0.001), run seed 1
    python examples/synthetic_draws.py tuned CSV    five draws, run seeds 1 to 3; each method's rates are chosen on run
                                                    seed 0, from a part of the paper's grids

What the CSV file holds already is not run again, so that it can be stopped and started again.
"""

import itertools
import sys
from pathlib import Path

import pandas as pd

import fedbc

METHODS = {
    "FedAvg": (fedbc.FedAvg, {"lr": [0.001, 0.01, 0.1]}),
    "FedAvg, uniform": (fedbc.FedAvg, {"lr": [0.001, 0.01, 0.1], "weights": ["uniform"]}),
    "FedProx": (fedbc.FedProx, {"lr": [0.01, 0.1], "mu": [0.01, 0.1, 1.0]}),
    "FedBC": (fedbc.FedBC, {"lr": [0.001, 0.01, 0.1], "dual_lr": [0.0001, 0.001, 0.01]}),
}


FIXED = {
    "FedAvg": fedbc.FedAvg(lr=0.01, momentum=0.5),
    "FedAvg, uniform": fedbc.FedAvg(lr=0.01, momentum=0.5, weights="uniform"),
    "FedBC": fedbc.FedBC(lr=0.01, dual_lr=0.001, momentum=0.5),
}


def run(algorithm, federation, seed):
    """Global accuracy in percent and its variance over devices in percent squared; (0, NaN) if training diverges."""
    setting = {"rounds": 200, "epochs": 5, "sample": 10, "evaluate": ["global"]}
    try:
        result = fedbc.simulate(algorithm, fedbc.models.logistic(60, 10), federation, seed=seed, **setting)
    except fedbc.Diverged:
        return 0.0, float("nan")
    summary = result.summary(last=20)
    return 100 * summary["global_accuracy"], 1e4 * summary["accuracy_variance"]


def fixed(name, federation):
    """One run at the common rates."""
    yield FIXED[name], 1


def tuned(name, federation):
    """Three runs at the rates that were best on a fourth."""
    kind, grid = METHODS[name]
    options = [
        kind(momentum=0.5, **dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())
    ]
    best = max(options, key=lambda algorithm: run(algorithm, federation, 0)[0])
    for seed in (1, 2, 3):
        yield best, seed


def main(comparison, path):
    draws, names, choose = (range(1, 21), FIXED, fixed) if comparison == "fixed" else (range(1, 6), METHODS, tuned)
    done = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["draw", "method"])
    for draw, name in itertools.product(draws, names):
        if ((done["draw"] == draw) & (done["method"] == name)).any():
            continue
        federation = fedbc.data.synthetic(seed=draw)
        sizes = federation.train.sizes
        rows = []
        for algorithm, seed in choose(name, federation):
            accuracy, variance = run(algorithm, federation, seed)
            rows.append(
                {"draw": draw, "method": name, "seed": seed, "accuracy": accuracy, "variance": variance}
                | {"largest_share": sizes.max() / sizes.sum(), "chosen": str(algorithm)}
            )
        table = pd.DataFrame(rows)
        table.to_csv(path, mode="a", header=not path.exists(), index=False)
        print(table.drop(columns="chosen").to_string(header=False, index=False), flush=True)
    table = pd.read_csv(path).groupby(["draw", "method"])[["accuracy", "variance"]].mean().unstack()
    print(table.round(1).to_string())
    print(table.mean().round(1).to_string())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
