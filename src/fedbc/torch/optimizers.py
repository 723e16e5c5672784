"""Optimizers of torch.optim for the local steps: `optimizer=fedbc.torch.optimizer(torch.optim.Adam)`.

What such an optimizer remembers are tensors and numbers. They travel as arrays in the method's carry, so that they
restart each round, stay on the device or are written to a checkpoint as those of one of optax's; for each step PyTorch
is called with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from fedbc.errors import InputError
from fedbc.torch.network import called

Array = np.ndarray


class Memory(NamedTuple):
    """Between steps."""

    steps: Any
    """how many were taken; what comes before the first is the optimizer's own affair"""
    values: list[Any]
    """of its state, parameter by parameter"""


def optimizer(kind: type[torch.optim.Optimizer], **arguments: Any) -> Callable[[Any], Any]:
    """One of torch.optim, as `fedbc.simulate` takes it: `optimizer=fedbc.torch.optimizer(torch.optim.Adam, eps=1e-6)`.

    It takes the local steps of any method that takes an optimizer, at the method's rate, for models of PyTorch and of
    JAX. Each step is a call of PyTorch's from compiled code; for a model of JAX one of optax's is much faster.

    kind: the class; one that needs a closure, such as LBFGS, does not fit.
    arguments: its own, without `lr`, which is the method's.
    """
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise InputError(f"kind={kind!r} is not accepted: give a class of torch.optim, such as torch.optim.Adam")
    if "lr" in arguments:
        raise InputError("lr is not accepted here: the rate is the method's lr")
    rule = _Rule(kind, arguments)

    def from_rate(lr: Any) -> Any:
        import optax  # as everywhere: it is slow to import

        return optax.GradientTransformation(rule.init, lambda g, memory, w=None: rule.update(lr, g, memory, w))

    from_rate.__qualname__ = f"{kind.__name__}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
    from_rate.__module__ = "torch.optim"
    return from_rate


class _Rule:
    """A class of torch.optim with its arguments."""

    def __init__(self, kind: type[torch.optim.Optimizer], arguments: dict[str, Any]) -> None:
        self.kind, self.arguments = kind, arguments
        self._known: dict[Any, list[_Place]] = {}

    def init(self, w: Any) -> Memory:
        """At rest."""
        values = [jnp.zeros(p.shape, p.dtype) for p in self._places(jax.tree.leaves(w))]
        return Memory(jnp.zeros((), jnp.int32), values)

    def update(self, lr: Any, gradient: Any, memory: Memory, w: Any) -> tuple[Any, Memory]:
        """The move of one step, and what is remembered then."""
        leaves, structure = jax.tree.flatten(w)
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (leaves, memory.values))
        given = lr, jax.tree.leaves(gradient), memory, leaves
        moves, values = jax.pure_callback(called(self._step), like, *given, vmap_method="sequential")
        return jax.tree.unflatten(structure, moves), Memory(memory.steps + 1, values)

    def _step(self, lr: Any, gradients: list[Any], memory: Memory, w: list[Any]) -> tuple[list[Array], list[Array]]:
        """On the host: one step."""
        before = [np.array(a) for a in w]
        parameters = [nn.Parameter(torch.from_numpy(a.copy())) for a in before]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(np.array(gradient))
        taker = self._made(parameters, float(lr))
        places = self._places(w)
        if memory.steps:
            for place, value in zip(places, memory.values, strict=True):
                taker.state[parameters[place.parameter]][place.name] = place.restored(np.array(value))
        taker.step()
        moves = [p.detach().numpy() - a for p, a in zip(parameters, before, strict=True)]
        return moves, [place.read(taker.state[parameters[place.parameter]]) for place in places]

    def _made(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        try:
            return self.kind(parameters, lr=lr, **self.arguments)  # type: ignore[call-arg]
        except (TypeError, ValueError) as error:
            raise InputError(f"torch.optim.{self.kind.__name__}: {error}") from error

    def _places(self, w: list[Any]) -> list[_Place]:
        """What is remembered of parameters with these shapes, found by a step on zeros."""
        key = tuple((tuple(a.shape), str(np.dtype(a.dtype))) for a in w)
        if key not in self._known:
            self._known[key] = list(self._found([np.zeros(shape, dtype) for shape, dtype in key]))
        return self._known[key]

    def _found(self, zeros: list[Array]) -> Iterator[_Place]:
        parameters = [nn.Parameter(torch.from_numpy(a)) for a in zeros]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        taker = self._made(parameters, 0.1)
        with _explained(self.kind):
            taker.step()
        for number, parameter in enumerate(parameters):
            for name, value in taker.state[parameter].items():
                if value is None:
                    continue
                if not isinstance(value, torch.Tensor | int | float):
                    raise InputError(f"torch.optim.{self.kind.__name__} does not fit: it remembers {name}={value!r}")
                yield _Place(number, name, isinstance(value, torch.Tensor), np.asarray(value))


class _Place:
    """Where something that is remembered belongs."""

    def __init__(self, parameter: int, name: str, tensor: bool, value: Array) -> None:
        self.parameter, self.name, self.tensor = parameter, name, tensor
        self.shape, self.own = value.shape, value.dtype
        self.dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        """as JAX holds it"""

    def read(self, state: dict[str, Any]) -> Array:
        """From an optimizer's state of the parameter."""
        return np.asarray(state[self.name], self.dtype)

    def restored(self, value: Array) -> Any:
        """As the optimizer had it."""
        return torch.from_numpy(value.astype(self.own)) if self.tensor else value.astype(self.own).item()


@contextlib.contextmanager
def _explained(kind: type) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        told = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"torch.optim.{kind.__name__} does not fit: its step fails: {told}") from error
