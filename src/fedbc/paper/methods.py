"""The methods of the paper's tables, with the grids of its appendix, the controls that it lacks, and both protocols.

`paper` is the method as its authors define it, with sound evaluation; `reference` is what the paper's public code of
2022 does (`fedbc.experiments.reference`). A method's hyper-parameters are chosen once, under the paper protocol.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedbc.errors import unknown
from fedbc.experiments.reference import dual_rate

RATES = (0.001, 0.01, 0.1, 0.5, 1.0)
MU = (0.0001, 0.001, 0.01, 0.1, 1.0)
Q = (0.001, 0.01, 0.1, 1.0, 2.0, 5.0)
DUAL_RATES = (1e-7, 1e-6, 1e-5, 0.0001, 0.001, 0.01)
PENALTIES = (0.01, 0.1, 1.0, 10.0)
STATED_OUTER_RATE = 0.001
OUTER_RATES = (STATED_OUTER_RATE, 0.01)
"""Of Per-FedAvg and Per-FedBC: the one that the paper states, and the inner rate, which its code applies instead."""

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """One row of a table."""

    key: str
    label: str
    """as the reports name it"""
    fixed: Mapping[str, Any]
    """the algorithm's table without what is tuned"""
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    printed: str | None = None
    """the paper's name for the row whose numbers it is compared with; None for controls and variants"""
    score: str = "global_accuracy"
    """the column by whose mean over the last rounds hyper-parameters are chosen"""
    like: str | None = None
    """the method whose choice it takes over, as `derived` says"""
    local: str = "local_accuracy"
    """the column that the table of local accuracy shows"""
    note: str = ""

    def candidates(self) -> list[Arguments]:
        """The algorithm's table for every point of the grid."""
        points = itertools.product(*self.grid.values())
        return [{**self.fixed, **dict(zip(self.grid, values, strict=True))} for values in points]

    def matches(self, algorithm: Mapping[str, Any]) -> bool:
        """Whether an algorithm's table is a point of this method's grid."""
        return all(algorithm.get(k) == v for k, v in self.fixed.items()) and (
            set(algorithm) == set(self.fixed) | set(self.grid)
        )

    def derived(self, chosen: Arguments) -> Arguments:
        """The algorithm's table from the choice of the method it is `like`."""
        if self.key == "fedbc-reference":
            return {**chosen, "dual_lr": dual_rate(chosen["dual_lr"])}
        if self.key == "perfedbc-reference":
            return {**chosen, "lr": 0.01, "dual_lr": dual_rate(chosen["dual_lr"])}
        if self.key == "fedbc-weights":
            return {**chosen, "dual_lr": DUAL_RATES[0]}
        return chosen


_M = {"momentum": 0.5}

