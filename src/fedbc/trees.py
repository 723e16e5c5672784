"""Vector arithmetic on pytrees, so that a line of an algorithm is a line of its paper."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

__all__ = [
    "add",
    "axpy",
    "clipped",
    "dot",
    "mean",
    "mix",
    "scale",
    "size",
    "sqdist",
    "sqnorm",
    "sub",
    "where",
    "zeros_like",
]

Tree = Any
Scalar = Any


def add(a: Tree, b: Tree) -> Tree:
    """a + b"""
    return jax.tree.map(operator.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """a - b"""
    return jax.tree.map(operator.sub, a, b)


def scale(c: Scalar, a: Tree) -> Tree:
    """c a"""
    return jax.tree.map(lambda x: c * x, a)


def axpy(c: Scalar, x: Tree, y: Tree) -> Tree:
    """c x + y"""
    return jax.tree.map(lambda xi, yi: c * xi + yi, x, y)


def mean(total: Tree, weight: Scalar) -> Tree:
    """total / weight"""
    return jax.tree.map(lambda x: x / weight, total)


def mix(share: Scalar, a: Tree, b: Tree) -> Tree:
    """share a + (1 - share) b"""
    return jax.tree.map(lambda x, y: share * x + (1 - share) * y, a, b)


def zeros_like(a: Tree) -> Tree:
    """0, of a's shapes"""
    return jax.tree.map(jnp.zeros_like, a)


def where(condition: Scalar, a: Tree, b: Tree) -> Tree:
    """a if condition else b, leaf by leaf"""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def dot(a: Tree, b: Tree) -> Scalar:
    """<a, b>"""
    products = jax.tree.map(lambda x, y: (x * y).sum(), a, b)
    return functools.reduce(operator.add, jax.tree.leaves(products))


def sqnorm(a: Tree) -> Scalar:
    """‖a‖²"""
    return dot(a, a)


def sqdist(a: Tree, b: Tree) -> Scalar:
    """‖a - b‖²"""
    return sqnorm(sub(a, b))


def clipped(a: Tree, limit: float) -> Tree:
    """a min(1, limit/‖a‖)"""
    return scale(limit / (sqnorm(a) ** 0.5).clip(min=limit), a)


def size(a: Tree) -> int:
    """The number of scalars in a."""
    return sum(int(x.size) for x in jax.tree.leaves(a))
