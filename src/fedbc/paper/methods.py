"""The methods of the paper's tables, with the grids of its appendix, the controls that it lacks, and both protocols.

`paper` is the method as its authors define it, with sound evaluation; `reference` is what the paper's public code of
2022 does (`fedbc.paper.reference`). A method's hyper-parameters are chosen once, under the paper protocol.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fedbc.errors import unknown
from fedbc.paper.reference import dual_rate
from fedbc.selection.grids import DUAL_RATES, GRIDS, OUTER_RATES, PENALTIES, RATES

STATED_OUTER_RATE = OUTER_RATES[0]

Arguments = dict[str, Any]


class Protocol(StrEnum):
    """How runs are made and evaluated."""

    PAPER = "paper"
    REFERENCE = "reference"


class Family(StrEnum):
    """The algorithm that a method is, or is a variant of."""

    FEDAVG = "fedavg"
    QFEDAVG = "qfedavg"
    FEDPROX = "fedprox"
    SCAFFOLD = "scaffold"
    FEDBC = "fedbc"
    PERFEDAVG = "perfedavg"
    PFEDME = "pfedme"
    PERFEDBC = "perfedbc"
    DITTO = "ditto"
    LOCALONLY = "localonly"


class Variant(StrEnum):
    """What a method changes of its family."""

    PUBLISHED = "published"
    """nothing: as its authors define it"""
    UNIFORM = "uniform"
    """all devices weigh alike"""
    ROOT = "root"
    """a device weighs √n_i"""
    REFERENCE = "reference"
    """as the paper's public code has it"""
    WEIGHTS = "weights"
    """FedBC's weights without its pull"""
    LETTER = "letter"
    """Algorithm 2 to the letter"""
    PLAIN = "plain"
    """without momentum"""
    CONSENSUS = "consensus"
    """FedBC with gamma = 0"""
    STATED = "stated"
    """the outer rate that the paper states"""
    DAMPED = "damped"
    """SCAFFOLD's corrections at full length for ten steps only"""


@dataclass(frozen=True)
class Method:
    """One row of a table."""

    family: Family
    label: str
    """as the reports name it"""
    variant: Variant = Variant.PUBLISHED
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """the algorithm's table without what is tuned"""
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    printed: str | None = None
    """the paper's name for the row whose numbers it is compared with; None for controls and variants"""
    score: str = "global_accuracy"
    """the column by whose mean over the last rounds hyper-parameters are chosen"""
    like: str | None = None
    """the method whose choice it takes over"""
    change: Callable[[Arguments], Arguments] = field(default=lambda chosen: {})
    """what it changes of that choice"""
    local: str = "local_accuracy"
    """the column that the table of local accuracy shows"""
    note: str = ""

    @property
    def key(self) -> str:
        """Its name on the command line and in tables of choices."""
        return self.family.value if self.variant is Variant.PUBLISHED else f"{self.family}-{self.variant}"

    @property
    def protocol(self) -> Protocol:
        """The one that it belongs to, even in an experiment of the other."""
        return Protocol.REFERENCE if self.variant is Variant.REFERENCE else Protocol.PAPER

    def candidates(self) -> list[Arguments]:
        """The algorithm's table for every point of the grid."""
        points = itertools.product(*self.grid.values())
        return [{**self.fixed, **dict(zip(self.grid, values, strict=True))} for values in points]

    def matches(self, algorithm: Mapping[str, Any]) -> bool:
        """Whether an algorithm's table is a point of this method's grid."""
        return all(algorithm.get(k) == v for k, v in self.fixed.items()) and (
            set(algorithm) == set(self.fixed) | set(self.grid)
        )


def _published(family: Family, label: str, local: str = "local_accuracy", note: str = "") -> Method:
    grid = GRIDS[family.value]
    fixed, score = {"name": family.value, **grid.fixed}, f"{grid.score}_accuracy"
    return Method(family, label, Variant.PUBLISHED, fixed, grid.values, label, score, local=local, note=note)


def _weighted(family: Family, variant: Variant, label: str, note: str = "") -> Method:
    """A control: the published method with other weights, tuned on the same grid."""
    grid = GRIDS[family.value]
    fixed = {"name": family.value, **grid.fixed, "weights": variant.value}
    return Method(family, label, variant, fixed, grid.values, note=note)


_M = {"momentum": 0.5}
_ADAPTED = "finetuned_accuracy"
_ADAPTED_ON_TEST = "finetuned_on_test_accuracy_weighted"

WIDER_PFEDME = {"lr": (0.01, 0.1, 0.5, 1.0), "penalty": (*PENALTIES, 30.0, 100.0), "inner_lr": (0.01, 0.03, 0.1)}
"""pFedMe's grid beyond the appendix's, at whose edge the choice lay, and with the rate of its inner steps."""
APPENDIX = {"pfedme": GRIDS["pfedme"].values}
"""The appendix's grids where ours have become wider: choices of before there was validation data are of these."""

