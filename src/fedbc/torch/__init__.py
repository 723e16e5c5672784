"""PyTorch: modules in the simulator, weights in and out, the pull for any optimiser, a device around an existing loop.

It needs PyTorch (`pip install "fedbc[torch]"`); nothing else in the package imports it.
"""

try:
    import torch as _  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        'fedbc.torch needs PyTorch, which is not installed: pip install "fedbc[torch]"', name="torch"
    ) from _error

from fedbc.torch.local import LocalRound
from fedbc.torch.models import to_jax, to_torch
from fedbc.torch.optimizers import optimizer
from fedbc.torch.proximal import ProximalSGD, Pull
from fedbc.torch.simulated import model
from fedbc.torch.weights import buffers, load_arrays, parameters, to_arrays, to_state_dict

__all__ = [
    "LocalRound",
    "ProximalSGD",
    "Pull",
    "buffers",
    "load_arrays",
    "model",
    "optimizer",
    "parameters",
    "to_arrays",
    "to_jax",
    "to_state_dict",
    "to_torch",
]
