"""Where hyper-parameters are searched: the points of a grid, and ranges for Optuna's samplers.

A dimension is written NAME=LOW..HIGH, with :log for equal ratios and :int for whole numbers, or NAME=A,B,C for a
choice: `lr=1e-4..1:log`, `inner_steps=1..10:int`, `start=global,local`, `momentum=0,0.5,0.9`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedbc.errors import InputError, unknown
from fedbc.runs.catalog import Entry, Option

RANGES = {
    **dict.fromkeys(("lr", "inner_lr", "personal_lr"), "1e-4..1:log"),
    "dual_lr": "1e-7..1e-1:log",
    **dict.fromkeys(("mu", "rho"), "1e-4..10:log"),
    "q": "1e-3..5:log",
    "penalty": "1e-3..30:log",
    "eta": "1e-2..100:log",
    "server_lr": "1e-3..10:log",
    "adaptivity": "1e-4..1:log",
}
"""Searched where a method has the argument; others keep their values unless --search names them."""

Value = float | int | str
Point = dict[str, Value]


@dataclass(frozen=True)
class Dimension:
    """One hyper-parameter's values: a range, or a list to choose from."""

    name: str
    low: float = math.nan
    high: float = math.nan
    log: bool = False
    whole: bool = False
    values: tuple[Value, ...] = ()

    def __str__(self) -> str:
        if self.values:
            return f"{self.name}={','.join(f'{v:g}' if isinstance(v, float) else str(v) for v in self.values)}"
        return f"{self.name}={self.low:g}..{self.high:g}{':int' * self.whole}{':log' * self.log}"


def parse(text: str, entry: Entry) -> Dimension:
    """A dimension from the command line's text, for one method's arguments."""
    name, equals, said = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not said:
        raise InputError(f"search={text!r} is not accepted: write NAME=LOW..HIGH[:log][:int] or NAME=A,B,C")
    if name not in entry.options:
        raise unknown(f"search: argument of {entry.name}", name, entry.options)
    option = entry.options[name]
    if ".." not in said:
        return Dimension(name, values=tuple(_value(option, part) for part in said.split(",")))
    bounds, *marks = said.split(":")
    wrong = [m for m in marks if m not in ("log", "int")]
    if wrong:
        raise InputError(f"search={text!r} has :{wrong[0]}, which is unknown: use :log, :int or neither")
    low, high = (_number(text, part) for part in bounds.split("..", 1))
    whole = "int" in marks or option.annotation == "int"
    if not low < high:
        raise InputError(f"search={text!r} is not accepted: the lower bound must be below the upper one")
    if "log" in marks and low <= 0:
        raise InputError(f"search={text!r} is not accepted: equal ratios (:log) need a lower bound above 0")
    if whole and not (low.is_integer() and high.is_integer()):
        raise InputError(f"search={text!r} is not accepted: {name} is a whole number, give whole bounds")
    return Dimension(name, low, high, "log" in marks, whole)


def _number(text: str, part: str) -> float:
    try:
        value = float(part)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"search={text!r} is not accepted: {part!r} is not a finite number")
    return value


def _value(option: Option, part: str) -> Value:
    value = option.parse(part.strip())
    if not isinstance(value, float | int | str):
        raise InputError(f"search: {option.name}={part!r} is not accepted: give numbers or words, one a value")
    return value


def grid_of(
    grid: Mapping[str, tuple[float, ...]], searched: Iterable[Dimension], fixed: Mapping[str, Any]
) -> dict[str, Dimension]:
    """A grid, with lists from the command line over it and without what is fixed there."""
    space = {name: Dimension(name, values=values) for name, values in grid.items() if name not in fixed}
    for dimension in searched:
        if not dimension.values:
            raise InputError(
                f"search={str(dimension)!r} is a range, but a grid needs values: give NAME=A,B,C or a --sampler"
            )
        space[dimension.name] = dimension
    return space


def ranges_of(entry: Entry, searched: Iterable[Dimension], fixed: Mapping[str, Any]) -> dict[str, Dimension]:
    """The ranges for a sampler: those of RANGES that the method has and nobody fixed, and the command line's."""
    space = {n: parse(f"{n}={said}", entry) for n, said in RANGES.items() if n in entry.options and n not in fixed}
    return space | {dimension.name: dimension for dimension in searched}


def points(space: Mapping[str, Dimension]) -> list[Point]:
    """Every point of a grid."""
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*(d.values for d in space.values()))]


def as_plain(space: Mapping[str, Dimension]) -> list[dict[str, Any]]:
    """For a JSON file; `from_plain` reads it. Bounds that a choice does not have are null."""
    return [
        {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in dataclasses.asdict(d).items()}
        for d in space.values()
    ]


def from_plain(tables: Iterable[Mapping[str, Any]]) -> dict[str, Dimension]:
    """What `as_plain` gave."""
    return {
        t["name"]: Dimension(**{k: math.nan if v is None else v for k, v in t.items()} | {"values": tuple(t["values"])})
        for t in tables
    }