METHODS = {
    m.key: m
    for m in (
        _published(Family.FEDAVG, "FedAvg"),
        _weighted(Family.FEDAVG, Variant.UNIFORM, "FedAvg, uniform"),
        _weighted(
            Family.FEDAVG,
            Variant.ROOT,
            "FedAvg, √n_i",
            "between uniform weights and those by size, where FedBC's own lie on the images",
        ),
        _published(Family.QFEDAVG, "q-FedAvg"),
        Method(
            Family.QFEDAVG,
            "q-FedAvg, reference",
            Variant.REFERENCE,
            {"name": "reference-qfedavg", **_M},
            GRIDS["qfedavg"].values,
            "q-FedAvg",
            note="the norm in h lacks 1/lr²; sums weighted by examples",
        ),
        _published(Family.FEDPROX, "FedProx"),
        _weighted(Family.FEDPROX, Variant.UNIFORM, "FedProx, uniform"),
        _published(Family.SCAFFOLD, "SCAFFOLD", note="with momentum 0.5 in the local steps, like all methods here"),
        Method(
            Family.SCAFFOLD,
            "SCAFFOLD, no momentum",
            Variant.PLAIN,
            {"name": "scaffold", "momentum": 0.0},
            GRIDS["scaffold"].values,
            note="as its authors define it",
        ),
        Method(
            Family.SCAFFOLD,
            "SCAFFOLD, damped",
            Variant.DAMPED,
            like="scaffold-plain",
            change=lambda chosen: {"name": "probe-damped-scaffold", "horizon": 10.0},
            note="no momentum; a device of K_i steps follows its correction at full length for ten of them",
        ),
        Method(
            Family.SCAFFOLD,
            "SCAFFOLD, reference",
            Variant.REFERENCE,
            {"name": "reference-scaffold", **_M},
            GRIDS["scaffold"].values,
            "SCAFFOLD",
            note="control variates start from random networks and are twice too large",
        ),
        _published(Family.FEDBC, "FedBC"),
        Method(
            Family.FEDBC,
            "FedBC, reference",
            Variant.REFERENCE,
            printed="FedBC",
            like="fedbc",
            change=lambda chosen: {"dual_lr": dual_rate(chosen["dual_lr"])},
            local="local_accuracy_weighted",
            note="dual momentum 0.5: twice the dual rate",
        ),
        Method(
            Family.FEDBC,
            "FedBC, weights alone",
            Variant.WEIGHTS,
            like="fedbc",
            change=lambda chosen: {"dual_lr": DUAL_RATES[0]},
            note=f"the least dual rate of the grid, {DUAL_RATES[0]:g}: weights by lambda, no pull to speak of",
        ),
        Method(
            Family.FEDBC,
            "FedBC, gamma = 0",
            Variant.CONSENSUS,
            like="fedbc",
            change=lambda chosen: {"tolerance": 0.0},
            note="the same rates, and no tolerance",
        ),
        Method(
            Family.FEDBC,
            "FedBC from x_i",
            Variant.LETTER,
            {"name": "fedbc", "start": "local", **_M},
            GRIDS["fedbc"].values,
            note="Algorithm 2 to the letter: local training starts from the device's own model",
        ),
        _published(Family.PERFEDAVG, "Per-FedAvg", _ADAPTED, "z after one step on a training batch"),
        Method(
            Family.PERFEDAVG,
            "Per-FedAvg, rate 0.001",
            Variant.STATED,
            {"name": "perfedavg", "lr": STATED_OUTER_RATE, "inner_lr": 0.01},
            local=_ADAPTED,
            note="the outer rate that the paper states",
        ),
        Method(
            Family.PERFEDAVG,
            "Per-FedAvg, reference",
            Variant.REFERENCE,
            {"name": "perfedavg", "lr": 0.01, "inner_lr": 0.01, "weights": "examples", **_M},
            printed="Per-FedAvg",
            local=_ADAPTED_ON_TEST,
            note="outer rate 0.01; x_i after one step on a TEST batch",
        ),
        replace(_published(Family.PFEDME, "pFedMe"), grid=WIDER_PFEDME),
        Method(
            Family.PFEDME,
            "pFedMe, reference",
            Variant.REFERENCE,
            {"name": "reference-pfedme", "lr": 0.01},
            {"penalty": PENALTIES},
            "pFedMe",
            score="local_accuracy",
            local="local_accuracy_weighted",
            note="the device's own model is w_i, not theta_i",
        ),
        Method(
            Family.DITTO,
            "Ditto",
            fixed={"name": "ditto", **_M},
            grid={"lr": RATES, "penalty": (0.01, 0.1, 1.0)},
            score="local_accuracy",
            note="a personal model beside FedAvg's, with a pull towards it",
        ),
        Method(
            Family.LOCALONLY,
            "Local only",
            fixed={"name": "localonly", **_M},
            grid={"lr": RATES},
            score="local_accuracy",
            note="no communication at all",
        ),
        _published(Family.PERFEDBC, "Per-FedBC", _ADAPTED, "x_i after one step on a training batch"),
        Method(
            Family.PERFEDBC,
            "Per-FedBC, rate 0.001",
            Variant.STATED,
            {"name": "perfedbc", "lr": STATED_OUTER_RATE, "inner_lr": 0.01, "dual_lr": DUAL_RATES[0]},
            local=_ADAPTED,
            note="the outer rate that the paper states; in tuning no dual rate made a difference there",
        ),
        Method(
            Family.PERFEDBC,
            "Per-FedBC, reference",
            Variant.REFERENCE,
            printed="Per-FedBC",
            like="perfedbc",
            change=lambda chosen: {"lr": 0.01, "dual_lr": dual_rate(chosen["dual_lr"])},
            local=_ADAPTED_ON_TEST,
            note="outer rate 0.01; x_i after one step on a TEST batch",
        ),
    )
}

LOCAL_CONTROLS = ("fedavg", "ditto", "localonly")
"""What the paper's table of local accuracy lacks: FedAvg's own x_i, a personal model beside it, no communication."""
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


def variant(key: str, wanted: Variant) -> str:
    """The key of a method's variant, or its own if it has no such variant."""
    family = METHODS[key].family
    return next((m.key for m in METHODS.values() if (m.family, m.variant) == (family, wanted)), key)


def under(protocol: Protocol, key: str) -> str:
    """What stands for a method under a protocol: itself, or the reference's variant of it."""
    return variant(key, Variant.REFERENCE) if protocol is Protocol.REFERENCE else key
