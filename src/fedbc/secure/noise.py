"""Discrete noise for differential privacy, added to whole numbers before they are masked.

Skellam's distribution is that of the difference of two Poisson numbers: whole, symmetric, and closed under sums, so
that the noise of a sum is exactly Skellam's, with the variances of all its devices added, whoever dropped out.

    N. Agarwal, P. Kairouz, Z. Liu, "The Skellam Mechanism for Differentially Private Federated Learning", NeurIPS 2021;
    `fedbc.privacy.secure_epsilon` has its Rényi divergences.

The numbers come from NumPy's Poisson generator over Philox, with a key of 128 bits from the operating system.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np


def skellam(deviation: float, size: int, random: Callable[[int], bytes] = os.urandom) -> np.ndarray:
    """So many whole numbers with this standard deviation."""
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(random(16), "big")))
    rate = deviation**2 / 2
    return generator.poisson(rate, size) - generator.poisson(rate, size)
