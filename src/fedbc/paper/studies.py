"""What the paper shows that is not a sweep of runs: the toy example, the theorem in numbers, the partitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedbc import data, storage
from fedbc.data.federation import Federation
from fedbc.data.picture import class_counts
from fedbc.paper import epsilon, theory, toy
from fedbc.paper.catalogue import CLASSES, EXPONENTS
from fedbc.runs import Line, Lines

Progress = Callable[[str, int, int], None]
C = TypeVar("C", theory.Case, epsilon.Case)


@dataclass(frozen=True)
class Study:
    """A named computation with a file of its own in the results folder."""

    name: str
    title: str
    file: str
    run: Callable[[Path, Progress], None]
    total: int
    minutes: float

    def done(self, folder: Path) -> int:
        """How many of its parts the folder holds."""
        path = folder / self.file
        if not path.exists():
            return 0
        return self.total if path.suffix == ".json" else len(Lines(path).read())

    def read(self, folder: Path) -> Any:
        """Its results; None where it was not run."""
        path = folder / self.file
        if not path.exists():
            return None
        return json.loads(path.read_text()) if path.suffix == ".json" else list(Lines(path).read().values())


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(path, json.dumps(value) + "\n")


def _run_toy(path: Path, progress: Progress) -> None:
    if not path.exists():
        progress("toy", 0, 1)
        _write(path, toy.study())
    progress("toy", 1, 1)


def _run_cases(name: str, cases: Iterable[C], run: Callable[[C], Line], path: Path, progress: Progress) -> None:
    """Those that the file lacks, a line for each."""
    lines = Lines(path)
    known = lines.read()
    every = {case.key: case for case in cases}
    for number, (key, case) in enumerate(every.items(), 1):
        if key not in known:
            lines.append(run(case))
        progress(name, number, len(every))


def _run_theory(path: Path, progress: Progress) -> None:
    _run_cases("theory", (case for _, case in theory.cases()), theory.run_case, path, progress)


def _run_epsilon(path: Path, progress: Progress) -> None:
    _run_cases("epsilon", epsilon.cases(), epsilon.run_case, path, progress)


def _run_partitions(path: Path, progress: Progress) -> None:
    if path.exists():
        progress("partitions", 1, 1)
        return
    found: dict[str, Any] = {"classes": [], "sizes": [], "synthetic": {}}
    total = 2 * len(CLASSES) * len(EXPONENTS)
    for name, load in (("MNIST", data.mnist), ("CIFAR-10", data.cifar10)):
        for classes in CLASSES:
            for exponent in EXPONENTS:
                federation = load(classes=classes, exponent=exponent)
                counts = sum(class_counts(s, 10) for s in (federation.train, federation.test))
                held = np.unique((np.asarray(counts) > 0).sum(1), return_counts=True)
                pairs = [[int(n), int(c)] for c, n in zip(*held, strict=True)][::-1]
                setting = {"dataset": name, "classes": classes, "exponent": exponent}
                in_order = _tested_untrained(load(classes=classes, exponent=exponent, split="ordered"))
                found["classes"].append({**setting, "devices_by_class_count": pairs, "in_order": in_order})
                if classes == 1:
                    sizes = (federation.train.sizes + federation.test.sizes).tolist()
                    found["sizes"].append({"dataset": name, "exponent": exponent, "sizes": sizes})
                progress("partitions", len(found["classes"]), total)
    for devices in (30, 70, 100):
        federation = data.synthetic(devices=devices)
        found["synthetic"][str(devices)] = (federation.train.sizes + federation.test.sizes).tolist()
    _write(path, found)


def _tested_untrained(federation: Federation) -> dict[str, Any]:
    """How many examples each device tests of classes that it does not train on; the last devices are the largest.

    The reference protocol splits in class order, which makes many of them; a shuffled split makes hardly any.
    """
    trained, tested = (class_counts(split, 10) for split in (federation.train, federation.test))
    untrained = np.where(trained == 0, tested, 0).sum(1)
    return {"test": int(tested.sum()), "untrained": untrained.tolist()}


STUDIES = {
    s.name: s
    for s in (
        Study("toy", "Consensus against beyond consensus: two quadratics in the plane", "toy.json", _run_toy, 1, 0.3),
        Study(
            "theory",
            "The theorem in numbers: quadratics and logistic regression",
            "theory.jsonl",
            _run_theory,
            len({case.key for _, case in theory.cases()}),
            5,
        ),
        Study(
            "epsilon",
            "Local steps against epsilon: gradient descent and SGD",
            "epsilon.jsonl",
            _run_epsilon,
            len(list(epsilon.cases())),
            2,
        ),
        Study(
            "partitions",
            "Partitions of MNIST, CIFAR-10 and the synthetic data",
            "partitions.json",
            _run_partitions,
            1,
            1,
        ),
    )
}
"""Further computations, besides runs, that the report needs, by name."""
