"""The models of W1 to W4 in PyTorch, with the initial parameters that fedbc starts from."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from benchmarks.workers import torch_networks

Initial = dict[str, np.ndarray]


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.dense1, self.dense2, self.out = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.dense1(x.flatten(1)))
        return self.out(torch.relu(self.dense2(x)))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(784, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(80, 8), nn.LSTM(8, 256, 2, batch_first=True)
        self.out = nn.Linear(256, 80)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embedding(x))[0][:, -1])


MODELS = {"logistic": lambda: nn.Linear(60, 10), "mlp": MLP, "cnn": CNN, "lstm": LSTM}


def build(name: str, initial: Initial) -> nn.Module:
    """A model with fedbc's initial parameters."""
    own = name in torch_networks.NETWORKS
    model = torch_networks.NETWORKS[name]() if own else MODELS[name]()
    state = torch_networks.state(initial) if own else _state(initial)
    model.load_state_dict({ours: torch.tensor(value) for ours, value in state.items()})
    return model


def inputs(name: str, x: np.ndarray) -> torch.Tensor:
    """Examples as the PyTorch model takes them: images with the colours first, as PyTorch lays them out."""
    tensor = torch.from_numpy(x)
    return tensor.permute(0, 3, 1, 2).contiguous() if takes_images(name) else tensor


def takes_images(name: str) -> bool:
    """Whether a model's examples are images."""
    return name in ("cnn", *torch_networks.IMAGES)


def _state(initial: Initial) -> Initial:
    """fedbc's names and layouts to PyTorch's: dense weights are transposed, `layers.0.w_ih` is `lstm.weight_ih_l0`."""
    state = {}
    for name, value in initial.items():
        *parents, last = name.split(".")
        if name == "embedding":
            state["embedding.weight"] = value
        elif parents and parents[0] == "layers":
            kind, matrix = last.split("_")
            state[f"lstm.{'weight' if kind == 'w' else 'bias'}_{matrix}_l{parents[1]}"] = value.T
        else:
            key = {"w": "weight", "b": "bias"}[last]
            state[".".join([*parents, key])] = value.T if value.ndim == 2 else value
    return {name: np.ascontiguousarray(value) for name, value in state.items()}
