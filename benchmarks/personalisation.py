"""Personalisation beside methods that are tuned on validation data.

    python benchmarks/personalisation.py results/personalisation/measured.jsonl synthetic --draws 1,2 --seeds 1,2

One line of JSON per run; what the file holds is not run again. Every method has as many settings. The one with the best
local accuracy on a fifth of the training examples, seed 0, in the mean of the last evaluations, is trained on all of
them with each seed, and its last models are measured on the test sets. The global model that is personalised is the
last one of the method with the best global accuracy on the held-out examples, its setting chosen likewise. Choices are
made on the federation at hand, or, on images, on another one with as many classes per device (`Task.chosen_on`).
docs/personalisation.md tells the outcome.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedbc
from fedbc import FineTune, progress
from fedbc.runs.pool import Job, do_jobs

Line = dict[str, Any]


def _finetuned(lr, steps, rate):
    return {"name": "fedavg", "lr": lr, "momentum": 0.5, "fine_tune": {"steps": steps, "lr": rate, "of": "global"}}


SMALL = {
    "fedbc": [
        {"name": "fedbc", "lr": lr, "momentum": 0.5, "dual_lr": dual}
        for lr in (0.01, 0.03, 0.1)
        for dual in (1e-4, 1e-2)
    ],
    "ditto": [
        {"name": "ditto", "lr": 0.01, "momentum": 0.5, "personal_lr": lr, "penalty": penalty}
        for lr in (0.03, 0.1)
        for penalty in (0.001, 0.01, 0.1)
    ],
    "pfedme": [{"name": "pfedme", "lr": lr, "penalty": p} for lr in (0.01, 0.05) for p in (1.0, 5.0, 15.0)],
    "perfedbc": [
        {"name": "perfedbc", "lr": lr, "inner_lr": inner} for lr in (0.01, 0.03, 0.1) for inner in (0.01, 0.1)
    ],
    "fedavg": [_finetuned(lr, *how) for lr in (0.01, 0.03) for how in ((50, 0.03), (400, 0.03), (400, 0.1))],
    "localonly": [
        {"name": "localonly", "lr": lr, "momentum": 0.5, "rounds": rounds}
        for lr in (0.01, 0.03, 0.1)
        for rounds in (60, 200)
    ],
}
"""Six settings of each method, for models of a few hundred numbers."""

LARGE = {
    "fedbc": [{"name": "fedbc", "lr": lr, "momentum": 0.5, "dual_lr": 1e-4} for lr in (0.01, 0.03)],
    "ditto": [{"name": "ditto", "lr": 0.01, "momentum": 0.5, "personal_lr": 0.01, "penalty": p} for p in (0.1, 1.0)],
    "pfedme": [{"name": "pfedme", "lr": 0.01, "penalty": p} for p in (1.0, 15.0)],
    "perfedbc": [{"name": "perfedbc", "lr": lr, "inner_lr": 0.01} for lr in (0.01, 0.03)],
    "fedavg": [_finetuned(0.01, steps, 0.01) for steps in (100, 400)],
    "localonly": [{"name": "localonly", "lr": lr, "momentum": 0.5} for lr in (0.01, 0.03)],
}
"""Two of each, where a run takes a minute."""

SHAKESPEARE = {
    "fedbc": [{"name": "fedbc", "lr": lr, "momentum": 0.5, "dual_lr": 1e-4} for lr in (0.3, 1.0)],
    "ditto": [{"name": "ditto", "lr": 1.0, "momentum": 0.5, "personal_lr": lr, "penalty": 0.1} for lr in (0.3, 1.0)],
    "fedavg": [_finetuned(1.0, steps, 0.3) for steps in (20, 100)],
    "localonly": [{"name": "localonly", "lr": lr, "momentum": 0.5} for lr in (0.3, 1.0)],
}
"""Where it takes many; rates about the chosen ones of results/chosen/shakespeare-e1.toml."""

GLOBAL = ("fedbc", "fedavg", "pfedme", "perfedbc")
"""The methods with a global model of their own; Ditto's is FedAvg's."""


@dataclass(frozen=True)
class Task:
    """A federation's kind, the model, and how it is trained."""

    model: Any
    federation: Any
    run: Line
    grids: dict[str, list[Line]]
    chosen_on: str | None = None
    """The task on whose held-out examples choices are made, if not on this one's."""


