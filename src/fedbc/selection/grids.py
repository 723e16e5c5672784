"""The grids that the appendix of the FedBC paper searches, by algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RATES = (0.001, 0.01, 0.1, 0.5, 1.0)
MU = (0.0001, 0.001, 0.01, 0.1, 1.0)
Q = (0.001, 0.01, 0.1, 1.0, 2.0, 5.0)
DUAL_RATES = (1e-7, 1e-6, 1e-5, 0.0001, 0.001, 0.01)
PENALTIES = (0.01, 0.1, 1.0, 10.0)
OUTER_RATES = (0.001, 0.01)
"""Of Per-FedAvg and Per-FedBC: the one that the paper states, and the inner rate, which its code applies instead."""


@dataclass(frozen=True)
class Grid:
    """An algorithm's hyper-parameters to try, every value with every other."""

    fixed: Mapping[str, Any]
    """arguments that the paper does not search"""
    values: Mapping[str, tuple[float, ...]]
    score: str = "global"
    """whose accuracy is to be high, in the words of `fedbc tune --score`"""


_MOMENTUM = {"momentum": 0.5}

GRIDS = {
    "fedavg": Grid({"weights": "examples", **_MOMENTUM}, {"lr": RATES}),
    "qfedavg": Grid(_MOMENTUM, {"lr": RATES, "q": Q}),
    "fedprox": Grid({"weights": "examples", **_MOMENTUM}, {"lr": RATES, "mu": MU}),
    "scaffold": Grid(_MOMENTUM, {"lr": RATES}),
    "fedbc": Grid(_MOMENTUM, {"lr": RATES, "dual_lr": DUAL_RATES}),
    "perfedavg": Grid({"inner_lr": 0.01}, {"lr": OUTER_RATES}, "finetuned"),
    "pfedme": Grid({}, {"lr": (0.01, 0.1), "penalty": PENALTIES}, "local"),
    "perfedbc": Grid({"inner_lr": 0.01}, {"lr": OUTER_RATES, "dual_lr": DUAL_RATES}, "finetuned"),
}
