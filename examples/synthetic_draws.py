"""FedBC against FedAvg and FedProx on ten draws of the synthetic data: does the gain depend on the draw?

For each draw of the data, each method's rates are chosen on run seed 0 from a part of the paper's grids, and the table
reports run seeds 1 to 3: global accuracy (mean over the last 20 of 200 rounds) and its variance over devices. E = 5, 10
of 30 devices a round, batch 20, momentum 0.5. `python examples/synthetic_draws.py [CSV]` appends to the CSV file what
it does not hold yet, so that it can be stopped and started again.
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


def run(kind, parameters, federation, seed):
    try:
        result = fedbc.simulate(
            kind(momentum=0.5, **parameters),
            fedbc.models.logistic(60, 10),
            federation,
            rounds=200,
            epochs=5,
            sample=10,
            seed=seed,
            evaluate=["global"],
        )
    except fedbc.Diverged:
        return 0.0, float("nan")
    summary = result.summary(last=20)
    return 100 * summary["global_accuracy"], 1e4 * summary["accuracy_variance"]


def measure(draw, name):
    kind, grid = METHODS[name]
    federation = fedbc.data.synthetic(seed=draw)
    options = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    best = max(options, key=lambda parameters: run(kind, parameters, federation, 0)[0])
    sizes = federation.train.sizes
    for seed in (1, 2, 3):
        accuracy, variance = run(kind, best, federation, seed)
        share = sizes.max() / sizes.sum()
        yield {"draw": draw, "method": name, "seed": seed, "accuracy": accuracy, "variance": variance} | {
            "largest_share": share,
            "chosen": " ".join(f"{k}={v}" for k, v in best.items()),
        }


def main(path, draws=range(1, 11)):
    done = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["draw", "method"])
    for draw, name in itertools.product(draws, METHODS):
        if not ((done["draw"] == draw) & (done["method"] == name)).any():
            rows = pd.DataFrame(list(measure(draw, name)))
            rows.to_csv(path, mode="a", header=not path.exists(), index=False)
            print(rows.to_string(header=False, index=False), flush=True)
    table = pd.read_csv(path).groupby(["draw", "method"])[["accuracy", "variance"]].mean().unstack()
    print(table.round(1).to_string())
    print(table.mean().round(1).to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "synthetic_draws.csv"))
