"""A PyTorch module as a pure function: its trained parameters by name, its outputs anywhere JAX asks for them.

This is how the rest of the package sees a module: evaluation, personal models, debug mode and a deployed device call it
from JAX, batch by batch. Rounds of training are PyTorch's own (`fedbc.torch.training`).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from fedbc.errors import InputError, first_line
from fedbc.runtime import usable_cores
from fedbc.torch import weights
from fedbc.torch.oracle import check_outputs

Array = np.ndarray
Make = Callable[[], nn.Module]
Transform = Callable[[Tensor], Tensor]
Arrays = Mapping[str, Any]
_threads = ThreadPoolExecutor(usable_cores(), "fedbc-torch", initializer=lambda: torch.set_num_threads(1))


def called(work: Callable[..., Any]) -> Callable[..., Any]:
    """The work, to be called by compiled code: XLA's own threads are not threads of Python's to PyTorch."""
    return lambda *arguments: _threads.submit(work, *arguments).result()


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
TYPES = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


class Network:
    """A module, and copies of it for the threads that call it."""

    def __init__(self, source: nn.Module | Make, *, channels_first: bool, transform: Transform | None) -> None:
        """`source` is a module, or makes one. What is not trained is that of the first one made."""
        self._source, self.channels_first, self.transform = source, channels_first, transform
        self.template = self._made(0)
        self.name = type(self.template).__name__
        if without := [name for name, p in self.template.named_parameters() if nn.parameter.is_lazy(p)]:
            raise InputError(f"module {self.name} has parameters without a shape ({without[0]}): give it their sizes")
        self.trained = {name: p for name, p in sorted(self.template.named_parameters()) if p.requires_grad}
        self.shapes = {name: tuple(p.shape) for name, p in self.trained.items()}
        if not self.trained:
            raise InputError(f"module {self.name} has no parameters to train: is requires_grad False for all of them?")
        self.buffers = sorted(weights.buffers(self.template))
        """names of the state that it keeps besides, such as running statistics"""
        types = {p.dtype for p in self.trained.values()}
        if len(types) > 1 or not types <= set(TYPES):
            found = ", ".join(sorted(str(t) for t in types))
            raise InputError(f"module {self.name} has parameters of {found}: give all of them one type, torch.float32")
        self.dtype: Any = TYPES[types.pop()]
        self._norms_batches = any(isinstance(part, BATCH_NORMS) for part in self.template.modules())
        self._own = threading.local()
        self._outputs: dict[tuple[Any, ...], tuple[tuple[int, ...], Any]] = {}

    def _made(self, seed: int) -> nn.Module:
        """A module with the weights that a seed gives; a module that was given is copied."""
        if isinstance(self._source, nn.Module):
            return copied(self._source)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                module = self._source()
            except Exception as error:
                raise InputError(
                    f"module={self._source!r} cannot be made ({first_line(error)}): give a class or function that "
                    "needs no arguments, such as lambda: MyModule(10)"
                ) from error
        if not isinstance(module, nn.Module):
            raise InputError(
                f"module={self._source!r} gives a {type(module).__name__}, not a torch.nn.Module: "
                "give a module, its class, or a function that makes one"
            )
        return module

    def initial(self, seed: int) -> dict[str, Array]:
        """The trained parameters' first values, by name; NaN among them is an InputError."""
        found = dict(self._made(seed).named_parameters())
        arrays = {}
        for name, shape in self.shapes.items():
            if name not in found or tuple(found[name].shape) != shape:
                raise InputError(
                    f"module {self.name} is made anew with other parameters: {name} is not of shape {shape}"
                )
            arrays[name] = np.array(found[name].detach().numpy())
            if not np.isfinite(arrays[name]).all():
                raise InputError(f"module {self.name} has weights that are not finite before training: {name}")
        return arrays

    def _check_type(self) -> None:
        if self.dtype == np.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise InputError(f"module {self.name} is in float64: set jax_enable_x64, or give it in float32")

    def copy(self) -> nn.Module:
        """A module of its own for somebody who computes."""
        try:
            return copied(self.template)
        except InputError:
            if isinstance(self._source, nn.Module):
                raise
            module = self._made(0)
            module.load_state_dict(self.template.state_dict())
            return module

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        """The outputs of a copy of the module for examples as the federation has them; in training, transformed."""
        if self.channels_first:  # images keep their layout in memory, which is PyTorch's faster one
            x = x.movedim(-1, 1)
        try:
            taken = self.transform(x) if module.training and self.transform is not None else x
            # In training a BatchNorm wants two examples: one is repeated, as in models of JAX a part of a batch is.
            alone = module.training and self._norms_batches and len(taken) == 1
            outputs = module(torch.cat([taken, taken]))[:1] if alone else module(taken)
        except Exception as error:
            what = f"module {self.name}" if self.transform is None else f"module {self.name}, or its transform,"
            hint = "" if self.channels_first or x.ndim < 4 else "; colours first? channels_first=True"
            raise InputError(
                f"{what} does not take a batch of shape {tuple(x.shape)}, {str(x.dtype).removeprefix('torch.')}"
                f"{' in training' if module.training else ''}: {first_line(error)}{hint}"
            ) from error
        check_outputs(self.name, outputs, len(x))
        return outputs

    def draws_numbers(self, shape: tuple[int, ...], dtype: Any) -> bool:
        """Whether PyTorch's random numbers take part in training."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            before = torch.get_rng_state()
            try:
                self.forward(self.copy().train(), torch.from_numpy(np.zeros((2, *shape), dtype)))
            except Exception:  # it is raised again where a device meets it
                return True
            return not torch.equal(before, torch.get_rng_state())

    def output_of(self, shape: tuple[int, ...], dtype: Any) -> tuple[tuple[int, ...], Any]:
        """The shape of an example's output, and its type; a batch that the module cannot take is an InputError."""
        asked = (shape, str(np.dtype(dtype)))
        if asked not in self._outputs:
            x = torch.from_numpy(np.zeros((2, *shape), np.dtype(str(dtype))))
            with torch.no_grad():
                outputs = self.forward(self.copy().eval(), x)
            self._outputs[asked] = (tuple(outputs.shape[1:]), TYPES.get(outputs.dtype, self.dtype))
        return self._outputs[asked]

    # What JAX calls.

    def init(self, key: jax.Array) -> dict[str, Any]:
        """The first parameters for a key of JAX; with the buffers, of a module that has some."""
        self._check_type()
        if isinstance(key, jax.core.Tracer):  # somebody asks for shapes
            params = {name: jnp.zeros(shape, self.dtype) for name, shape in self.shapes.items()}
        else:
            params = {name: jnp.asarray(array) for name, array in self.initial(seed_of(key)).items()}
        return {"params": params, "statistics": self.first_buffers()} if self.buffers else params

    def first_buffers(self) -> dict[str, jax.Array]:
        """As the module is made; whole numbers as wide as JAX has them."""
        return {name: jnp.asarray(_narrow(a)) for name, a in sorted(weights.buffers(self.template).items())}

    def apply(self, params: Any, x: jax.Array, key: jax.Array | None = None) -> Any:
        """Outputs, in training mode if there is a key; then with the new buffers, of a module that has some."""
        seed = None if key is None else _bits(key)
        if not self.buffers:
            return _differentiable(self, params, {}, x, seed)[0]
        outputs, buffers = _differentiable(self, params["params"], params["statistics"], x, seed)
        return outputs if key is None else (outputs, buffers)

    def shape_of(self, x: Any) -> jax.ShapeDtypeStruct:
        """Of the outputs for a batch."""
        shape, dtype = self.output_of(x.shape[1:], x.dtype)
        return jax.ShapeDtypeStruct((x.shape[0], *shape), dtype)

    def outputs(self, params: Arrays, buffers: Arrays, x: Any, seed: Any) -> tuple[Array, dict[str, Array]]:
        """On the host: the module's outputs, and its buffers after them."""
        module = self._load(params, buffers, seed)
        with torch.no_grad():
            outputs = np.ascontiguousarray(self.forward(module, _tensor(x)).numpy())
        return outputs, {name: _narrow(weights.buffers(module)[name]) for name in buffers}

    def gradients(self, params: Arrays, buffers: Arrays, x: Any, seed: Any, cotangent: Any) -> dict[str, Array]:
        """On the host: the derivative of <outputs, cotangent> with respect to the parameters."""
        module = self._load(params, buffers, seed)
        trained = [p for p in dict(module.named_parameters()).values() if p.requires_grad]
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        outputs = self.forward(module, _tensor(x))
        found = torch.autograd.grad(outputs, trained, _tensor(cotangent), materialize_grads=True, allow_unused=True)
        return {name: np.ascontiguousarray(gradient.numpy()) for name, gradient in zip(names, found, strict=True)}

    def _load(self, params: Arrays, buffers: Arrays, seed: Any) -> nn.Module:
        """This thread's module, with these parameters."""
        if not hasattr(self._own, "module"):
            self._own.module = self.copy()
        module: nn.Module = self._own.module
        own = dict(module.named_parameters())
        for name, array in params.items():
            own[name].data = _tensor(array)
        load_buffers(module, buffers)
        module.train(seed is not None)
        if seed is not None:
            torch.default_generator.manual_seed(joined_seed(np.asarray(seed)))
        return module


