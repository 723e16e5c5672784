"""The package's four models as PyTorch modules, and their weights from one to the other in both directions.

The modules compute the same function (tested, outputs and gradients). Their parameters have the same names, with
`weight` and `bias` for `w` and `b`; dense and recurrent weights are transposed. So `to_torch` and `to_jax` also fit any
other module that names its layers alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbc import storage
from fedbc.errors import InputError
from fedbc.torch.weights import Arrays, to_arrays

__all__ = ["CNN", "LSTM", "MLP", "logistic", "to_jax", "to_torch"]


class MLP(nn.Module):
    """`fedbc.models.mlp`: dense, ReLU, dense."""

    def __init__(self, features: int = 784, hidden: int = 128, classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(features, hidden), nn.Linear(hidden, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of examples of any shape with `features` numbers."""
        return self.out(self.dropout(torch.relu(self.hidden(x.flatten(1)))))


class CNN(nn.Module):
    """`fedbc.models.cnn`: two convolutions with ReLU and pooling, three dense layers."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.dense1, self.dense2, self.out = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (n, 3, 32, 32), PyTorch's order of the axes; `fedbc.models.cnn` has the colours last."""
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.dense1(x.flatten(1)))
        return self.out(torch.relu(self.dense2(x)))


class LSTM(nn.Module):
    """`fedbc.models.lstm`: embedding, LSTM layers, the last state to one logit a character."""

    def __init__(self, alphabet: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, alphabet)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of whole-number codes (n, time)."""
        return self.out(self.lstm(self.embedding(x))[0][:, -1])


def logistic(features: int = 60, classes: int = 10) -> nn.Module:
    """`fedbc.models.logistic`: PyTorch's own `nn.Linear`."""
    return nn.Linear(features, classes)


def to_torch(params: Any) -> dict[str, Tensor]:
    """The state_dict of the PyTorch module that equals one of the package's models with these parameters."""
    state = {}
    for name, array in storage.named(params).items():
        recurrent = re.fullmatch(r"layers\.(\d+)\.([wb])_([ih]h)", name)
        if recurrent:
            layer, kind, gate = recurrent.groups()
            theirs = f"lstm.{'weight' if kind == 'w' else 'bias'}_{gate}_l{layer}"
        elif name == "embedding":
            theirs = "embedding.weight"
        elif name.split(".")[-1] in ("w", "b"):
            theirs = name[:-1] + ("weight" if name.endswith("w") else "bias")
        else:
            raise InputError(f"parameter {name} has no place in a PyTorch module: to_torch takes fedbc's own models")
        state[theirs] = torch.tensor(_turned(theirs, array))
    return state


def to_jax(weights: nn.Module | Mapping[str, Tensor]) -> Any:
    """The parameters of the package's model that equals this PyTorch module: the inverse of `to_torch`."""
    arrays: Arrays = {}
    for name, array in to_arrays(weights).items():
        recurrent = re.fullmatch(r"lstm\.(weight|bias)_([ih]h)_l(\d+)", name)
        if recurrent:
            kind, gate, layer = recurrent.groups()
            ours = f"layers.{layer}.{kind[0]}_{gate}"
        elif name == "embedding.weight":
            ours = "embedding"
        elif name.split(".")[-1] in ("weight", "bias"):
            *layer_names, kind = name.split(".")
            ours = ".".join([*layer_names, kind[0]])
        else:
            raise InputError(f"{name} has no place in fedbc's own models: to_jax takes modules that equal one of them")
        arrays["model." + ours] = _turned(name, array)
    return storage.nested(arrays, "model")


def _turned(name: str, array: np.ndarray) -> np.ndarray:
    """Dense and recurrent weights are transposed; embeddings, convolutions and biases are not."""
    return np.ascontiguousarray(array.T) if array.ndim == 2 and name != "embedding.weight" else array
