"""Personalisation on draws of the synthetic data, beside methods that are tuned on validation data.

    python benchmarks/personalisation.py results.jsonl --draws 1,2,3,4,5 --seeds 0,1,2

One line of JSON per run; what the file holds is not run again. Each method's setting is the one with the best local
accuracy on a fifth of the training examples, seed 0 (FedBC, which gives z, also by its global accuracy); then it is
trained on all of them and measured on the test sets. docs/personalisation.md tells the outcome.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import fedbc
from fedbc import FineTune

MODEL = fedbc.models.logistic(60, 10)
GRIDS = {
    "fedbc": [(fedbc.FedBC(lr=lr, momentum=0.5), None) for lr in (0.01, 0.03)],
    "ditto": [
        (fedbc.Ditto(lr=0.01, momentum=0.5, personal_lr=lr, penalty=penalty), None)
        for lr in (0.03, 0.1)
        for penalty in (0.001, 0.1)
    ],
    "pfedme": [(fedbc.PFedMe(lr=lr), None) for lr in (0.01, 0.05)],
    "perfedbc": [(fedbc.PerFedBC(lr=lr), None) for lr in (0.01, 0.03)],
    "fedavg, fine-tuned": [
        (fedbc.FedAvg(lr=0.01, momentum=0.5), FineTune(steps=steps, lr=lr, of="global"))
        for steps in (50, 400)
        for lr in (0.01, 0.1)
    ],
    "localonly": [(fedbc.LocalOnly(lr=lr, momentum=0.5), None) for lr in (0.01, 0.03, 0.1)],
}


class Runs:
    """What is done, and doing the rest."""

    def __init__(self, file):
        self.file = Path(file)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.known = {line["key"]: line for line in map(json.loads, lines)}

    def get(self, key, compute):
        if key not in self.known:
            began = time.perf_counter()
            self.known[key] = {"key": key, **compute(), "seconds": time.perf_counter() - began}
            with self.file.open("a") as out:
                out.write(json.dumps(self.known[key]) + "\n")
            print(key, {k: v for k, v in self.known[key].items() if k != "key"}, flush=True)
        return self.known[key]

    def chosen(self, draw, federation, name, by="local"):
        """The setting that does best on validation data."""
        tried = [
            self.get(f"tune {draw} {name} {i}", lambda how=how: scores(simulate(*how, federation, 0, 0.2)))
            for i, how in enumerate(GRIDS[name])
        ]
        return GRIDS[name][int(np.argmax([line[by] for line in tried]))]


def simulate(algorithm, fine_tune, federation, seed, validation=None):
    how = {"rounds": 200, "epochs": 5, "sample": 10, "evaluate": ("global", "local")}
    every = 10 if fine_tune is None else 200
    return fedbc.simulate(
        algorithm,
        MODEL,
        federation,
        **how,
        seed=seed,
        evaluate_every=every,
        fine_tune=fine_tune,
        validation=validation,
    )


def scores(result):
    row = result.summary()
    return {"global": row["global_accuracy"], "local": row.get("finetuned_accuracy", row["local_accuracy"])}


def personalised(federation, algorithm, seed):
    result = simulate(algorithm, None, federation, seed)
    personal = fedbc.personalize(result, MODEL, federation)
    advice = personal.advice
    return {
        "global": scores(result)["global"],
        "z": float(np.nanmean(personal.global_accuracy)),
        "alone": float(np.nanmean(personal.accuracy("alone"))),
        "local": float(np.nanmean(personal.local_accuracy)),
        "gain": int((advice["low"] > 0).sum()),
        "lose": int((advice["high"] < 0).sum()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results")
    parser.add_argument("--draws", default="1,2,3,4,5")
    parser.add_argument("--seeds", default="0,1,2")
    given = parser.parse_args()
    runs = Runs(given.results)
    for seed in map(int, given.seeds.split(",")):
        for draw in map(int, given.draws.split(",")):
            federation = fedbc.data.synthetic(30, 0.5, 0.5, seed=draw)
            best, _ = runs.chosen(draw, federation, "fedbc", by="global")
            runs.get(f"{draw} {seed} personalised", lambda f=federation, b=best, s=seed: personalised(f, b, s))
            for name in GRIDS:
                how = runs.chosen(draw, federation, name)
                runs.get(f"{draw} {seed} {name}", lambda how=how, f=federation, s=seed: scores(simulate(*how, f, s)))


if __name__ == "__main__":
    main()
