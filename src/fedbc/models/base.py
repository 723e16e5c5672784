"""What a model is: a pair of pure functions, `init` and `apply`, and how its output is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Params = Any
Array = jax.Array


def cross_entropy(logits: Array, labels: Array) -> Array:
    """-log softmax(logits)[label], one value an example."""
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    shifted = logits - top
    chosen = jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) == labels[:, None], shifted, 0), axis=-1)
    return jnp.log(jnp.sum(jnp.exp(shifted), axis=-1)) - chosen


def is_largest(logits: Array, labels: Array) -> Array:
    """Whether the largest logit is the label's, one value an example."""
    return jnp.argmax(logits, axis=-1) == labels


def half_squared_error(outputs: Array, targets: Array) -> Array:
    """½‖output - target‖², one value an example; for regression and for quadratic test problems."""
    difference = (outputs - targets).reshape(outputs.shape[0], -1)
    return 0.5 * jnp.sum(difference * difference, axis=-1)


@dataclass(frozen=True)
class Model:
    """A model for federated training.

    init: `init(key)` gives a pytree of parameters.
    apply: `apply(params, x)` gives one output row an example; a stochastic model (dropout) takes `key=` as well,
        which is a key while training and None while evaluating.
    loss: `loss(outputs, y)`, one value an example.
    correct: `correct(outputs, y)`, whether each example is answered rightly; None where accuracy has no meaning
        (regression): the accuracy columns are then NaN.
    tiny: a step is so little work that starting its operations takes longer than computing them. Training in small
        batches is then compiled into one function without calls, in which products of matrices should be short (see
        `fedbc.models.layers.short_product`).
    """

    init: Callable[[Array], Params]
    apply: Callable[..., Array]
    loss: Callable[[Array, Array], Array] = cross_entropy
    correct: Callable[[Array, Array], Array] | None = is_largest
    stochastic: bool = False
    tiny: bool = False
    name: str = "custom"

    def outputs(self, params: Params, x: Array, key: Array | None = None) -> Array:
        """The model's outputs; `key` reaches only a stochastic model."""
        if self.stochastic:
            return self.apply(params, x, key=key)
        return self.apply(params, x)
