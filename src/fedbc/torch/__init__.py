"""PyTorch at the edges: weights in and out, the pull for any optimiser, and a FedBC device around an existing loop.

It needs PyTorch (`pip install "fedbc[torch]"`); nothing else in the package imports it.
"""

from fedbc.torch.local import LocalRound
from fedbc.torch.models import to_jax, to_torch
from fedbc.torch.proximal import ProximalSGD, Pull
from fedbc.torch.weights import buffers, load_arrays, parameters, to_arrays, to_state_dict

__all__ = [
    "LocalRound",
    "ProximalSGD",
    "Pull",
    "buffers",
    "load_arrays",
    "parameters",
    "to_arrays",
    "to_jax",
    "to_state_dict",
    "to_torch",
]
