"""What is summed as one vector of numbers modulo 2^64, and back.

Each array has a range and a number of bits b after the point (`fedbc.algorithms.ranges`). A value v becomes the whole
number v 2^b, negative ones as in two's complement, so that sums modulo 2^64 are sums as long as they stay within 63
bits; that they do follows from the ranges and the number of devices.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedbc.algorithms.ranges import largest_multiple
from fedbc.secure.noise import skellam

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Field:
    """One array of a vector."""

    shape: tuple[int, ...]
    largest: float
    """the most that a value can be"""
    bits: int
    """after the point"""
    noise: float = 0.0
    """the standard deviation of the noise that a device adds to each value"""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The arrays of a vector, in order; `about` tells what else two sides have to agree on."""

    fields: Mapping[str, Field]
    about: str = ""

    @property
    def length(self) -> int:
        """How many numbers the vector has."""
        return sum(field.size for field in self.fields.values())

    @property
    def digest(self) -> str:
        """The same for both sides if they mean the same."""
        listed = [[name, list(f.shape), f.largest, f.bits, f.noise] for name, f in self.fields.items()]
        return hashlib.sha256(json.dumps([self.about, listed]).encode()).hexdigest()

    def encode(self, arrays: Arrays) -> np.ndarray:
        """One device's vector; a value beyond its range, or not finite, counts as the nearest within it (or 0)."""
        parts = []
        for name, field in self.fields.items():
            values = np.nan_to_num(np.asarray(arrays[name], np.float64).reshape(-1), nan=0.0)
            if len(values) != field.size:
                raise ValueError(f"{name} has {len(values)} numbers, not {field.size}")
            most = largest_multiple(field.largest, field.bits)
            multiples = np.rint(np.ldexp(np.clip(values, -field.largest, field.largest), field.bits))
            # Beyond 2^53 not every whole number is a float, and the limit may be one that is not.
            whole = np.clip(multiples, -float(most), float(most)).astype(np.int64).clip(-most, most)
            parts.append(whole + skellam(math.ldexp(field.noise, field.bits), field.size) if field.noise else whole)
        return np.concatenate(parts).view(np.uint64)

    def decode(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The sums by name, in float64."""
        numbers, found, begin = np.asarray(vector, np.uint64).view(np.int64), {}, 0
        for name, field in self.fields.items():
            own = numbers[begin : begin + field.size].astype(np.float64)
            found[name] = np.ldexp(own, -field.bits).reshape(field.shape)
            begin += field.size
        return found
