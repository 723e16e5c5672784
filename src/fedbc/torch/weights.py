"""Weights between PyTorch's `state_dict` and a flat dict of NumPy arrays, which travels and which FedBC computes on.

The names are PyTorch's own. Every number type keeps its own, floating or whole, but for bfloat16, which NumPy does not
have: it travels as float32, where each of its values has a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbc import storage
from fedbc.errors import InputError

Arrays = dict[str, np.ndarray]


def to_arrays(weights: nn.Module | Mapping[str, Tensor]) -> Arrays:
    """The weights of a module, or of its state_dict, as arrays of their own: later training does not change them."""
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    return {name: _array(name, tensor) for name, tensor in state.items()}


def to_state_dict(arrays: Any, like: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state_dict with the names, shapes, types and devices of `like` and the values of `arrays`.

    They may be nested, as a run folder gives them: `fedbc.load(folder).global_model`.
    Arrays that do not fit (a name too few or too many, another shape, a fraction for a whole number) are an
    InputError. A floating type may differ: float64 goes into a float32 module, rounded.
    """
    state = like.state_dict() if isinstance(like, nn.Module) else like
    flat = storage.named(arrays)
    _check_names(flat, state)
    return {name: _tensor(name, flat[name], tensor) for name, tensor in state.items()}


def load_arrays(module: nn.Module, arrays: Any) -> None:
    """Put arrays into a module: all of its state_dict, all its parameters, or all that are trained; the rest stays."""
    given, parameters = set(storage.named(arrays)), dict(module.named_parameters())
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    known = (part for part in (trained, parameters) if given == set(part))
    target = next(known, module.state_dict(keep_vars=True))
    fitting = to_state_dict(arrays, target)  # checks everything before anything is changed
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(fitting[name])


def parameters(module: nn.Module) -> Arrays:
    """The arrays of a module's trained parameters: without its buffers and what is frozen; shared ones once."""
    return to_arrays({name: p for name, p in module.named_parameters() if p.requires_grad})


def buffers(module: nn.Module) -> Arrays:
    """The arrays of the rest of its state_dict, such as the running statistics of a BatchNorm."""
    parameters = set(dict(module.named_parameters(remove_duplicate=False)))
    return to_arrays({name: tensor for name, tensor in module.state_dict().items() if name not in parameters})


def _array(name: str, tensor: Tensor) -> np.ndarray:
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name!r} of the state_dict is a {type(tensor).__name__}, not a tensor: it cannot travel")
    if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
        raise InputError(f"{name!r} of the state_dict is {tensor.dtype}, {tensor.layout}: only dense reals travel")
    host = tensor.detach().cpu()
    return np.array(host.float().numpy() if host.dtype == torch.bfloat16 else host.numpy())


def _check_names(arrays: Iterable[str], state: Iterable[str]) -> None:
    given, wanted = set(arrays), set(state)
    problems = []
    for what, names in (("lack", wanted - given), ("have, unknown to the module,", given - wanted)):
        if names:
            shown = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
            problems.append(f"{what} {shown}")
    if problems:
        raise InputError(f"the weights do not fit the module: they {'; they '.join(problems)}")


def _tensor(name: str, value: Any, like: Tensor) -> Tensor:
    array = np.asarray(value)
    if array.shape != tuple(like.shape):
        raise InputError(f"the weights do not fit the module: {name} has shape {array.shape}, not {tuple(like.shape)}")
    floating = np.issubdtype(array.dtype, np.floating)
    if array.dtype.kind not in "fiub" or floating != like.is_floating_point():
        raise InputError(f"the weights do not fit the module: {name} is {array.dtype}, the module has {like.dtype}")
    fitting = torch.tensor(array).to(like.dtype)
    if not floating and not np.array_equal(fitting.numpy(), array):
        raise InputError(f"the weights do not fit the module: {name} has numbers too large for {like.dtype}")
    return fitting.to(like.device)
