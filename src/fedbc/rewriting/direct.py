"""Convolutions in machine code (`native/general.cc`), for 32-bit numbers with the channels last.

The code knows two axes of places, strides, distances within the kernel, groups, and zeros between x's places
(transposed convolutions, derivatives of strided ones). One axis is two of which one has a single place; three axes are
sums over the kernel's first one.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import native
from fedbc.rewriting.geometry import Geometry, Sizes, padded

Array = jax.Array


def serves(x: Array, w: Array, result: Any) -> bool:
    """Whether this module can compute a convolution, with `result` the type that is asked for."""
    float32 = all(kind == jnp.float32 for kind in (x.dtype, w.dtype, result or x.dtype))
    return float32 and x.ndim in (3, 4, 5) and min(*x.shape, *w.shape) > 0 and native.available()


def convolution(x: Array, w: Array, geometry: Geometry, groups: int) -> Array:
    """The convolution of x (n, places ..., inputs) and w (places ..., inputs, outputs), which `serves`."""
    if x.ndim == 3:
        one = Geometry(
            (1, *geometry.strides), ((0, 0), *geometry.padding), (1, *geometry.x_dilation), (1, *geometry.w_dilation)
        )
        return convolution(x[:, None], w[None], one, groups)[:, 0]
    places = geometry.places(x.shape[1:-1], w.shape[:-2])
    if math.prod(places) == 0:
        return jnp.zeros((x.shape[0], *places, w.shape[-1]), x.dtype)
    ones = (1,) * len(places)
    between = any(apart > 1 for apart in geometry.x_dilation)
    if between and (x.ndim == 5 or geometry.strides != ones or geometry.w_dilation != ones):
        # All of these at once are rare: the zeros are multiplied, too.
        plain = geometry._replace(x_dilation=ones, padding=((0, 0),) * len(places))
        return convolution(padded(x, geometry), w, plain, groups)
    if x.ndim == 5:
        return _by_planes(x, w, geometry, groups, places)
    if not between and math.prod(places) < math.prod(w.shape[:2]):
        return _kernel_gradient(x, w, geometry, groups, places)
    shape = (x.shape[0], *places, w.shape[-1])
    return _call("convolution", shape, x, w, geometry.strides, geometry.w_dilation, geometry, groups)


def _kernel_gradient(x: Array, w: Array, geometry: Geometry, groups: int, places: Sizes) -> Array:
    """A large kernel at few places is what the derivative with respect to a kernel looks like: x's inputs are images,
    w is their slopes, and x's examples are the channels."""
    n, *size, _ = x.shape
    images = x.reshape(n, *size, groups, w.shape[2]).transpose(4, 1, 2, 3, 0).reshape(w.shape[2], *size, groups * n)
    slopes = w.transpose(2, 0, 1, 3)
    shape = (*places, n, w.shape[-1])
    found = _call(
        "convolution_kernel_gradient", shape, images, slopes, geometry.w_dilation, geometry.strides, geometry, groups
    )
    return found.transpose(2, 0, 1, 3)


def _call(
    name: str, shape: Sizes, x: Array, other: Array, strides: Sizes, apart: Sizes, geometry: Geometry, groups: int
) -> Array:
    before = [low for low, _ in geometry.padding]
    form = np.asarray([*strides, *apart, *before, groups, *geometry.x_dilation], np.int64)
    return native.call(name, jax.ShapeDtypeStruct(shape, jnp.float32), x, other, form=form)


def _by_planes(x: Array, w: Array, geometry: Geometry, groups: int, places: Sizes) -> Array:
    """Three axes: for each place of the kernel's first axis, or of the outcome's, a convolution of two."""
    flat = ((0, 0), (0, 0))
    depth = Geometry(_ONES, (geometry.padding[0], *flat), (geometry.x_dilation[0], 1, 1), _ONES)
    x = padded(x, depth)
    plane = Geometry(geometry.strides[1:], geometry.padding[1:], geometry.x_dilation[1:], geometry.w_dilation[1:])
    stride, apart = geometry.strides[0], geometry.w_dilation[0]
    if places[0] < w.shape[0]:
        return jnp.stack(
            [
                sum(convolution(x[:, q * stride + t * apart], w[t], plane, groups) for t in range(w.shape[0]))
                for q in range(places[0])
            ],
            axis=1,
        )

    def at(t: int) -> Array:
        planes = x[:, t * apart : t * apart + (places[0] - 1) * stride + 1 : stride]
        found = convolution(planes.reshape(-1, *planes.shape[2:]), w[t], plane, groups)
        return found.reshape(*planes.shape[:2], *found.shape[1:])

    return sum((at(t) for t in range(1, w.shape[0])), at(0))


_ONES = (1, 1, 1)
