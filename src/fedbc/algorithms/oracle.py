"""Where the methods' local steps meet f_i: its value, its derivatives, and the control flow around them.

A step of a method is arithmetic on trees and these few functions, nothing else; so that whoever computes f_i says how,
and the same step runs compiled by JAX, or on the tensors of another library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import jax

Params = Any
Scalar = Any
T = TypeVar("T")


class Oracle(ABC):
    """f_i on a batch; called with parameters and a batch it gives the value."""

    @abstractmethod
    def __call__(self, w: Params, batch: Any) -> Scalar:
        """f_i(w; batch)"""

    @abstractmethod
    def value_and_gradient(self, w: Params, batch: Any) -> tuple[Scalar, Params]:
        """f_i(w; batch) and ∇f_i(w; batch)"""

    def gradient(self, w: Params, batch: Any) -> Params:
        """∇f_i(w; batch)"""
        return self.value_and_gradient(w, batch)[1]

    @abstractmethod
    def derivative(self, function: Callable[[Params], tuple[Scalar, T]], w: Params) -> tuple[T, Params]:
        """What a function that may itself take gradients tells beside its value, and its derivative at w."""

    @abstractmethod
    def repeat(self, times: int, body: Callable[[T], T], start: T) -> T:
        """body(...body(start)), so many times."""

    @abstractmethod
    def when(self, condition: Scalar, value: Callable[[], T], otherwise: T) -> T:
        """value() if the condition holds, else the other; what is not needed is not computed."""


class JaxOracle(Oracle):
    """Of a function that JAX can derive."""

    def __init__(self, loss: Callable[[Params, Any], Scalar]) -> None:
        self.loss = loss

    def __call__(self, w: Params, batch: Any) -> Scalar:
        """f_i(w; batch)"""
        return self.loss(w, batch)

    def value_and_gradient(self, w: Params, batch: Any) -> tuple[Scalar, Params]:
        """Both in one pass."""
        return jax.value_and_grad(self.loss)(w, batch)

    def gradient(self, w: Params, batch: Any) -> Params:
        """∇f_i(w; batch)"""
        return jax.grad(self.loss)(w, batch)

    def derivative(self, function: Callable[[Params], tuple[Scalar, T]], w: Params) -> tuple[T, Params]:
        """By automatic differentiation."""
        gradient, told = jax.grad(function, has_aux=True)(w)
        return told, gradient

    def repeat(self, times: int, body: Callable[[T], T], start: T) -> T:
        """A compiled loop."""
        return jax.lax.fori_loop(0, times, lambda _, value: body(value), start)

    def when(self, condition: Scalar, value: Callable[[], T], otherwise: T) -> T:
        """A compiled branch."""
        return jax.lax.cond(condition, value, lambda: otherwise)


def oracle_of(loss: Callable[[Params, Any], Scalar]) -> Oracle:
    """What a method's step was given: an oracle, or a plain function for JAX."""
    return loss if isinstance(loss, Oracle) else JaxOracle(loss)
