"""What the parts of the report share: figures of records, and tables."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

NAMES = {
    "fedbc": "fedbc",
    "pytorch": "PyTorch loop",
    "fedjax": "FedJAX",
    "pfl": "pfl-research",
    "flower": "Flower's simulation",
    "limit": "bare compiled loop",
    "modules": "fedbc, PyTorch modules",
}
QUIET = 0.1  # cores that others may keep busy before the page warns

Record = dict[str, Any]


def ratio(of: Record, to: Record, mode: str) -> float:
    """The median over rounds of of's time over to's, in the same round."""
    others = {r["round"]: r["seconds"] for r in to[mode]}
    return median(r["seconds"] / others[r["round"]] for r in of[mode] if r["round"] in others)


def step_seconds(record: Record, mode: str) -> float:
    """The median over rounds of the time a step."""
    return median(r["seconds"] / r["steps"] for r in record[mode])


def table(head: Iterable[str], rows: Iterable[Iterable[str]], align: str = "") -> str:
    """A Markdown table; `align` has a letter l or r a column, left if it is too short."""
    head = list(head)
    rule = ["---:" if i < len(align) and align[i] == "r" else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *map(list, rows)])


def number(value: float) -> str:
    """Three significant digits, without powers of ten."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def verdict(value: float, met: bool, bar: str) -> str:
    """A ratio with its bar."""
    return f"{number(value)} ({bar}) {'met' if met else '**missed**'}"
