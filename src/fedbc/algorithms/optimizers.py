"""Optimizers for the local steps: any of optax's, by name with its arguments, or from Python.

"sgd"                         the default: the method's own gradient descent with its `momentum`
"adam", "rmsprop,decay=0.99"  optax's of that name at the method's rate `lr`, with arguments of its own
optax.adam                    a function from the rate to a transformation
optax.adam(0.001)             a transformation, which has its own rate: the method's does not count then
fedbc.torch.optimizer(...)    one of torch.optim, at the method's rate
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedbc import named, trees
from fedbc.errors import InputError, unknown

if TYPE_CHECKING:
    import optax

Optimizer = Callable[[Any], "optax.GradientTransformation"]
"""A transformation from its rate."""
Given = str | Mapping[str, Any] | Optimizer | Any
"""What an argument may be."""

OWN = "sgd"
"""The method's own gradient descent with momentum."""
OTHERS = ("lbfgs", "noisy_sgd", "optimistic_adam", "sm3")
"""Those of optax's with a rate that need more than gradients, do not take every shape, or are on their way out."""


def optimizer_from(value: Given) -> Optimizer | None:
    """The optimizer that an argument says; None for the method's own. What does not work is an InputError."""
    if value == OWN:
        return None
    import optax  # not at the top: importing it takes as long as all of fedbc

    if isinstance(value, optax.GradientTransformation):
        optimizer: Optimizer = functools.partial(_ready, value)
    elif isinstance(value, str | Mapping):
        optimizer = _by_name(value)
    elif isinstance(value, type):
        raise InputError(
            f"optimizer={describe(value)} is not accepted: give a name such as 'adam', or one of optax's; "
            "of PyTorch's, fedbc.torch.optimizer(torch.optim.Adam)"
        )
    elif callable(value):
        optimizer = value
    else:
        raise InputError(f"optimizer={value!r} is not accepted: give a name such as 'adam', or one of optax's")
    _try(value, optimizer)
    return optimizer


def has_own_rate(optimizer: Optimizer | None) -> bool:
    """Whether it is a transformation that takes no rate."""
    return isinstance(optimizer, functools.partial) and optimizer.func is _ready


def _ready(transformation: Any, lr: Any) -> Any:
    del lr
    return transformation


def names() -> list[str]:
    """The names that are known."""
    import optax

    return sorted(
        name
        for name, value in inspect.getmembers(optax, callable)
        if name.islower() and not name.startswith(("_", "scale_by_")) and name not in OTHERS
        if next(iter(inspect.signature(value).parameters), "") == "learning_rate"
    )


def _by_name(value: str | Mapping[str, Any]) -> Optimizer:
    import optax

    name, arguments = named.parse("optimizer", value)
    if name not in names():
        raise unknown("optimizer", name, names())
    rule = getattr(optax, name)
    known = list(inspect.signature(rule).parameters)[1:]
    for key in arguments:
        if key not in known:
            advice = "; the rate is the method's lr" if key in ("learning_rate", "lr") else ""
            raise InputError(f"{unknown(f'optimizer: argument of {name}', key, known)}{advice}")
    return functools.partial(rule, **arguments)


def _try(value: Given, optimizer: Optimizer) -> None:
    """One step on a small model, without computing."""
    w = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}

    def step() -> tuple[Any, Any, Any]:
        rule = optimizer(0.1)
        memory = rule.init(w)
        move, after = rule.update(w, memory, w)
        return move, memory, after

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda a: (a.shape, a.dtype), tree)

    try:
        move, memory, after = jax.eval_shape(step)
        fits = shapes(move) == shapes(w) and shapes(memory) == shapes(after)
    except Exception as error:
        told = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"optimizer={describe(value)} does not work: {told}") from error
    if not fits:
        raise InputError(f"optimizer={describe(value)} does not work: its update has other shapes than the parameters")


def describe(value: Any) -> Any:
    """A value of Python's as a specification holds it: plain ones as they are, functions by their names."""
    if value is None or isinstance(value, str | int | float | Mapping | list | tuple):
        return value
    name = getattr(value, "__qualname__", type(value).__name__)
    return f"{getattr(value, '__module__', type(value).__module__)}.{name}"


def apply(optimizer: Optimizer, w: Any, gradient: Any, memory: Any, lr: Any) -> tuple[Any, Any]:
    """One step: where it leads, and what the optimizer remembers then."""
    move, memory = optimizer(lr).update(gradient, memory, w)
    return jax.tree.map(lambda w, m: w + m.astype(w.dtype), w, move), memory


def rest(optimizer: Optimizer | None, w: Any) -> Any:
    """What an optimizer remembers at the start; of the method's own the velocity 0."""
    return trees.zeros_like(w) if optimizer is None else optimizer(1.0).init(w)
