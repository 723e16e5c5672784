"""The networks of `benchmarks.networks` in PyTorch, written for speed, with Flax's initial parameters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Initial = dict[str, np.ndarray]


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for i, inputs in enumerate((100, 256, 256)):
            self.add_module(f"Dense_{i}", nn.Linear(inputs, 256))
        self.Dense_3 = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.Dense_0, self.Dense_1, self.Dense_2):
            x = torch.relu(layer(x))
        return self.Dense_3(x)


class GRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.Dense_0 = nn.GRU(16, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.Dense_0(self.gru(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(x).view(n, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(64, 128))
        self.embedding = nn.Embedding(80, 128)
        for i in range(4):
            self.add_module(f"attention{i}", Attention())
            self.add_module(f"inner{i}", nn.Linear(128, 512))
            self.add_module(f"outer{i}", nn.Linear(512, 128))
            for part in "ab":
                self.add_module(f"norm{i}{part}", nn.LayerNorm(128))
        self.norm, self.out = nn.LayerNorm(128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x) + self.places
        for i in range(4):
            of = {name: self.get_submodule(f"{name}{i}") for name in ("attention", "inner", "outer")}
            h = h + of["attention"](self.get_submodule(f"norm{i}a")(h))
            inner = of["inner"](self.get_submodule(f"norm{i}b")(h))
            h = h + of["outer"](functional.gelu(inner, approximate="tanh"))
        return self.out(self.norm(h).mean(1))


class McMahan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(3, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.dense, self.out = nn.Linear(4096, 512), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv0(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        return self.out(torch.relu(self.dense(x.flatten(1))))


def _norm(width: int) -> nn.Module:
    return nn.GroupNorm(8, width)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 16, 3, padding=1, bias=False), _norm(16), nn.Linear(64, 10)
        for i, (inputs, outputs) in enumerate(((16, 16), (16, 32), (32, 64))):
            stride = 1 if i == 0 else 2
            self.add_module(f"conv{i}a", nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False))
            self.add_module(f"conv{i}b", nn.Conv2d(outputs, outputs, 3, padding=1, bias=False))
            for part in "ab":
                self.add_module(f"norm{i}{part}", _norm(outputs))
            if stride > 1:
                self.add_module(f"short{i}", nn.Conv2d(inputs, outputs, 1, stride, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        for i in range(3):
            of = {name: self.get_submodule(f"{name}") for name in (f"conv{i}a", f"norm{i}a", f"conv{i}b", f"norm{i}b")}
            y = x
            for name, layer in of.items():
                y = torch.relu(layer(y)) if name == f"norm{i}a" else layer(y)
            x = torch.relu((self.get_submodule(f"short{i}")(x) if i else x) + y)
        return self.out(x.mean((2, 3)))


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 32, 3, padding=1, bias=False), _norm(32), nn.Linear(256, 10)
        width = 32
        for i, (outputs, stride) in enumerate(((64, 1), (128, 2), (128, 1), (256, 2))):
            self.add_module(f"each{i}", nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False))
            self.add_module(f"norm{i}a", _norm(width))
            self.add_module(f"all{i}", nn.Conv2d(width, outputs, 1, bias=False))
            self.add_module(f"norm{i}b", _norm(outputs))
            width = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        for i in range(4):
            for layer, norm in ((f"each{i}", f"norm{i}a"), (f"all{i}", f"norm{i}b")):
                x = torch.relu(self.get_submodule(norm)(self.get_submodule(layer)(x)))
        return self.out(x.mean((2, 3)))


NETWORKS = {
    "dense": Dense,
    "gru": GRU,
    "transformer": Transformer,
    "mcmahan": McMahan,
    "resnet": ResNet,
    "separable": Separable,
}
IMAGES = ("mcmahan", "resnet", "separable")


def state(initial: Initial) -> Initial:
    """Flax's names and layouts to PyTorch's."""
    found = dict(_gru(initial))
    attention = {name.split(".")[0] for name in initial if name.startswith("attention")}
    for name in attention:
        parts = {part: initial[f"{name}.{part}.kernel"] for part in ("query", "key", "value")}
        found[f"{name}.qkv.weight"] = np.concatenate([w.reshape(w.shape[0], -1).T for w in parts.values()])
        found[f"{name}.qkv.bias"] = np.concatenate([initial[f"{name}.{part}.bias"].ravel() for part in parts])
        found[f"{name}.out.weight"] = initial[f"{name}.out.kernel"].reshape(-1, 128).T
        found[f"{name}.out.bias"] = initial[f"{name}.out.bias"]
    for name, value in initial.items():
        *parents, last = name.split(".")
        if parents[:1] == ["gru"] or (parents and parents[0] in attention):
            continue
        key = {"kernel": "weight", "scale": "weight", "embedding": "weight"}.get(last, last)
        layout = {2: (1, 0), 4: (3, 2, 0, 1)} if last == "kernel" else {}
        found[".".join([*parents, key])] = value.transpose(layout.get(value.ndim, range(value.ndim)))
    return {name: np.ascontiguousarray(value) for name, value in found.items()}


def _gru(initial: Initial) -> Iterator[tuple[str, np.ndarray]]:
    """Flax's cell has a layer for each gate; its reset and update gates have one bias where PyTorch has two."""
    cell = {name.partition(".")[2]: value for name, value in initial.items() if name.startswith("gru.")}
    if not cell:
        return
    none = np.zeros(128, np.float32)
    for side, kind in (("i", "ih"), ("h", "hh")):
        yield f"gru.weight_{kind}_l0", np.concatenate([cell[f"{side}{gate}.kernel"].T for gate in "rzn"])
        yield f"gru.bias_{kind}_l0", np.concatenate([cell.get(f"{side}{gate}.bias", none) for gate in "rzn"])
