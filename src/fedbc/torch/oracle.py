"""What a method asks of a network: its loss, its gradient, the Hessian times a vector.

The one seam between the methods, written for JAX, and PyTorch, which computes the network. For JAX the three are
operations without a body, with the rules by which they are differentiated: `loss` here is what a method's `step` is
given while it is traced, and `jax.value_and_grad(loss)`, `jax.grad` of that, loops and branches around it all work.
`fedbc.torch.program` then runs what was traced, and asks an `Oracle` wherever one of the three stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.extend.core import Primitive
from jax.interpreters import ad
from torch import Tensor, nn

from fedbc.errors import InputError

LOSS, GRADIENT, HESSIAN_TIMES = Primitive("loss"), Primitive("gradient"), Primitive("hessian_times")


class Batch(NamedTuple):
    """A batch while a step is traced: a number that stands for it, and how many examples it has."""

    which: Any
    size: Any


def loss(w: jax.Array, batch: Batch) -> jax.Array:
    """f_i(w) on the batch; w is a tree with one vector."""
    (vector,) = jax.tree.leaves(w)
    return LOSS.bind(vector, batch.which)


LOSS.def_abstract_eval(lambda w, batch: jax.core.ShapedArray((), w.dtype))
GRADIENT.def_abstract_eval(lambda w, batch: w)
HESSIAN_TIMES.def_abstract_eval(lambda w, batch, v: w)


def _loss_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    value, (t, _) = LOSS.bind(*primals), tangents
    if isinstance(t, ad.Zero):
        return value, ad.Zero(jax.core.ShapedArray((), value.dtype))
    return value, jnp.sum(GRADIENT.bind(*primals) * t)


def _gradient_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    value, (t, _) = GRADIENT.bind(*primals), tangents
    return value, t if isinstance(t, ad.Zero) else HESSIAN_TIMES.bind(*primals, t)


def _hessian_times_transposed(cotangent: Any, w: Any, batch: Any, v: Any) -> list[Any]:
    """The Hessian is symmetric."""
    del v
    if isinstance(cotangent, ad.Zero):
        return [None, None, cotangent]
    return [None, None, HESSIAN_TIMES.bind(w, batch, cotangent)]


ad.primitive_jvps[LOSS] = _loss_jvp
ad.primitive_jvps[GRADIENT] = _gradient_jvp
ad.primitive_transposes[HESSIAN_TIMES] = _hessian_times_transposed


class Part(NamedTuple):
    """Examples that the module takes at once."""

    x: Tensor
    y: Tensor
    seed: int | None
    """of PyTorch's random numbers; None where the module draws none"""
    share: float = 1.0
    """of the loss: full-batch descent goes through a device's examples in parts"""


TorchLoss = Callable[[Tensor, Tensor], Tensor]


class Oracle:
    """A module's loss, gradient and Hessian at any vector of its trained parameters."""

    def __init__(
        self,
        module: nn.Module,
        trained: list[nn.Parameter],
        forward: Callable[[nn.Module, Tensor], Tensor],
        loss: TorchLoss,
    ) -> None:
        """`trained` are the parameters in their order in the vector; `loss` gives the mean over a batch of what
        `forward` gives for the module."""
        self.module, self.trained, self.forward, self.loss = module, trained, forward, loss
        self._shapes = [p.shape for p in trained]
        self._sizes = [p.numel() for p in trained]
        self._at = 0
        self.spare: list[Tensor] = []
        """vectors that nobody needs any more, to be written to"""

    def value_and_gradient(self, w: Tensor, batch: list[Part]) -> tuple[float, Tensor]:
        """f and ∇f on the batch, in training mode."""
        self._go_to(w)
        total, gradient = 0.0, None
        for part in batch:
            value = self._loss(part)
            if not value.requires_grad:
                raise InputError(
                    f"the loss of module {type(self.module).__name__} does not depend on its parameters: "
                    "are its outputs computed under no_grad, or detached?"
                )
            parts = torch.autograd.grad(value, self.trained, materialize_grads=True, allow_unused=True)
            total += part.share * value.item()
            gradient = self._joined(parts, part.share, gradient)
        assert gradient is not None
        return total, gradient

    def value(self, w: Tensor, batch: list[Part]) -> float:
        """f alone. It is asked for at points beside training's path, so running statistics do not take part."""
        self._go_to(w)
        kept = [b.clone() for b in self.module.buffers()]
        with torch.no_grad():
            total = sum(part.share * self._loss(part).item() for part in batch)
            for buffer, before in zip(self.module.buffers(), kept, strict=True):
                buffer.copy_(before)
        return total

    def hessian_times(self, w: Tensor, batch: list[Part], v: Tensor) -> Tensor:
        """∇²f v, by a second backward pass."""
        self._go_to(w)
        kept = [b.clone() for b in self.module.buffers()]
        product = None
        for part in batch:
            first = torch.autograd.grad(
                self._loss(part), self.trained, create_graph=True, materialize_grads=True, allow_unused=True
            )
            along = sum((g * t).sum() for g, t in zip(first, self._split(v), strict=True))
            assert isinstance(along, Tensor)
            second = (
                torch.autograd.grad(along, self.trained, materialize_grads=True, allow_unused=True)
                if along.requires_grad
                else [torch.zeros_like(p) for p in self.trained]
            )
            product = self._joined(second, part.share, product)
        with torch.no_grad():
            for buffer, before in zip(self.module.buffers(), kept, strict=True):
                buffer.copy_(before)
        assert product is not None
        return product

    def _loss(self, part: Part) -> Tensor:
        if part.seed is not None:
            torch.default_generator.manual_seed(part.seed)
        return self.loss(self.forward(self.module, part.x), part.y)

    def _go_to(self, w: Tensor) -> None:
        """The module's parameters become views into w."""
        if self._at == w.data_ptr():
            return
        for parameter, view in zip(self.trained, self._split(w), strict=True):
            parameter.data = view
        self._at = w.data_ptr()

    def _split(self, w: Tensor) -> list[Tensor]:
        return [part.view(shape) for part, shape in zip(w.split(self._sizes), self._shapes, strict=True)]

    def _joined(self, parts: Any, share: float, sofar: Tensor | None) -> Tensor:
        """Gradients as one vector, times a share, added to those so far."""
        flat = [part.reshape(-1) for part in parts]
        vector = torch.cat(flat, out=self.spare.pop()) if self.spare else torch.cat(flat)
        if share != 1.0:
            vector.mul_(share)
        return vector if sofar is None else sofar.add_(vector)


def check_outputs(name: str, outputs: Any, examples: int) -> None:
    """A module gives one row per example, or it is an InputError."""
    if not isinstance(outputs, Tensor):
        raise InputError(f"module {name} returns a {type(outputs).__name__}: give a tensor with one row per example")
    if outputs.ndim == 0 or outputs.shape[0] != examples:
        raise InputError(
            f"module {name} returns shape {tuple(outputs.shape)} for a batch of {examples} examples: "
            "give one row per example"
        )
