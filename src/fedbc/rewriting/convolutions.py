"""What takes the place of a convolution: one with the channels last, the only form that XLA's fast kernels take.

x (n, places ..., inputs),  w (places ..., inputs, outputs)   ->   (n, places ..., outputs)
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import ConvDimensionNumbers

from fedbc.rewriting import direct
from fedbc.rewriting.geometry import Geometry, Sizes, padded

Array = jax.Array

MOST_TAPS = 64
"""Places of a kernel that are taken one by one."""


def convolution(
    x: Array,
    w: Array,
    *,
    window_strides: Sizes,
    padding: Any,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any,
    preferred_element_type: Any,
    **others: Any,
) -> Array:
    """`jax.lax.conv_general_dilated`, by its primitive's parameters."""
    del others  # where the result lies: on a CPU there is one place
    x_order, w_order, y_order = dimension_numbers
    x = x.transpose(x_order[0], *x_order[2:], x_order[1])
    w = w.transpose(*w_order[2:], w_order[1], w_order[0])
    if batch_group_count > 1:  # groups of examples, each with outputs of its own, are groups of inputs
        x = _batch_groups_as_inputs(x, batch_group_count)
    groups = max(feature_group_count, batch_group_count)
    geometry = Geometry(tuple(window_strides), tuple(padding), tuple(lhs_dilation), tuple(rhs_dilation))
    exact = {"precision": precision, "preferred_element_type": preferred_element_type}
    y = _channels_last(x, w, geometry, groups, exact)
    return y.transpose(np.argsort([y_order[0], *y_order[2:], y_order[1]]))


def _batch_groups_as_inputs(x: Array, groups: int) -> Array:
    parts = x.reshape(groups, x.shape[0] // groups, *x.shape[1:])
    return jnp.moveaxis(parts, 0, -2).reshape(*parts.shape[1:-1], groups * x.shape[-1])


def _channels_last(x: Array, w: Array, geometry: Geometry, groups: int, exact: dict[str, Any]) -> Array:
    if direct.serves(x, w, exact["preferred_element_type"]):
        return direct.convolution(x, w, geometry, groups)
    inputs, outputs = w.shape[-2:]
    if inputs == 1 and outputs == groups and math.prod(w.shape[:-2]) <= MOST_TAPS:
        return _each_channel(x, w, geometry).astype(exact["preferred_element_type"] or x.dtype)
    places = range(1, x.ndim - 1)
    order = (0, x.ndim - 1, *places)
    return jax.lax.conv_general_dilated(
        x,
        w,
        geometry.strides,
        geometry.padding,
        geometry.x_dilation,
        geometry.w_dilation,
        ConvDimensionNumbers(order, (x.ndim - 1, x.ndim - 2, *(place - 1 for place in places)), order),
        groups,
        **exact,
    )


def _each_channel(x: Array, w: Array, geometry: Geometry) -> Array:
    """Every channel by itself: the sum of x, shifted by each place of the kernel, times the number there."""
    kernel = w.shape[:-2]
    places = geometry.places(x.shape[1:-1], kernel)
    x = padded(x, geometry)

    def shifted(tap: Sizes) -> Array:
        begin = [t * apart for t, apart in zip(tap, geometry.w_dilation, strict=True)]
        end = [b + (p - 1) * s + 1 for b, p, s in zip(begin, places, geometry.strides, strict=True)]
        taken = jax.lax.slice(x, (0, *begin, 0), (x.shape[0], *end, x.shape[-1]), (1, *geometry.strides, 1))
        return taken * w[tap][0]

    return functools.reduce(jnp.add, [shifted(tap) for tap in itertools.product(*map(range, kernel))])
