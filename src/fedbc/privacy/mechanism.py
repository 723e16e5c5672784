"""What a private device sends: its clipped update and its weight, both with Gaussian noise of the right size.

A device's share in a weighted mean is (w x, w): its model x and its weight w, which for FedBC is lambda_i. Both depend
on its data. Three steps make the share private:

1. The server knows z, so the device sends the update u = x - z in the place of x, and the server adds z Σ w itself.
2. u is clipped to ‖u‖ <= C, and w to a <= w <= b. For FedBC, a = lambda_min and b = lambda_max.
3. Gaussian noise is added to all that is sent, (w u, w), by what one device's data can change in it.

What can they change? Let the device's data be any others, so that (u, w) becomes (u', w'). Measure the weight in units
of 1/k, that is take the sent vector as (w u, k w). It moves by

    D² = ‖w u - w' u'‖² + k² (w - w')²  <=  C² (w + w')² + k² (w - w')².

The right side is a convex quadratic in (w, w'), so its maximum over a <= w, w' <= b lies in a corner of that square:

    w = w' = b:         4 C² b²
    w = a, w' = b:      C² (a + b)² + k² (b - a)²

With k² = C² (3 b + a)/(b - a) the two are equal: the weight then costs nothing beyond what the update costs. So

    sensitivity   S = 2 C b          of all parts of the summand together (one device's data replaced by any others)
    noise         m S on each number of w u,     m S / k = 2 b m sqrt((b - a)/(3 b + a)) on w

where m is the noise multiplier: a round is one Gaussian mechanism with noise m and sensitivity 1, whatever C, a and b.
Where a = b (uniform weights) the weight is known to all, and sent without noise.

    symbol   argument        symbol   argument              symbol   argument
    C        clip            m        noise_multiplier      a, b     least_weight, largest_weight

The clipping bound is kept below C by one part in 10⁵, which is more than the rounding of 32-bit sums. An update that is
not finite is sent as 0, since NaN, too, would tell something.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import checks, trees

Normal = Callable[[int], Any]
"""Gives so many independent standard normal numbers"""

MARGIN = 1e-5


class Share(NamedTuple):
    """What a device sends, and the sum of such."""

    move: Any
    """w u"""
    weight: Any
    """w"""
    devices: Any
    """1: who takes part is known to the server anyway"""


@dataclass(frozen=True)
class Mechanism:
    """Clipping and noise for one round; the module's docstring has the mathematics."""

    clip: float
    noise_multiplier: float
    least_weight: float = 1.0
    largest_weight: float = 1.0

    def __post_init__(self) -> None:
        checks.number("clip", self.clip, above=0)
        checks.number("noise_multiplier", self.noise_multiplier, at_least=0)
        checks.number("least_weight", self.least_weight, above=0)
        checks.number("largest_weight", self.largest_weight, at_least=self.least_weight)

    @property
    def sensitivity(self) -> float:
        """S = 2 C b: the most by which one device's data can move (w u, k w)."""
        return 2 * self.clip * self.largest_weight

    @property
    def weight_unit(self) -> float:
        """k, the factor by which the weight enters the sensitivity; infinite where the weight is the same for all."""
        a, b = self.least_weight, self.largest_weight
        return self.clip * math.sqrt((3 * b + a) / (b - a)) if b > a else math.inf

    @property
    def move_noise(self) -> float:
        """The standard deviation of the noise on each number of w u."""
        return self.noise_multiplier * self.sensitivity

    @property
    def weight_noise(self) -> float:
        """The standard deviation of the noise on w."""
        return self.move_noise / self.weight_unit

    def clipped(self, z: Any, x: Any, weight: Any) -> tuple[Share, Any]:
        """A device's share without noise, and whether (1) its update had to be shortened."""
        update = trees.sub(x, z)
        norm = jnp.sqrt(trees.sqnorm(update))
        bound = self.clip * (1 - MARGIN)
        factor = jnp.minimum(1, bound / jnp.maximum(norm, bound))
        good = jnp.isfinite(norm)
        weight = jnp.clip(jnp.nan_to_num(weight, nan=self.least_weight), self.least_weight, self.largest_weight)
        move = jax.tree.map(lambda u: jnp.where(good, weight * factor * jnp.where(good, u, 0), 0), update)
        return Share(move, weight, jnp.ones_like(weight)), jnp.where(norm <= bound, 0.0, 1.0)

    def noised(self, share: Share, normal: Normal) -> Share:
        """The share with its noise."""
        if self.noise_multiplier == 0:
            return share
        leaves, structure = jax.tree.flatten((share.move, share.weight))
        ends = np.cumsum([leaf.size for leaf in leaves])
        # One draw for all: random numbers cost more to compile than to compute.
        draws = jnp.split(jnp.asarray(normal(int(ends[-1])), float), ends[:-1])
        sizes = [*[self.move_noise] * (len(leaves) - 1), self.weight_noise]
        noised = [
            (leaf + size * draw.reshape(leaf.shape)).astype(leaf.dtype)
            for leaf, size, draw in zip(leaves, sizes, draws, strict=True)
        ]
        move, weight = jax.tree.unflatten(structure, noised)
        return Share(move, weight, share.devices)

    def total_weight(self, total: Share) -> Any:
        """Σ w, put back into the range that it must lie in: noise may have carried it outside."""
        return jnp.clip(total.weight, self.least_weight * total.devices, self.largest_weight * total.devices)


def system_normal(count: int) -> np.ndarray:
    """Standard normal numbers from the operating system's own source of randomness, which nobody can foresee."""
    bits = np.frombuffer(os.urandom(16 * count), np.uint64).reshape(2, count) >> np.uint64(11)
    u, v = (bits[0] + 1) / 2**53, bits[1] / 2**53  # u in (0, 1], so that its logarithm is finite
    return np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)
