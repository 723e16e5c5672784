"""Networks that a user may bring, in Flax, and made-up data for them.

`workers/torch_models.py` has the same networks in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fedbc
from fedbc.data.federation import Federation
from fedbc.models.base import Model

CLASSES = 10
TOKENS, VOCABULARY = 64, 80


class Dense(nn.Module):
    """100-256-256-256-10 with ReLU."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(3):
            x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(CLASSES)(x)


class GRU(nn.Module):
    """A GRU of 128 over 60 steps of 16 numbers; the last state decides."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(CLASSES)(nn.RNN(nn.GRUCell(128, name="gru"))(x)[:, -1])


class Transformer(nn.Module):
    """4 layers of width 128 with 4 heads over 64 tokens; the mean decides."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        places = self.param("places", nn.initializers.normal(0.02), (TOKENS, 128))
        h = nn.Embed(VOCABULARY, 128, name="embedding")(x) + places
        for i in range(4):
            attention = nn.MultiHeadDotProductAttention(4, name=f"attention{i}")
            h = h + attention(nn.LayerNorm(epsilon=1e-5, name=f"norm{i}a")(h))
            inner = nn.Dense(512, name=f"inner{i}")(nn.LayerNorm(epsilon=1e-5, name=f"norm{i}b")(h))
            h = h + nn.Dense(128, name=f"outer{i}")(nn.gelu(inner, approximate=True))
        return nn.Dense(CLASSES, name="out")(nn.LayerNorm(epsilon=1e-5, name="norm")(h).mean(1))


class McMahan(nn.Module):
    """The CNN of McMahan et al. 2017: 32 and 64 filters 5x5 with pooling, dense 512."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for i, filters in enumerate((32, 64)):
            x = nn.relu(nn.Conv(filters, (5, 5), name=f"conv{i}")(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(512, name="dense")(x.transpose(0, 3, 1, 2).reshape(len(x), -1)))
        return nn.Dense(CLASSES, name="out")(x)


def _norm(name: str) -> nn.Module:
    return nn.GroupNorm(num_groups=8, epsilon=1e-5, name=name)


class ResNet(nn.Module):
    """ResNet-8 with GroupNorm: 16, 32 and 64 filters 3x3."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(_norm("norm")(nn.Conv(16, (3, 3), padding=1, use_bias=False, name="conv")(x)))
        for i, filters in enumerate((16, 32, 64)):
            stride = 1 if i == 0 else 2
            y = nn.Conv(filters, (3, 3), stride, padding=1, use_bias=False, name=f"conv{i}a")(x)
            y = nn.relu(_norm(f"norm{i}a")(y))
            y = _norm(f"norm{i}b")(nn.Conv(filters, (3, 3), padding=1, use_bias=False, name=f"conv{i}b")(y))
            if stride > 1:
                x = nn.Conv(filters, (1, 1), stride, padding=0, use_bias=False, name=f"short{i}")(x)
            x = nn.relu(x + y)
        return nn.Dense(CLASSES, name="out")(x.mean((1, 2)))


class Separable(nn.Module):
    """Depthwise-separable convolutions, as in MobileNet, with GroupNorm."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(_norm("norm")(nn.Conv(32, (3, 3), padding=1, use_bias=False, name="conv")(x)))
        for i, (filters, stride) in enumerate(((64, 1), (128, 2), (128, 1), (256, 2))):
            width = x.shape[-1]
            each = nn.Conv(width, (3, 3), stride, padding=1, feature_group_count=width, use_bias=False, name=f"each{i}")
            x = nn.relu(_norm(f"norm{i}a")(each(x)))
            x = nn.relu(_norm(f"norm{i}b")(nn.Conv(filters, (1, 1), padding=0, use_bias=False, name=f"all{i}")(x)))
        return nn.Dense(CLASSES, name="out")(x.mean((1, 2)))


IMAGE, SERIES, NUMBERS = (32, 32, 3), (60, 16), (100,)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (Dense, NUMBERS),
    "gru": (GRU, SERIES),
    "transformer": (Transformer, (TOKENS,)),
    "mcmahan": (McMahan, IMAGE),
    "resnet": (ResNet, IMAGE),
    "separable": (Separable, IMAGE),
}
"""The module, and the shape of an example."""


def network(name: str) -> Model:
    """The model as a user would bring it."""
    module, shape = NETWORKS[name]
    kind = jnp.int32 if name == "transformer" else jnp.float32
    return fedbc.models.from_flax(module(), jnp.zeros((1, *shape), kind))


def made_up(name: str, devices: int = 20, examples: int = 200, test: int = 20) -> Federation:
    """Random examples that can be learned: of each class around a mean of its own, or of tokens of its own."""
    draw = np.random.default_rng(0)
    shape = NETWORKS[name][1]
    means = draw.normal(size=(CLASSES, *shape)).astype(np.float32)

    def some(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = draw.integers(0, CLASSES, count).astype(np.int32)
        if name == "transformer":
            return ((8 * y[:, None] + draw.integers(0, 40, (count, *shape))) % VOCABULARY).astype(np.int32), y
        return (means[y] + draw.normal(size=(count, *shape))).astype(np.float32), y

    return fedbc.data.federation([some(examples) for _ in range(devices)], [some(test) for _ in range(devices)])


def named(model: Model) -> dict[str, np.ndarray]:
    """A fresh model's parameters by name, as PyTorch's side reads them."""
    from fedbc import storage

    return storage.named(jax.tree.map(np.asarray, model.init(jax.random.key(0))))