METHODS = {
    m.key: m
    for m in (
        Method("fedavg", "FedAvg", {"name": "fedavg", "weights": "examples", **_M}, {"lr": RATES}, "FedAvg"),
        Method("fedavg-uniform", "FedAvg, uniform", {"name": "fedavg", "weights": "uniform", **_M}, {"lr": RATES}),
        Method(
            "fedavg-root",
            "FedAvg, √n_i",
            {"name": "fedavg", "weights": "root", **_M},
            {"lr": RATES},
            note="between uniform weights and those by size, where FedBC's own lie on the images",
        ),
        Method("qfedavg", "q-FedAvg", {"name": "qfedavg", **_M}, {"lr": RATES, "q": Q}, "q-FedAvg"),
        Method(
            "qfedavg-reference",
            "q-FedAvg, reference",
            {"name": "reference-qfedavg", **_M},
            {"lr": RATES, "q": Q},
            "q-FedAvg",
            note="the norm in h lacks 1/lr²; sums weighted by examples",
        ),
        Method(
            "fedprox",
            "FedProx",
            {"name": "fedprox", "weights": "examples", **_M},
            {"lr": RATES, "mu": MU},
            "FedProx",
        ),
        Method(
            "fedprox-uniform",
            "FedProx, uniform",
            {"name": "fedprox", "weights": "uniform", **_M},
            {"lr": RATES, "mu": MU},
        ),
        Method("scaffold", "SCAFFOLD", {"name": "scaffold", **_M}, {"lr": RATES}, "SCAFFOLD"),
        Method(
            "scaffold-reference",
            "SCAFFOLD, reference",
            {"name": "reference-scaffold", **_M},
            {"lr": RATES},
            "SCAFFOLD",
            note="control variates start from random networks and are twice too large",
        ),
        Method("fedbc", "FedBC", {"name": "fedbc", **_M}, {"lr": RATES, "dual_lr": DUAL_RATES}, "FedBC"),
        Method(
            "fedbc-reference",
            "FedBC, reference",
            {"name": "fedbc", **_M},
            printed="FedBC",
            like="fedbc",
            local="local_accuracy_weighted",
            note="dual momentum 0.5: twice the dual rate",
        ),
        Method(
            "fedbc-weights",
            "FedBC, weights alone",
            {"name": "fedbc", **_M},
            like="fedbc",
            note=f"the least dual rate of the grid, {DUAL_RATES[0]:g}: weights by lambda, no pull to speak of",
        ),
        Method(
            "fedbc-letter",
            "FedBC from x_i",
            {"name": "fedbc", "start": "local", **_M},
            {"lr": RATES, "dual_lr": DUAL_RATES},
            note="Algorithm 2 to the letter: local training starts from the device's own model",
        ),
        Method(
            "perfedavg",
            "Per-FedAvg",
            {"name": "perfedavg", "inner_lr": 0.01},
            {"lr": OUTER_RATES},
            "Per-FedAvg",
            score="finetuned_accuracy",
            local="finetuned_accuracy",
            note="z after one step on a training batch",
        ),
        Method(
            "perfedavg-stated",
            "Per-FedAvg, rate 0.001",
            {"name": "perfedavg", "lr": STATED_OUTER_RATE, "inner_lr": 0.01},
            local="finetuned_accuracy",
            note="the outer rate that the paper states",
        ),
        Method(
            "perfedavg-reference",
            "Per-FedAvg, reference",
            {"name": "perfedavg", "lr": 0.01, "inner_lr": 0.01, "weights": "examples", **_M},
            printed="Per-FedAvg",
            local="finetuned_on_test_accuracy_weighted",
            note="outer rate 0.01; x_i after one step on a TEST batch",
        ),
        Method(
            "pfedme",
            "pFedMe",
            {"name": "pfedme"},
            {"lr": (0.01, 0.1), "penalty": PENALTIES},
            "pFedMe",
            score="local_accuracy",
        ),
        Method(
            "pfedme-reference",
            "pFedMe, reference",
            {"name": "reference-pfedme", "lr": 0.01},
            {"penalty": PENALTIES},
            "pFedMe",
            score="local_accuracy",
            local="local_accuracy_weighted",
            note="the device's own model is w_i, not theta_i",
        ),
        Method(
            "perfedbc",
            "Per-FedBC",
            {"name": "perfedbc", "inner_lr": 0.01},
            {"lr": OUTER_RATES, "dual_lr": DUAL_RATES},
            "Per-FedBC",
            score="finetuned_accuracy",
            local="finetuned_accuracy",
            note="x_i after one step on a training batch",
        ),
        Method(
            "perfedbc-stated",
            "Per-FedBC, rate 0.001",
            {"name": "perfedbc", "lr": STATED_OUTER_RATE, "inner_lr": 0.01, "dual_lr": DUAL_RATES[0]},
            local="finetuned_accuracy",
            note="the outer rate that the paper states; in tuning no dual rate made a difference there",
        ),
        Method(
            "perfedbc-reference",
            "Per-FedBC, reference",
            {"name": "perfedbc", "inner_lr": 0.01},
            printed="Per-FedBC",
            like="perfedbc",
            local="finetuned_on_test_accuracy_weighted",
            note="outer rate 0.01; x_i after one step on a TEST batch",
        ),
    )
}

SOUND = ("fedavg", "fedavg-uniform", "fedavg-root", "qfedavg", "fedprox", "fedprox-uniform", "scaffold", "fedbc")
"""The global tables under the paper protocol, with the controls."""
REFERENCE = (
    *("fedavg", "fedavg-uniform", "qfedavg-reference", "fedprox", "fedprox-uniform"),
    *("scaffold-reference", "fedbc-reference"),
)
"""The same under the reference protocol."""
PERSONAL = ("perfedavg", "pfedme", "perfedbc")
STATED = ("perfedavg-stated", "perfedbc-stated")
PERSONAL_REFERENCE = ("perfedavg-reference", "pfedme-reference", "perfedbc-reference")


def method(key: str) -> Method:
    """Look a method up."""
    if key not in METHODS:
        raise unknown("method", key, METHODS)
    return METHODS[key]
