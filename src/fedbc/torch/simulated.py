"""A PyTorch module in the simulator: `fedbc.simulate(algorithm, fedbc.torch.model(MyModule), federation)`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor, nn

from fedbc import checks, models
from fedbc.errors import InputError
from fedbc.models.base import Model
from fedbc.torch.network import Make, Network, Transform, called
from fedbc.torch.oracle import TorchLoss
from fedbc.torch.training import training

PerExample = Callable[[Tensor, Tensor], Tensor]


def model(
    module: nn.Module | Make,
    *,
    loss: PerExample | Callable[..., Any] = models.cross_entropy,
    correct: PerExample | Callable[..., Any] | None = models.is_largest,
    channels_first: bool = False,
    statistics: str = "local",
    transform: Transform | None = None,
) -> Model:
    """A model from a PyTorch module; PyTorch takes the local steps, for any method.

    Its parameters are a dictionary by PyTorch's names. Only those with `requires_grad` are trained, travel and count in
    the drift; the others are part of the module.

    module: a class or function without arguments that makes the module, whose weights the run's seed then determines
        through PyTorch's random numbers; or a module, from whose weights every run starts.
    loss: `fedbc.models.cross_entropy` or `half_squared_error`, or a function of outputs and labels, in PyTorch, with
        one value per example.
    correct: `fedbc.models.is_largest`, or a function of outputs and labels, in PyTorch, that says whether each example
        is answered rightly; None where accuracy has no meaning.
    channels_first: the module takes images with the colours before rows and columns, PyTorch's custom, and the
        federation has them last, as those of `fedbc.data` do.
    statistics: of a module with buffers, such as the running statistics of a BatchNorm: "local" if they stay with each
        device, "averaged" if the server averages them with the model.
    transform: applied to the examples of each training batch as the module takes them, such as a random flip; its
        random numbers are PyTorch's, seeded by the run's seed, round, device and batch.
    """
    if transform is not None and not callable(transform):
        raise InputError(f"transform={transform!r} is not accepted: give a function from a batch's examples to such")
    if not isinstance(module, nn.Module) and not callable(module):
        raise InputError(f"module={module!r} is not accepted: give a torch.nn.Module, its class, or a function")
    checks.choice("statistics", statistics, ["local", "averaged"])
    network = Network(module, channels_first=channels_first, transform=transform)
    each: Any = loss if loss in _MEANS else _from_torch(loss)
    return Model(
        network.init,
        network.apply,
        loss=each,
        correct=correct if correct in (models.is_largest, None) else _answers(correct),
        stochastic=True,
        name=network.name,
        statistics=statistics if network.buffers else None,
        rounds=functools.partial(training, network, _MEANS[loss] if loss in _MEANS else _mean_of(network, loss)),
    )


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, y)


def _half_squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    difference = (outputs - y).flatten(1)
    return 0.5 * (difference * difference).sum(1).mean()


_MEANS: dict[Any, TorchLoss] = {
    models.cross_entropy: _cross_entropy,
    models.half_squared_error: _half_squared_error,
}


def _mean_of(network: Network, loss: PerExample) -> TorchLoss:
    """The mean of a user's loss, which has one value per example."""

    def mean(outputs: Tensor, y: Tensor) -> Tensor:
        each = loss(outputs, y)
        if each.shape != (len(y),):
            raise InputError(
                f"the loss of module {network.name} has shape {tuple(each.shape)} for a batch of {len(y)} examples: "
                'give one value per example, such as with reduction="none"'
            )
        return each.mean()

    return mean


def _from_torch(loss: PerExample) -> Callable[..., jax.Array]:
    """A user's loss, as JAX calls it; differentiable with respect to the outputs."""

    def on_host(outputs: Any, y: Any) -> Any:
        with torch.no_grad():
            return loss(_tensor(outputs), _labels(y)).numpy()

    def gradient_on_host(outputs: Any, y: Any, cotangent: Any) -> Any:
        at = _tensor(outputs).requires_grad_()
        (found,) = torch.autograd.grad(loss(at, _labels(y)), at, _tensor(cotangent))
        return found.numpy()

    @jax.custom_vjp
    def each(outputs: jax.Array, y: jax.Array) -> jax.Array:
        like = jax.ShapeDtypeStruct(y.shape[:1], outputs.dtype)
        return jax.pure_callback(called(on_host), like, outputs, y, vmap_method="sequential")

    def forward(outputs: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        return each(outputs, y), (outputs, y)

    def backward(kept: Any, cotangent: jax.Array) -> tuple[Any, None]:
        like = jax.ShapeDtypeStruct(kept[0].shape, kept[0].dtype)
        return jax.pure_callback(called(gradient_on_host), like, *kept, cotangent, vmap_method="sequential"), None

    each.defvjp(forward, backward)
    return each


def _answers(correct: Any) -> Callable[..., jax.Array]:
    """A user's judge of outputs, as JAX calls it."""

    def on_host(outputs: Any, y: Any) -> Any:
        with torch.no_grad():
            return correct(_tensor(outputs), _labels(y)).bool().numpy()

    def right(outputs: jax.Array, y: jax.Array) -> jax.Array:
        like = jax.ShapeDtypeStruct(y.shape[:1], bool)
        return jax.pure_callback(called(on_host), like, outputs, y, vmap_method="sequential")

    return right


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))


def _labels(y: Any) -> Tensor:
    labels = _tensor(y)
    return labels if labels.is_floating_point() else labels.long()
