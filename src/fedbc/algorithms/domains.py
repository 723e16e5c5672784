"""X, the compact convex set that the paper's Assumption 1 keeps all models in: a ball or a box, and its diameter R.

"ball,radius=5"       ‖w - centre‖ <= radius over all parameters together; centre 0, or any model from Python
"box,low=-1,high=1"   low <= every parameter <= high
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedbc import checks, named, trees
from fedbc.errors import InputError

Params = Any

ROUNDING = 1e-5
"""How far from the set a model of it may be, relative to the diameter."""


class Domain(ABC):
    """A compact convex set of models."""

    @abstractmethod
    def project(self, w: Params) -> Params:
        """The nearest model of the set."""

    def holds(self, w: Params) -> bool:
        """Whether a model is one of the set, up to rounding."""
        far = trees.sqdist(self.project(w), w)
        return float(far) <= (ROUNDING * self.diameter(trees.size(w))) ** 2

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """As a table that `domain_from` takes; a ball's centre is left out."""

    @abstractmethod
    def diameter(self, parameters: int) -> float:
        """R, the largest distance of two models with so many parameters."""


@dataclass(frozen=True, eq=False)
class Ball(Domain):
    """‖w - centre‖ <= radius; the centre is 0 if none is given."""

    radius: float
    centre: Params = None

    def __post_init__(self) -> None:
        checks.number("radius of the ball", self.radius, above=0)

    def project(self, w: Params) -> Params:
        """centre + (w - centre) min(1, radius/‖w - centre‖)"""
        if self.centre is None:
            return trees.clipped(w, self.radius)
        return trees.add(self.centre, trees.clipped(trees.sub(w, self.centre), self.radius))

    def described(self) -> dict[str, Any]:
        """Its radius."""
        return {"name": "ball", "radius": self.radius}

    def diameter(self, parameters: int) -> float:
        """2 radius"""
        return 2 * self.radius


@dataclass(frozen=True, eq=False)
class Box(Domain):
    """low <= w <= high, parameter by parameter."""

    low: float
    high: float

    def __post_init__(self) -> None:
        checks.number("low of the box", self.low)
        checks.number("high of the box", self.high, above=self.low)

    def project(self, w: Params) -> Params:
        """Parameter by parameter."""
        return jax.tree.map(lambda a: a.clip(min=self.low, max=self.high), w)

    def described(self) -> dict[str, Any]:
        """Its ends."""
        return {"name": "box", "low": self.low, "high": self.high}

    def diameter(self, parameters: int) -> float:
        """(high - low) √d"""
        return (self.high - self.low) * math.sqrt(parameters)


def _ball(radius: float) -> Ball:
    return Ball(radius)


def _box(low: float, high: float) -> Box:
    return Box(low, high)


GivenDomain = str | Mapping[str, Any] | Domain | None
"""What an argument may be."""


def domain_from(value: GivenDomain) -> Domain | None:
    """The set that an argument says; None for all models."""
    if value is None or isinstance(value, Domain):
        return value
    if not isinstance(value, str | Mapping):
        raise InputError(f"domain={value!r} is not accepted: give text such as 'ball,radius=5', or a Ball or a Box")
    domain: Domain = named.call("domain", value, {"ball": _ball, "box": _box})
    return domain


def check_domain(domain: Domain, params: Params) -> None:
    """A ball's centre has the shapes of the model."""
    centre = getattr(domain, "centre", None)
    if centre is not None and jax.tree.map(np.shape, centre) != jax.tree.map(np.shape, params):
        raise InputError("the centre of the domain's ball does not fit the model: give a model of the same shapes")
