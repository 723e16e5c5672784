"""How many local steps an epsilon_i takes: the oracle of Algorithm 2, with epsilon itself on the axis.

The paper counts O(1/epsilon) steps of gradient descent, and O(1/epsilon²) of SGD, until ‖∇_x L_i‖² <= epsilon_i: the
rates for smooth functions that need not be convex. One device of the synthetic data, in the first round of FedBC, where
lambda = 0 and so L_i is f_i, with a logistic model, which is convex, and a network of one hidden layer, which is not.
Gradient descent has a fixed rate. SGD's rate is in proportion to epsilon, as its analysis has it; the residual is exact
for both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

import fedbc
from fedbc.data.federation import Federation
from fedbc.models.base import Model

DRAW, DEVICE = 2, 0
RATE = 0.05
MODELS: dict[str, Callable[[], Model]] = {
    "logistic regression": lambda: fedbc.models.logistic(60, 10),
    "one hidden layer of 32": lambda: fedbc.models.mlp(60, 32, 10),
}
DESCENT = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
STOCHASTIC = (0.3, 0.14, 0.065, 0.03, 0.014, 0.0065, 0.003)
SHARE = 4
"""SGD's rate is epsilon over this, at most `RATE`."""
BATCH = 10
DRAWS = 5
"""Of SGD's batches."""
EVERY = 5
"""SGD's residual is formed every so many steps."""
LIMIT = 40_000
"""Steps after which a device gives up."""


@dataclass(frozen=True)
class Case:
    """One run: gradient descent to every epsilon, or SGD to one of them."""

    model: str
    epsilons: tuple[float, ...]
    stochastic: bool
    limit: int = LIMIT

    @property
    def key(self) -> str:
        """A hash, by which it is found again."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]

    @property
    def rate(self) -> float:
        """beta"""
        return min(RATE, self.epsilons[0] / SHARE) if self.stochastic else RATE


def cases() -> Iterator[Case]:
    """All of them."""
    for model in MODELS:
        yield Case(model, DESCENT, False)
        for epsilon in STOCHASTIC:
            yield Case(model, (epsilon,), True)


def copies(count: int) -> Federation:
    """Devices that all hold the same data: each has an epsilon, or a draw of batches, of its own."""
    device = fedbc.data.synthetic(devices=30, seed=DRAW).train.of(DEVICE)
    return fedbc.data.federation([device] * count, [device] * count, classes=10, name=f"{count} copies of a device")


def run_case(case: Case) -> dict[str, Any]:
    """The steps that each epsilon took, one number per draw; None where `limit` steps did not do."""
    count = DRAWS if case.stochastic else len(case.epsilons)
    result = fedbc.simulate(
        fedbc.FedBC(lr=case.rate),
        MODELS[case.model](),
        copies(count),
        rounds=1,
        steps=case.limit,
        batch_size=BATCH if case.stochastic else None,
        epsilon=case.epsilons[0] if case.stochastic else case.epsilons,
        check_every=EVERY if case.stochastic else 1,
        seed=1,
        evaluate=(),
    )
    told = result.devices.sort_values("device")
    epsilons = case.epsilons * (count if case.stochastic else 1)
    arrived = told["residual"].to_numpy() <= epsilons
    steps = [int(k) if there else None for k, there in zip(told["steps"], arrived, strict=True)]
    return {
        "hash": case.key,
        "case": asdict(case),
        "rate": case.rate,
        "steps": [steps] if case.stochastic else [[k] for k in steps],
    }


class Point(NamedTuple):
    """An epsilon that all draws arrived at, and the steps that it took them."""

    epsilon: float
    median: float
    least: int
    most: int


def points(lines: Iterable[dict[str, Any]]) -> list[Point]:
    """Of some cases' results, from the largest epsilon down."""
    told = [(e, steps) for line in lines for e, steps in zip(line["case"]["epsilons"], line["steps"], strict=True)]
    arrived = [(e, steps) for e, steps in told if None not in steps]
    return [Point(e, float(np.median(steps)), min(steps), max(steps)) for e, steps in sorted(arrived, reverse=True)]
