"""The server's mean of local models, weighted by examples, their root, or uniformly: what FedAvg-type methods share."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms.base import Context, Params, Scalar
from fedbc.algorithms.ranges import Limits, Number, Vector
from fedbc.errors import InputError

WEIGHTS = "weights of the server's mean: 'examples' (n_i), 'root' (√n_i) or 'uniform'"


class Mean(NamedTuple):
    """The summand (n_i x_i, n_i), and the sum of such."""

    weighted: Params
    weight: Scalar


def check(weights: str) -> None:
    """Check the argument `weights`."""
    checks.choice("weights", weights, ["examples", "root", "uniform"])


def check_weight(weights: str, weight: Scalar, examples: int) -> None:
    """An InputError if a device with so many examples could not have this weight."""
    wanted = {"examples": float(examples), "root": math.sqrt(examples), "uniform": 1.0}[weights]
    if not math.isclose(float(weight), wanted, rel_tol=1e-5):
        raise InputError(f"its weight is {float(weight):g}, with {examples} examples it is {wanted:g}")


def weight_range(weights: str, limits: Limits) -> Number:
    """The weight's range; n_i has one only if it is said how many examples a device may have."""
    if weights == "uniform":
        return Number(1, 1)
    if not limits.examples:
        raise InputError(
            f"weights={weights!r}: the part 'weight' has no declared range for a secure sum: say how many training "
            "examples a device may have (run.most-examples), or take weights='uniform'"
        )
    return Number(1, limits.examples if weights == "examples" else math.sqrt(limits.examples))


def ranges(weights: str, limits: Limits) -> Any:
    """The ranges of `Mean`: x is sent as its difference from z."""
    return Mean(Vector(limits.clip, "weight", "weight"), weight_range(weights, limits))  # type: ignore[arg-type]


def weight(weights: str, context: Context) -> Scalar:
    """The device's weight: n_i, √n_i or 1."""
    examples = jnp.asarray(context.examples, float)
    if weights == "examples":
        return examples
    return jnp.sqrt(examples) if weights == "root" else jnp.ones_like(examples)


def summand(x: Params, weight: Scalar) -> Mean:
    """One device's share of the mean."""
    return Mean(trees.scale(weight, x), weight)


def average(total: Mean) -> Params:
    """The weighted mean, from the sum."""
    return trees.mean(total.weighted, total.weight)