def _cifar10(classes, exponent, chosen_on=None):
    return Task(
        fedbc.models.cnn,
        functools.partial(_images, fedbc.data.cifar10, classes, exponent),
        {"rounds": 100, "epochs": 1, "sample": 10},
        LARGE,
        chosen_on,
    )


def _images(data, classes, exponent, draw):
    return data(20, classes, exponent, seed=draw)


TASKS = {
    "synthetic": Task(
        functools.partial(fedbc.models.logistic, 60, 10),
        lambda draw: fedbc.data.synthetic(30, 0.5, 0.5, seed=draw),
        {"rounds": 200, "epochs": 5, "sample": 10},
        SMALL,
    ),
    "cifar10-3-1.2": _cifar10(3, 1.2),
    "cifar10-3-1.4": _cifar10(3, 1.4, "cifar10-3-1.2"),
    "cifar10-2-1.4": _cifar10(2, 1.4),
    "cifar10-2-1.2": _cifar10(2, 1.2, "cifar10-2-1.4"),
    "cifar10-1-1.2": _cifar10(1, 1.2),
    "mnist-2-1.3": Task(
        fedbc.models.mlp,
        functools.partial(_images, fedbc.data.mnist, 2, 1.3),
        {"rounds": 100, "epochs": 1, "sample": 10},
        LARGE,
    ),
    "shakespeare": Task(
        fedbc.models.lstm,
        lambda draw: fedbc.data.shakespeare(stride=10, seed=draw),
        {"rounds": 40, "epochs": 1, "sample": 10},
        SHAKESPEARE,
    ),
}


def simulate(task: Task, setting: Line, draw: int, seed: int, **more: Any) -> Any:
    """One run of a method with a setting."""
    given = dict(setting)
    algorithm, tune = fedbc.algorithms.ALGORITHMS[given.pop("name")], given.pop("fine_tune", None)
    run = {**task.run, "rounds": given.pop("rounds", task.run["rounds"])}
    return fedbc.simulate(
        algorithm(**given),
        task.model(),
        task.federation(draw),
        **run,
        seed=seed,
        evaluate=("global", "local"),
        fine_tune=FineTune(**tune) if tune else None,
        **more,
    )


def accuracies(row: Line) -> Line:
    """Of z on all test sets, and of the devices' own models, each on its own."""
    return {"global": row["global_accuracy"], "local": row.get("finetuned_accuracy", row["local_accuracy"])}


