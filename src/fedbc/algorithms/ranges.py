"""What a secure sum has to know of a method's summand: how large each of its parts can be.

A sum under masks is one of whole numbers modulo 2^64 (`fedbc.secure`). So every part of a summand has a declared range,
to which a device clips it, and from the range follows how finely it is rounded: to multiples of 2^-b, b as large as the
sum of all devices allows. `Algorithm.ranges` gives the declarations, in the form of the summand:

    Total(move=Vector(limits.clip, weight="weight"), weight=Number(1, 100))

A model is sent as its difference from z: `around` names the number that z is multiplied with to be taken off, and put
back at the server. Differences are small where models are not, and their norm is what can be bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedbc.errors import InputError

MOST_BITS = 52
"""Of a range of 1 and a thousand devices; small parts, such as lambda_i x_i of a small lambda_i, need what there is."""
LEAST_BITS = 8
MODULUS_BITS = 64
NOISE_BITS = 20
"""A device's noise has a standard deviation of 2^19 to 2^20 steps: as good as continuous, and quickly drawn."""
NOISE_REACH = 12
"""Standard deviations that noise never goes beyond (with a probability of 10^-32)."""


class Limits(NamedTuple):
    """What bounds the parts, whatever the method."""

    clip: float
    """C: the norm of a device's x - z"""
    examples: int
    """the most training examples that a device may have; 0 if that is not said"""
    number: float
    """the most that any other number may be, such as a loss"""


@dataclass(frozen=True)
class Number:
    """A number between two others."""

    low: float
    high: float
    noise: float = 0.0
    """the standard deviation of the noise that each device adds to it within a secure sum"""


@dataclass(frozen=True)
class Vector:
    """Arrays that together have a norm of at most `most`."""

    most: float
    weight: str | None = None
    """the number beside it in the summand that it is multiplied with; `most` is then meant before that"""
    around: str | None = None
    """the number beside it in the summand whose product with z is taken off before the norm is formed"""
    noise: float = 0.0
    """the standard deviation of the noise that each device adds to each number within a secure sum"""


@dataclass(frozen=True)
class Unused:
    """A part that the server has no use for: it is not sent, and arrives as zeros."""

    like: str
    """the part beside it that has its shapes"""


Range = Number | Vector | Unused


def declared(ranges: Any, summand: Any, method: str, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Range, Any]]:
    """Each part's name, range and value; a part without a range is an InputError that names it."""
    if isinstance(ranges, Number | Vector | Unused):
        yield ".".join(path), ranges, summand
        return
    if summand is None:
        return
    fields = members(summand)
    if fields is None or ranges is None:
        name = ".".join(path) or ", ".join(fields or ()) or "the whole summand"
        raise InputError(
            f"{method} cannot be summed securely: its part {name!r} has no declared range; its `ranges` has to say how "
            "large it can be (fedbc.algorithms.ranges)"
        )
    given = members(ranges) or {}
    for name, part in fields.items():
        yield from declared(given.get(name), part, method, (*path, name))


def members(tree: Any) -> dict[str, Any] | None:
    """The named parts of a named tuple or a dictionary of such; None for everything else."""
    if hasattr(tree, "_fields"):
        return dict(zip(tree._fields, tree, strict=True))
    return dict(tree) if isinstance(tree, Mapping) else None


def beside(name: str, other: str) -> str:
    """The name of a part that stands beside another one."""
    return ".".join([*name.split(".")[:-1], other])


def fraction_bits(largest: float, devices: int, what: str) -> int:
    """b: so many devices' multiples of 2^-b up to `largest` do not wrap around the modulus, rounded as they are.

    A range that leaves hardly any digits is an InputError that says what has it.
    """
    if not math.isfinite(largest):
        raise InputError(f"{what} cannot be summed securely: its range is not finite")
    for bits in range(MOST_BITS, LEAST_BITS - 1, -1):
        if max(devices, 2) * largest_multiple(largest, bits) < 2 ** (MODULUS_BITS - 1):
            return bits
    raise InputError(
        f"{what} cannot be summed securely: its range of {largest:g} is too wide for {devices} devices and sums modulo "
        "2^64; lower the clipping norm, the most examples or the largest weight"
    )


def bits_with_noise(largest: float, noise: float, devices: int, what: str) -> int:
    """b for a part to which each device adds noise: coarser steps, of which the noise is 2^20 at most."""
    bits = fraction_bits(largest + NOISE_REACH * noise, devices, what)
    return min(bits, math.floor(NOISE_BITS - math.log2(noise))) if noise else bits


def largest_multiple(largest: float, bits: int) -> int:
    """The most that a value of this range becomes as a multiple of 2^-bits: half a step of rounding is above it."""
    return math.ceil(math.ldexp(largest, bits)) + 1
