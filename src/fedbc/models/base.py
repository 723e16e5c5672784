"""What a model is: a pair of pure functions, `init` and `apply`, and how its output is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedbc.errors import InputError

Params = Any
Array = jax.Array


def cross_entropy(logits: Array, labels: Array) -> Array:
    """-log softmax(logits)[label], one value per example."""
    _check_classes(logits, labels)
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    shifted = logits - top
    chosen = jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) == labels[:, None], shifted, 0), axis=-1)
    return jnp.log(jnp.sum(jnp.exp(shifted), axis=-1)) - chosen


def is_largest(logits: Array, labels: Array) -> Array:
    """Whether the largest logit is the label's, one value per example."""
    _check_classes(logits, labels)
    return jnp.argmax(logits, axis=-1) == labels


def half_squared_error(outputs: Array, targets: Array) -> Array:
    """½‖output - target‖², one value per example; for regression and for quadratic test problems.

    Outputs and targets that differ in axes of length 1 alone, such as (n, 1) and (n,), are the same numbers.
    """
    if _long_axes(outputs) != _long_axes(targets):
        raise InputError(
            f"outputs have shape {outputs.shape[1:]} an example but targets {targets.shape[1:]}: they must agree"
        )
    difference = outputs.reshape(len(outputs), -1) - targets.reshape(len(targets), -1)
    return 0.5 * jnp.sum(difference * difference, axis=-1)


def _long_axes(a: Array) -> tuple[int, ...]:
    return (a.shape[0], *(size for size in a.shape[1:] if size != 1))


def _check_classes(logits: Array, labels: Array) -> None:
    """An InputError unless there is a logit for each class, and one whole number per example."""
    if logits.ndim != 2:
        raise InputError(
            f"outputs have shape {logits.shape[1:]} an example, but classification needs one number for each class"
        )
    if labels.ndim != 1:
        raise InputError(
            f"labels have shape {labels.shape[1:]} an example, but classification needs one whole number: "
            "labels.reshape(-1), or labels.argmax(-1) where they are one-hot"
        )
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise InputError(
            f"labels of type {labels.dtype} are not classes: give whole numbers (labels.astype(int)), or for "
            "regression a model with loss=fedbc.models.half_squared_error and correct=None"
        )


@dataclass(frozen=True)
class Model:
    """A model for federated training.

    init: `init(key)` gives a pytree of parameters.
    apply: `apply(params, x)` gives one output row per example; a stochastic model (dropout) takes `key=` as well,
        which is a key while training and None while evaluating.
    loss: `loss(outputs, y)`, one value per example.
    correct: `correct(outputs, y)`, whether each example is answered rightly; None where accuracy has no meaning
        (regression): the accuracy columns are then NaN.
    tiny: a step is so little work that starting its operations takes longer than computing them. Training in small
        batches is then compiled into one function without calls, in which products of matrices should be short (see
        `fedbc.models.layers.short_product`).
    statistics: for a model that keeps state besides its parameters, such as running statistics: "local" if it stays
        with each device, "averaged" if the server averages it. `init` then gives a dictionary of both, `params` and
        `statistics`; `apply` takes it, and in training (`key` is not None) gives outputs and new statistics.
    rounds: makes what runs the rounds of training where it is not JAX that takes the local steps (`fedbc.torch.model`).
    """

    init: Callable[[Array], Params]
    apply: Callable[..., Array]
    loss: Callable[[Array, Array], Array] = cross_entropy
    correct: Callable[[Array, Array], Array] | None = is_largest
    stochastic: bool = False
    tiny: bool = False
    name: str = "custom"
    rounds: Callable[..., Any] | None = None
    statistics: str | None = None

    def outputs(self, params: Params, x: Array, key: Array | None = None) -> Array:
        """The model's outputs; `key` reaches only a stochastic model."""
        if self.stochastic:
            return self.apply(params, x, key=key)
        return self.apply(params, x)

    def trained(self, params: Params) -> Params:
        """What is trained of what `init` gave."""
        return params["params"] if self.statistics else params

    def with_trained(self, params: Params, trained: Params) -> Params:
        """The same with other values of what is trained."""
        return {**params, "params": trained} if self.statistics else trained
