"""What takes the place of the derivative of max-pooling: XLA's picks a place for each number, one after the other."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import native

Array = jax.Array
Sizes = tuple[int, ...]

MOST_PLACES = 64
"""Of a window, whose places are taken one by one."""


def maximum_gradient(slopes: Array, x: Array, *, select_prim: Any, **window: Any) -> Array:
    """Each slope goes to its window's first maximum: select_and_scatter_add, by its primitive's parameters."""
    sizes: Sizes = window["window_dimensions"]
    strides, padding = window["window_strides"], window["padding"]
    if select_prim is jax.lax.ge_p and _is_native(x, sizes, strides, padding):
        return _in_machine_code(slopes, x, sizes, strides, padding)
    if select_prim is not jax.lax.ge_p or math.prod(sizes) > MOST_PLACES:
        return jax.lax.select_and_scatter_add_p.bind(slopes, x, select_prim=select_prim, **window)
    if all(size == stride for size, stride in zip(sizes, strides, strict=True)):
        return _apart(slopes, x, sizes, padding)
    return _overlapping(slopes, x, sizes, strides, padding)


def _is_native(x: Array, sizes: Sizes, strides: Sizes, padding: Any) -> bool:
    """Whether windows move over one axis or two, between examples and channels."""
    alone = all((sizes[a], strides[a], tuple(padding[a])) == (1, 1, (0, 0)) for a in (0, x.ndim - 1))
    return alone and x.ndim in (3, 4) and x.dtype == jnp.float32 and native.available()


def _in_machine_code(slopes: Array, x: Array, sizes: Sizes, strides: Sizes, padding: Any) -> Array:
    if x.ndim == 3:
        sizes, strides = ((a[0], 1, *a[1:]) for a in (sizes, strides))
        return _in_machine_code(slopes[:, None], x[:, None], sizes, strides, (padding[0], (0, 0), *padding[1:]))[:, 0]
    form = np.asarray([*sizes[1:3], *strides[1:3], *(low for low, _ in padding[1:3])], np.int64)
    return native.call("pooling_gradient", jax.ShapeDtypeStruct(x.shape, x.dtype), x, slopes, form=form)


def _apart(slopes: Array, x: Array, sizes: Sizes, padding: Any) -> Array:
    """For windows that do not overlap: each place of x asks whether it is the one that its window chose."""
    covered = tuple(count * size for count, size in zip(slopes.shape, sizes, strict=True))
    # The last places of an axis may belong to no window.
    fit = [(low, full - low - length, 0) for (low, _), full, length in zip(padding, covered, x.shape, strict=True)]
    x = jax.lax.pad(x, jnp.asarray(-jnp.inf, x.dtype), fit)
    pairs = list(itertools.chain.from_iterable(zip(slopes.shape, sizes, strict=True)))
    chosen = _first_maximum([_taken(x, tap, slopes.shape, sizes) for tap in _taps(sizes)])
    spread = [pairs[axis] if axis % 2 == 0 else 1 for axis in range(len(pairs))]
    own = jnp.arange(math.prod(sizes), dtype=chosen.dtype).reshape(
        [1 if a % 2 == 0 else n for a, n in enumerate(pairs)]
    )
    all_places = jnp.where(chosen.reshape(spread) == own, slopes.reshape(spread), 0).reshape(covered)
    back = [(-low, -high, 0) for low, high, _ in fit]
    return jax.lax.pad(all_places, jnp.zeros((), slopes.dtype), back)


def _overlapping(slopes: Array, x: Array, sizes: Sizes, strides: Sizes, padding: Any) -> Array:
    """For any windows: what each of their places gets, put where it belongs, and added."""
    x = jax.lax.pad(x, jnp.asarray(-jnp.inf, x.dtype), [(low, high, 0) for low, high in padding])
    taps = _taps(sizes)
    chosen = _first_maximum([_taken(x, tap, slopes.shape, strides) for tap in taps])

    def put(number: int, tap: Sizes) -> Array:
        ends = [
            (t, length - t - (count - 1) * stride - 1, stride - 1)
            for t, length, count, stride in zip(tap, x.shape, slopes.shape, strides, strict=True)
        ]
        return jax.lax.pad(jnp.where(chosen == number, slopes, 0), jnp.zeros((), slopes.dtype), ends)

    total = functools.reduce(jnp.add, [put(number, tap) for number, tap in enumerate(taps)])
    return jax.lax.pad(total, jnp.zeros((), total.dtype), [(-low, -high, 0) for low, high in padding])


def _taps(sizes: Sizes) -> list[Sizes]:
    """The places of a window, row by row."""
    return list(itertools.product(*map(range, sizes)))


def _taken(x: Array, tap: Sizes, counts: Sizes, strides: Sizes) -> Array:
    """One place of every window."""
    ends = [t + (count - 1) * stride + 1 for t, count, stride in zip(tap, counts, strides, strict=True)]
    return jax.lax.slice(x, tap, ends, strides)


def _first_maximum(parts: list[Array]) -> Array:
    """The number of the first of the largest parts."""
    largest, chosen = parts[0], jnp.zeros(parts[0].shape, jnp.int32)
    for number, part in enumerate(parts[1:], start=1):
        chosen = jnp.where(part > largest, number, chosen)
        largest = jnp.maximum(part, largest)
    return jax.lax.optimization_barrier(chosen)