def measure(name: str, key: str, setting: Line, draw: int, seed: int, validation: float | None) -> Line:
    """What a run's models get right: the last ones on the test sets, or, in the mean of the last third of the rounds,
    on examples that were held out, which is steadier to choose by."""
    began = time.perf_counter()
    rounds = setting.get("rounds", TASKS[name].run["rounds"])
    often = rounds if validation is None else max(1, rounds // 10)
    result = simulate(TASKS[name], setting, draw, seed, validation=validation, evaluate_every=often)
    found = accuracies(result.summary(1 if validation is None else rounds // 3))
    return {"key": key, "setting": setting, **found, "seconds": round(time.perf_counter() - began, 2)}


def personalise(name: str, key: str, setting: Line, draw: int, seed: int, unseen: float | None) -> Line:
    """What the personalised models get right, device by device."""
    task = TASKS[name]
    began = time.perf_counter()
    given = {k: v for k, v in setting.items() if k != "fine_tune"}
    rounds = task.run["rounds"]
    result = simulate(task, given, draw, seed, unseen=unseen, evaluate_every=rounds)
    trained = time.perf_counter()
    personal = fedbc.personalize(result, task.model(), task.federation(draw))
    done = time.perf_counter()
    advice = personal.advice
    devices = {
        of: [None if np.isnan(a) else round(float(a), 5) for a in personal.accuracy(of)]
        for of in ("global", "alone", "personal")
    }
    line = {
        "key": key,
        "setting": setting,
        "global": result.summary(1)["global_accuracy"],
        "trained": result.summary(1)["local_accuracy"],
        "z": float(np.nanmean(personal.global_accuracy)),
        "alone": float(np.nanmean(personal.accuracy("alone"))),
        "local": float(np.nanmean(personal.local_accuracy)),
        "gain": int((advice["low"] > 0).sum()),
        "lose": int((advice["high"] < 0).sum()),
        "tests": personal.test_examples.tolist(),
        "tolerances": [float(f"{t:.4g}") if np.isfinite(t) else None for t in personal.tolerances],
        "epochs": [int(e) if np.isfinite(e) else None for e in personal.epochs],
        "devices": devices,
        "train_seconds": round(trained - began, 2),
        "seconds": round(done - trained, 2),
    }
    if unseen is not None:
        late = personal.unseen
        line["unseen"] = {of: float(np.nanmean(personal.accuracy(of)[late])) for of in devices}
    return line


class Runs:
    """What is done, and doing the rest."""

    def __init__(self, file: str, workers: int | None) -> None:
        self.file, self.workers = Path(file), workers
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.known: dict[str, Line] = {line["key"]: line for line in map(json.loads, lines)}

    def do(self, wanted: dict[str, Any], name: str) -> None:
        """The runs of these keys that are not done."""
        jobs = [Job(work, key, 1, {"key": key}) for key, work in wanted.items() if key not in self.known]
        for line in do_jobs(jobs, workers=self.workers, name=name):
            if "error" in line:
                raise SystemExit(f"{line['key']}: {line['error']}")
            self.known[line["key"]] = line
            with self.file.open("a") as out:
                out.write(json.dumps(line) + "\n")

    def chosen(self, name: str, draw: int, method: str, by: str) -> Line:
        """The method's setting that does best on held-out examples."""
        where = TASKS[name].chosen_on or name
        grid = TASKS[where].grids[method]
        return grid[int(np.argmax([self.known[tuning(where, draw, method, i)][by] for i in range(len(grid))]))]

    def best_global(self, name: str, draw: int, methods: list[str]) -> Line:
        """The setting with the best global model on held-out examples, of all methods that have one."""
        where = TASKS[name].chosen_on or name
        found = {
            self.known[tuning(where, draw, method, i)]["global"]: setting
            for method in methods
            if method in GLOBAL
            for i, setting in enumerate(TASKS[where].grids[method])
        }
        return found[max(found)]


def tuning(name: str, draw: int, method: str, number: int) -> str:
    """The key of a run on validation data."""
    return f"tune {name} {draw} {method} {number}"


def main() -> None:
    """All of it, in order of need."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--draws", default="1,2,3,4,5")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--methods", default=",".join(SMALL))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--part", choices=("choose", "others", "personal", "unseen"), action="append")
    given = parser.parse_args()
    runs, name = Runs(given.results, given.workers), given.task
    where = TASKS[name].chosen_on or name
    draws, seeds = ([int(n) for n in text.split(",")] for text in (given.draws, given.seeds))
    methods = [method for method in given.methods.split(",") if method in TASKS[name].grids]
    parts = given.part or ["choose", "personal", "unseen", "others"]
    with progress.shown(quiet=False):
        for draw in draws:
            if "choose" in parts:
                wanted = {
                    (key := tuning(where, draw, method, i)): functools.partial(
                        measure, where, key, setting, draw, 0, 0.2
                    )
                    for method in methods
                    for i, setting in enumerate(TASKS[where].grids[method])
                }
                runs.do(wanted, f"settings, draw {draw}")
            for part, unseen in (("personal", None), ("unseen", 0.2)):
                if part in parts:
                    best = runs.best_global(name, draw, methods)
                    wanted = {}
                    for seed in seeds:
                        key = f"{name} {draw} {seed} {part}"
                        wanted[key] = functools.partial(personalise, name, key, best, draw, seed, unseen)
                    runs.do(wanted, f"{part}, draw {draw}")
            if "others" in parts:
                wanted = {}
                for seed in seeds:
                    for method in methods:
                        settings = {"local": runs.chosen(name, draw, method, "local")}
                        other = runs.chosen(name, draw, method, "global")
                        if method in GLOBAL and other != settings["local"]:
                            settings["global"] = other
                        for by, setting in settings.items():
                            key = f"{name} {draw} {seed} {method} {by}"
                            wanted[key] = functools.partial(measure, name, key, setting, draw, seed, None)
                runs.do(wanted, f"methods, draw {draw}")


if __name__ == "__main__":
    main()
