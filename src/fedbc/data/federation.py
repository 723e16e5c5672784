"""A federation: a data set split over devices, as flat arrays with one offset table (no padding)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from fedbc.errors import InputError

Array = np.ndarray
Shared = Any


@dataclass(frozen=True)
class Split:
    """Examples of all devices, one device after the other: device i holds rows offsets[i] to offsets[i+1]."""

    x: Array
    y: Array
    offsets: Array

    @property
    def sizes(self) -> Array:
        """The number of examples of each device."""
        return np.diff(self.offsets)

    def of(self, device: int) -> tuple[Array, Array]:
        """The stored examples and labels of one device, as views."""
        rows = slice(self.offsets[device], self.offsets[device + 1])
        return self.x[rows], self.y[rows]


def as_stored(shared: Shared, x: jax.Array) -> jax.Array:
    """The default decoding: examples are stored as the model takes them."""
    del shared
    return x


@dataclass(frozen=True)
class Federation:
    """Training and test examples of many devices.

    `x` may be stored in a compact form (bytes of an image, the position of a window in a text):
    `decode(shared, x)` turns a batch of stored rows into what the model takes, inside the compiled step;
    `shared` holds arrays that all devices need for it. `augment(key, x)`, if given, is applied to the stored rows of
    training batches, before they are decoded. `classes` is the number of labels, None for regression. `ordered` says
    that each device's test examples are its last ones, as for texts, whose neighbouring examples overlap. `origin` is
    the federation that was pooled, if any: the global model's spread over devices is measured on its devices.
    """

    train: Split
    test: Split
    classes: int | None
    name: str = "custom"
    shared: Shared = ()
    decode: Callable[[Shared, jax.Array], jax.Array] = as_stored
    augment: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    ordered: bool = False
    origin: Federation | None = None

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.train.offsets) - 1

    def __repr__(self) -> str:
        n, m = len(self.train.y), len(self.test.y)
        return f"Federation({self.name}: {self.devices} devices, {n} training and {m} test examples)"


def pooled(federation: Federation) -> Federation:
    """All devices' data on one device: what a centralised run trains on, the other end of the scale from local-only."""

    def joined(split: Split) -> Split:
        return Split(split.x, split.y, np.asarray([0, len(split.y)]))

    return replace(
        federation,
        train=joined(federation.train),
        test=joined(federation.test),
        name=f"{federation.name}, pooled",
        origin=federation,
    )


Pair = tuple[Any, Any]


def federation(
    train: Sequence[Pair],
    test: Sequence[Pair],
    *,
    classes: int | None = None,
    name: str = "custom",
    **rest: Any,
) -> Federation:
    """A federation from your own arrays: `train` and `test` hold one pair (x, y) a device.

    Whole-number labels make a classification problem (`classes` defaults to the largest label + 1); labels of
    floating-point type make a regression problem. Floating-point data are kept as float32, or as float64 where
    JAX runs in 64 bits. Further arguments (`shared`, `decode`, `augment`) are those of `Federation`.
    """
    if len(train) == 0:
        raise InputError("train=[] is not accepted: give one pair (x, y) a device")
    if len(train) != len(test):
        raise InputError(
            f"train has {len(train)} devices but test has {len(test)}: give one pair (x, y) a device in both"
        )
    train_split = _join("train", train)
    test_split = _join("test", test)
    empty = np.flatnonzero(train_split.sizes == 0)
    if len(empty):
        raise InputError(f"train[{empty[0]}] has no examples: every device needs at least one training example")
    if train_split.x.shape[1:] != test_split.x.shape[1:]:
        raise InputError(
            f"train examples have shape {train_split.x.shape[1:]} but test examples {test_split.x.shape[1:]}: "
            "they must agree"
        )
    return from_splits(train_split, test_split, classes=classes, name=name, **rest)


def from_splits(
    train: Split, test: Split, *, classes: int | None = None, name: str = "custom", **rest: Any
) -> Federation:
    """A federation from flat splits, with the labels and values checked."""
    labels_are_classes = np.issubdtype(train.y.dtype, np.integer)
    if labels_are_classes:
        largest = max(int(s.y.max(initial=0)) for s in (train, test))
        if classes is None:
            classes = largest + 1
        for which, split in (("train", train), ("test", test)):
            _check_labels(which, split, classes)
        train, test = (Split(s.x, s.y.astype(np.int32), s.offsets) for s in (train, test))
    elif classes is not None:
        raise InputError(f"classes={classes} needs whole-number labels, but they are {train.y.dtype}")
    for which, split in (("train", train), ("test", test)):
        _check_finite(which, "x", split.x, split.offsets)
        _check_finite(which, "y", split.y, split.offsets)
    return Federation(train, test, classes, name, **rest)


def _join(which: str, pairs: Sequence[Pair]) -> Split:
    xs: list[Array] = []
    ys: list[Array] = []
    for i, pair in enumerate(pairs):
        try:
            x, y = pair
        except (TypeError, ValueError):
            raise InputError(f"{which}[{i}] is not a pair (x, y)") from None
        x, y = canonical(np.asarray(x)), canonical(np.asarray(y))
        if x.dtype == object or y.dtype == object:
            raise InputError(f"{which}[{i}] is not made of numbers: give arrays of one numeric type")
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise InputError(f"{which}[{i}] has arrays of unequal length: x has shape {x.shape}, y has shape {y.shape}")
        # An empty device takes the others' shape: np.empty((0,)) is what a filter that found nothing leaves behind.
        if len(x) and xs and len(xs[0]) and x.shape[1:] != xs[0].shape[1:]:
            raise InputError(
                f"{which}[{i}] has examples of shape {x.shape[1:]} but {which}[0] has {xs[0].shape[1:]}: "
                "all devices must agree"
            )
        xs.append(x)
        ys.append(y)
    filled = [i for i, x in enumerate(xs) if len(x)]
    if not filled:
        raise InputError(f"{which} has no examples on any device")
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in xs])]).astype(np.int64)
    return Split(np.concatenate([xs[i] for i in filled]), np.concatenate([ys[i] for i in filled]), offsets)


def canonical(a: Array) -> Array:
    """Floating-point arrays in the width JAX computes in; other types as they are."""
    if np.issubdtype(a.dtype, np.floating):
        return a.astype(np.float64 if jax.config.jax_enable_x64 else np.float32)  # type: ignore[attr-defined]
    return a


def _device_of(row: int, offsets: Array) -> int:
    return int(np.searchsorted(offsets, row, side="right") - 1)


def _check_labels(which: str, split: Split, classes: int) -> None:
    bad = np.flatnonzero((split.y < 0) | (split.y >= classes))
    if len(bad):
        device = _device_of(bad[0], split.offsets)
        raise InputError(
            f"{which}[{device}] has label {split.y[bad[0]]}: labels must be whole numbers from 0 to {classes - 1}"
        )


def _check_finite(which: str, what: str, a: Array, offsets: Array) -> None:
    if not np.issubdtype(a.dtype, np.floating):
        return
    finite = np.isfinite(a)
    if not finite.all():
        row = int(np.argwhere(~finite)[0][0])
        device = _device_of(row, offsets)
        raise InputError(
            f"{which}[{device}] has NaN or Inf in {what} (row {row - offsets[device]} of that device): "
            "all values must be finite"
        )
