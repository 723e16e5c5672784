"""FedBC with K_i drawn and with epsilon_i beside a fixed E, on the synthetic data and MNIST with one class per device.

`python tools/local_work.py` runs what docs/results/local-work.jsonl lacks (FEDBC_DATA says where MNIST is; a quarter of
an hour on two cores), draws docs/pictures/local-work.svg and prints the table of docs/local-training.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedbc
from fedbc import storage
from fedbc.paper.drawing import BLUE, GREEN, ORANGE, Figure, draw, legend_once, panels, plain_log

DOCS = Path(__file__).resolve().parents[1] / "docs"
RUNS = DOCS / "results" / "local-work.jsonl"
PICTURE = DOCS / "pictures" / "local-work.svg"
SCORES = {"global_accuracy": "z on all test sets", "local_accuracy": "x_i on its own"}


@dataclass(frozen=True)
class Task:
    """A federation, and how FedBC is run on it."""

    federation: Callable[[], fedbc.data.Federation]
    model: Callable[[], fedbc.models.Model]
    algorithm: fedbc.FedBC
    rounds: int
    every: int
    epsilon: tuple[float, int]
    """and the epochs that are its limit"""
    seeds: tuple[int, ...] = (1, 2, 3)

    def work(self) -> dict[str, dict[str, Any]]:
        """What each kind of local work is called, and the run's arguments."""
        epsilon, limit = self.epsilon
        return {
            "5 epochs": {"epochs": 5},
            "drawn from 1 to 5 epochs": {"epochs": "1-5"},
            f"epsilon {epsilon}, at most {limit} epochs": {"epochs": limit, "epsilon": epsilon},
        }


TASKS = {
    "synthetic, draw 2": Task(
        lambda: fedbc.data.synthetic(devices=30, seed=2),
        lambda: fedbc.models.logistic(60, 10),
        fedbc.FedBC(lr=0.01, momentum=0.5, dual_lr=0.00001),
        rounds=200,
        every=5,
        epsilon=(0.05, 20),
    ),
    "MNIST, C = 1": Task(
        lambda: fedbc.data.mnist(classes=1, exponent=1.3, split="shuffled"),
        fedbc.models.mlp,
        fedbc.FedBC(lr=0.1, momentum=0.5, dual_lr=0.0001),
        rounds=40,
        every=2,
        epsilon=(0.01, 5),
        seeds=(1, 2),
    ),
}


def run(task: Task, chosen: dict[str, Any], seed: int) -> dict[str, Any]:
    """The curves of a run, over the examples whose gradient was formed: those of steps and those of residuals."""
    federation = task.federation()
    result = fedbc.simulate(
        task.algorithm, task.model(), federation, rounds=task.rounds, sample=10, seed=seed,
        evaluate=("global", "local"), evaluate_every=task.every, **chosen,
    )  # fmt: skip
    told = result.devices
    if "steps" not in told:
        told = told.assign(steps=chosen["epochs"] * np.ceil(told["examples"] / 20))
    checked = told["checks"] if "checks" in told else 0 * told["steps"]
    # An epoch's last batch may be smaller: its examples are counted, not its places.
    per_epoch = np.ceil(told["examples"] / 20)
    examples = told["steps"] * told["examples"] / per_epoch + checked * told["examples"]
    sofar = examples.groupby(told["round"]).sum().cumsum()
    rows = result.history.dropna(subset=["global_accuracy"])
    return {
        "round": rows["round"].tolist(),
        "examples": sofar.loc[rows["round"]].round().astype(int).tolist(),
        **{name: rows[name].round(5).tolist() for name in SCORES},
        "steps": int(told["steps"].sum()),
        "checks": int(checked.sum()),
        "within": float((told["residual"] <= chosen["epsilon"]).mean()) if "epsilon" in chosen else None,
        "summary": {name: round(result.summary(last=20)[name], 5) for name in SCORES},
    }


def run_missing() -> list[dict[str, Any]]:
    """All runs, from the file where they are there."""
    lines = [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []
    known = {(line["task"], line["work"], line["seed"]) for line in lines}
    for seed in (1, 2, 3):
        for name, task in TASKS.items():
            for work, chosen in task.work().items():
                if seed in task.seeds and (name, work, seed) not in known:
                    lines.append({"task": name, "work": work, "seed": seed, **run(task, chosen, seed)})
                    storage.write_atomically(RUNS, "".join(json.dumps(line) + "\n" for line in lines))
                    print(name, work, seed, lines[-1]["summary"], flush=True)
    return lines


def paint(lines: list[dict[str, Any]]) -> Any:
    """Accuracy against the examples whose gradient was formed, mean over seeds."""
    picture, axes = panels([f"{task}: {said}" for task in TASKS for said in SCORES.values()], 3.1, 3.0)
    places = iter(axes)
    for task in TASKS:
        for score in SCORES:
            a = next(places)
            for (number, work), colour in zip(enumerate(TASKS[task].work()), (BLUE, GREEN, ORANGE), strict=True):
                runs = [line for line in lines if line["task"] == task and line["work"] == work]
                if runs:
                    label = ("5 epochs", "drawn from 1 to 5 epochs", "epsilon, with a limit")[number]
                    at = np.mean([line["examples"] for line in runs], axis=0) / 1e6
                    values = 100 * np.array([line[score] for line in runs])
                    a.plot(
                        at, values.mean(0), color=colour, linewidth=1.5, label=label, linestyle=("-", "--", ":")[number]
                    )
                    a.fill_between(at, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
            plain_log(a, "x")
            a.set_xlabel("gradients of single examples, million")
    axes[0].set_ylabel("accuracy, %")
    legend_once(picture, axes)
    return picture


def table(lines: list[dict[str, Any]]) -> str:
    """The means over seeds."""
    out = [
        "| data | local work | global accuracy | local accuracy | local steps | exact gradients | million gradients |"
    ]
    out += ["| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, task in TASKS.items():
        for work in task.work():
            runs = [line for line in lines if line["task"] == name and line["work"] == work]
            scores = [np.mean([line["summary"][s] for line in runs]) for s in SCORES]
            told = [(line["steps"], line["checks"], line["examples"][-1]) for line in runs]
            steps, checks, examples = np.mean(told, axis=0)
            cells = [
                name,
                work,
                *(f"{s:.3f}" for s in scores),
                f"{steps:,.0f}",
                f"{checks:,.0f}",
                f"{examples / 1e6:.2f}",
            ]
            out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = run_missing()
    drawn = draw(Figure("local-work", "Local work", "", "", lambda _: paint(found)), None)  # type: ignore[arg-type]
    assert drawn is not None
    storage.write_atomically(PICTURE, drawn.alone.encode())
    print(table(found))
