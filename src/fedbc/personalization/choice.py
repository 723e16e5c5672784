"""A device's choice between its candidates, from how each answers examples that it did not train on.

The score of an answer is 1 - exp(-loss), for the cross-entropy the probability of a wrong answer: like the share of
wrong answers it is bounded, so that no single example decides, and like the loss it is smooth, so that few examples
tell models apart. For regression it is the loss itself.

A device takes the candidate with the smallest tolerance whose score is within `NOISE` standard errors of the best
one's, the error being that of the difference, example by example. Of equal candidates it is the one nearest to z.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedbc.models.base import Array, Model

NOISE = 0.5
"""Standard errors of the difference within which a smaller tolerance is preferred."""


class Scores(NamedTuple):
    """How candidates answer a device's held-out examples."""

    total: np.ndarray
    """(candidates,): the sum of the scores"""
    products: np.ndarray
    """(candidates, candidates): the sums of the products of two candidates' scores, for the error of a difference"""
    examples: int


def judged(model: Model) -> Model:
    """The model, its loss being the score of an answer."""
    if model.correct is None:
        return model
    loss = model.loss

    def score(outputs: Array, y: Array) -> Array:
        return -jnp.expm1(-loss(outputs, y))

    return replace(model, loss=score)


def choose(scores: Scores, *, noise: float = NOISE) -> int:
    """The number of the chosen candidate; candidates come in the order of preference among equals."""
    if scores.examples == 0:
        return 0
    mean = scores.total / scores.examples
    mean = np.where(np.isfinite(mean), mean, np.inf)
    if not np.isfinite(mean).any():
        return 0
    best = int(np.argmin(mean))
    with np.errstate(invalid="ignore"):
        behind = mean - mean[best]
        products = scores.products
        square = products.diagonal() + products[best, best] - 2 * products[best]
        variance = np.maximum(square / scores.examples - behind**2, 0)
        error = np.sqrt(variance / max(scores.examples - 1, 1))
        good = behind <= noise * error + 1e-12
    return int(np.flatnonzero(good)[0])
