"""How a convolution's kernel moves over the places of its input."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
Sizes = tuple[int, ...]


class Geometry(NamedTuple):
    """How a kernel moves over the places."""

    strides: Sizes
    padding: tuple[tuple[int, int], ...]
    x_dilation: Sizes
    """the distance of x's places; what is between them is 0"""
    w_dilation: Sizes

    def places(self, x: Sizes, w: Sizes) -> Sizes:
        """How many places the kernel has on an input of these sizes, axis by axis."""
        counts = []
        for size, kernel, (low, high), stride, between, apart in zip(
            x, w, self.padding, self.strides, self.x_dilation, self.w_dilation, strict=True
        ):
            whole = (size - 1) * between + 1 + low + high if size else low + high
            counts.append(max(0, (whole - (kernel - 1) * apart - 1) // stride + 1))
        return tuple(counts)


def padded(x: Array, geometry: Geometry) -> Array:
    """x with the zeros around and between its places."""
    between = [(low, high, apart - 1) for (low, high), apart in zip(geometry.padding, geometry.x_dilation, strict=True)]
    if not any(map(any, between)):
        return x
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *between, (0, 0, 0)])