def load_buffers(module: nn.Module, buffers: Arrays) -> None:
    """Put buffers into a module."""
    own = dict(module.named_buffers())
    for name, array in buffers.items():
        own[name].copy_(_tensor(array))


def _narrow(array: Array) -> Array:
    """Whole numbers as wide as JAX has them."""
    return np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))


def copied(module: nn.Module) -> nn.Module:
    """A deep copy; a module that has none is an InputError."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise InputError(
            f"module {type(module).__name__} cannot be copied ({first_line(error)}): "
            "give its class, or a function that makes one"
        ) from error


def seed_of(key: jax.Array) -> int:
    """PyTorch's seed for a key of JAX."""
    return joined_seed(np.asarray(_bits(key)))


def joined_seed(bits: Array) -> int:
    """A seed from the two words of a key."""
    first, second = (int(word) for word in bits.reshape(-1)[:2])
    return (first << 31 ^ second) & (2**63 - 1)


def _bits(key: jax.Array) -> jax.Array:
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key


def _tensor(array: Any) -> Tensor:
    """A tensor of its own: JAX's memory is not to be written to."""
    return torch.from_numpy(np.array(array))


def _differentiable(network: Network, params: Any, buffers: Any, x: jax.Array, seed: Any) -> tuple[jax.Array, Any]:
    """The module's outputs in JAX, and its buffers after them; outputs have a first derivative in the parameters."""
    kept = jax.tree.map(lambda b: jax.ShapeDtypeStruct(b.shape, b.dtype), buffers)

    # All that the derivative reads is an argument: within a loop it may not be taken from around.
    @jax.custom_vjp
    def outputs(params: Any, buffers: Any, x: Any, seed: Any) -> tuple[jax.Array, Any]:
        like = network.shape_of(x), kept
        return jax.pure_callback(called(network.outputs), like, params, buffers, x, seed, vmap_method="sequential")

    def forward(*given: Any) -> tuple[Any, Any]:
        return outputs(*given), given

    def backward(given: Any, cotangents: tuple[jax.Array, Any]) -> tuple[Any, None, None, None]:
        like = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), given[0])
        asked = called(network.gradients)
        return jax.pure_callback(asked, like, *given, cotangents[0], vmap_method="sequential"), None, None, None

    outputs.defvjp(forward, backward)
    return outputs(params, buffers, x, seed)
