"""The same networks in PyTorch, and the mapping between PyTorch's parameters and ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.dense1, self.dense2, self.out = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 3, 1, 2)
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.dense1(x.flatten(1)))
        return self.out(torch.relu(self.dense2(x)))


class LSTM(nn.Module):
    def __init__(self, alphabet: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, alphabet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embedding(x))[0][:, -1])


def logistic() -> nn.Module:
    return nn.Linear(60, 10)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def dense(prefix: str, params: Any) -> dict[str, Any]:
    return {f"{prefix}weight": params["w"].T, f"{prefix}bias": params["b"]}


def logistic_state(params: Any) -> dict[str, Any]:
    return dense("", params)


def mlp_state(params: Any) -> dict[str, Any]:
    return dense("0.", params["hidden"]) | dense("2.", params["out"])


def cnn_state(params: Any) -> dict[str, Any]:
    state = {}
    for name, layer in params.items():
        convolution = name.startswith("conv")
        state |= {f"{name}.weight": layer["w"], f"{name}.bias": layer["b"]} if convolution else dense(f"{name}.", layer)
    return state


def lstm_state(params: Any) -> dict[str, Any]:
    state = {"embedding.weight": params["embedding"]} | dense("out.", params["out"])
    for i, layer in enumerate(params["layers"]):
        state |= {f"lstm.weight_{k}_l{i}": layer[f"w_{k}"].T for k in ("ih", "hh")}
        state |= {f"lstm.bias_{k}_l{i}": layer[f"b_{k}"] for k in ("ih", "hh")}
    return state


def tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(np.asarray(value)) for name, value in state.items()}
