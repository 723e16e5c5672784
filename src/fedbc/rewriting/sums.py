"""What takes the place of a sum over axes on both sides of one that stays, such as GroupNorm's over places and the
channels of a group: XLA's runs along the short last axis, and takes ten times as long as two sums in a row.
"""

from __future__ import annotations

from typing import Any

import jax

Array = jax.Array

SHORT = 16
"""Numbers on the last axis that do not fill a vector."""


def is_slow(x: Any, *, axes: tuple[int, ...], **others: Any) -> bool:
    """Whether the sum is of that kind."""
    del others
    last = x.ndim - 1
    return last in axes and last - 1 not in axes and len(axes) > 1 and x.shape[last] < SHORT


def in_two_steps(x: Array, *, axes: tuple[int, ...], **others: Any) -> Array:
    """The last axis after the others."""
    del others
    first = tuple(axis for axis in axes if axis != x.ndim - 1)
    # Else XLA makes one sum of both.
    return jax.lax.optimization_barrier(x.sum(first)).sum(-1)
