"""A federation: a data set split over devices, as flat arrays with one offset table (no padding)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedbc.data.meaning import Meaning
from fedbc.errors import InputError

if TYPE_CHECKING:
    from fedbc.data.encoding import Encoding

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
    `device_names` and `class_names` are shown instead of numbers, in tables, charts, pages and files, where they are
    given. `encoding` says how a table's columns became the numbers of `x`, so that new rows can be encoded alike.
    `owned` are the devices whose rows are here where machines share a run (`fedbc.machines`); None is all.
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
    device_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    encoding: Encoding | None = None
    owned: Array | None = None

    def __post_init__(self) -> None:
        for what, names, count in (
            ("device_names", self.device_names, self.devices),
            ("class_names", self.class_names, self.classes or 0),
        ):
            object.__setattr__(self, what, tuple(str(name) for name in names))
            if names and (len(names) != count or len(set(names)) != count):
                raise InputError(
                    f"{what} has {len(set(names))} different names, but there are {count}: give one for each"
                )

    @property
    def meaning(self) -> Meaning:
        """What its numbers stand for, for those who have the results but not the data."""
        return Meaning(self.device_names, self.class_names, self.encoding)

    @property
    def device_labels(self) -> list[Any]:
        """What each device is called: its name, or its number."""
        return list(self.device_names or range(self.devices))

    @property
    def class_labels(self) -> list[str]:
        """What each class is called: its name, or its number."""
        return list(self.class_names) or [str(c) for c in range(self.classes or 0)]

    def names_of(self, devices: Any) -> tuple[str, ...]:
        """The names of some devices; none where devices have none."""
        return tuple(self.device_names[d] for d in devices) if self.device_names else ()

    def device_said(self, device: int) -> str:
        """A device in a sentence."""
        return said(device, self.device_names)

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
        device_names=(),
    )


def said(device: int, names: Sequence[str]) -> str:
    """A device in a sentence: by its name, if it has one."""
    return f"device {names[device]!r}" if names else f"device {device}"


def subset(federation: Federation, devices: Sequence[int] | Array) -> Federation:
    """Some of a federation's devices, in the order given, with all of their examples."""
    if federation.owned is not None:
        raise InputError("devices cannot be picked where machines share a run: each has the rows of its own only")
    chosen = np.asarray(devices)
    if chosen.ndim != 1 or not len(chosen) or not np.issubdtype(chosen.dtype, np.integer):
        raise InputError(f"devices={devices!r} is not accepted: give a list of device numbers")
    outside = chosen[(chosen < 0) | (chosen >= federation.devices)]
    if len(outside) or len(np.unique(chosen)) < len(chosen):
        raise InputError(
            f"devices={chosen.tolist()} is not accepted: give different numbers from 0 to {federation.devices - 1}"
        )

    def some(split: Split) -> Split:
        parts = [np.arange(split.offsets[d], split.offsets[d + 1]) for d in chosen]
        rows = np.concatenate(parts)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(split.offsets.dtype)
        return Split(split.x[rows], split.y[rows], offsets)

    return replace(
        federation,
        train=some(federation.train),
        test=some(federation.test),
        name=f"{federation.name}, {len(chosen)} of its devices",
        device_names=federation.names_of(chosen),
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
    """A federation from your own arrays: `train` and `test` hold one pair (x, y) per device.

    Whole-number labels (or true and false) make a classification problem (`classes` defaults to the largest label + 1);
    labels of floating-point type make a regression problem. Floating-point data are kept as float32, or as float64
    where JAX runs in 64 bits. Further arguments (`device_names`, `class_names`, `shared`, `decode`,
    `augment`) are those of `Federation`.
    """
    if len(train) == 0:
        raise InputError("train=[] is not accepted: give one pair (x, y) per device")
    if len(train) != len(test):
        raise InputError(
            f"train has {len(train)} devices but test has {len(test)}: give one pair (x, y) per device in both"
        )
    train_split = _join("train", train)
    test_split = _join("test", test)
    empty = np.flatnonzero(train_split.sizes == 0)
    if len(empty):
        raise InputError(f"train[{empty[0]}] has no examples: every device needs at least one training example")
    for what, one, other in (
        ("examples", train_split.x.shape[1:], test_split.x.shape[1:]),
        ("labels", train_split.y.shape[1:], test_split.y.shape[1:]),
    ):
        if one != other:
            raise InputError(f"train {what} have shape {one} but test {what} {other}: they must agree")
    if train_split.y.dtype.kind != test_split.y.dtype.kind:
        raise InputError(
            f"train labels are {train_split.y.dtype} but test labels {test_split.y.dtype}: give whole "
            "numbers in both for classification, floating-point numbers in both for regression"
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
    alike: tuple[object, ...] | None = None
    for i, pair in enumerate(pairs):
        where = f"{which}[{i}]"
        try:
            x, y = pair
        except (TypeError, ValueError):
            raise InputError(f"{where} is not a pair (x, y)") from None
        x, y = numbers(f"the examples of {where}", x), as_labels(f"the labels of {where}", y)
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise InputError(f"{where} has arrays of unequal length: x has shape {x.shape}, y has shape {y.shape}")
        if len(x):  # an empty device takes the others' shape: np.empty((0,)) is what a filter that found nothing leaves
            kinds = x.shape[1:], y.shape[1:], _words(y)
            alike = alike or kinds
            for what, own, first in zip(("examples", "labels", "labels"), kinds, alike, strict=True):
                _check_alike(where, which, what, own, first)
        xs.append(x)
        ys.append(y)
    filled = [i for i, x in enumerate(xs) if len(x)]
    if not filled:
        raise InputError(f"{which} has no examples on any device")
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in xs])]).astype(np.int64)
    joined = canonical(np.concatenate([xs[i] for i in filled]))  # whole numbers beside others become others
    return Split(joined, np.concatenate([ys[i] for i in filled]), offsets)


def _check_alike(where: str, which: str, what: str, own: object, first: object) -> None:
    """All devices agree with the first one that has examples."""
    if own != first:
        raise InputError(
            f"{where} has {what} of {_kind(own)} but {which}[0] has {_kind(first)}: all devices must agree"
        )


def _kind(kind: object) -> str:
    return f"shape {kind}" if isinstance(kind, tuple) else f"{kind}"


def _words(labels: Array) -> str:
    return "floating-point type" if labels.dtype.kind == "f" else "whole numbers"


def numbers(what: str, values: Any) -> Array:
    """As an array that can be computed with; what is not real numbers, or too large for JAX, is an InputError."""
    try:
        given = np.asarray(values)
    except ValueError as error:  # rows of unequal length
        raise InputError(f"{what} cannot be made an array: {error}") from None
    if given.dtype.kind not in "biuf":
        found = {"c": "complex numbers", "U": "text", "S": "text", "M": "dates", "m": "times", "O": "objects"}
        raise InputError(
            f"{what} are {found.get(given.dtype.kind, given.dtype)}, not real numbers: give arrays of one numeric type"
        )
    if given.dtype.kind in "iu" and given.size:
        limits = np.iinfo(jax.dtypes.canonicalize_dtype(given.dtype))
        if given.min() < limits.min or given.max() > limits.max:
            raise InputError(
                f"{what} have whole numbers from {given.min()} to {given.max()}, which do not fit into {limits.dtype}: "
                "give smaller ones, or floating-point numbers"
            )
    with np.errstate(over="ignore"):
        kept = canonical(given)
    if given.dtype.kind == "f" and not np.array_equal(np.isfinite(kept), np.isfinite(given)):
        raise InputError(f"{what} have values beyond the range of {kept.dtype}: scale them")
    return kept


def as_labels(what: str, values: Any) -> Array:
    """Numbers; true and false are classes 1 and 0. Text is an InputError that says how to number it."""
    given = np.asarray(values)
    if given.dtype.kind in "US" or (given.dtype.kind == "O" and any(isinstance(v, str) for v in given.reshape(-1))):
        raise InputError(
            f"{what} are text: number the classes from 0, as np.unique(labels, return_inverse=True)[1] does, or give "
            "a table to fedbc.data.from_frame, which keeps their names"
        )
    found = numbers(what, given)
    return found.astype(np.int32) if found.dtype.kind == "b" else found


def canonical(a: Array) -> Array:
    """Floating-point arrays in the width JAX computes in; other types as they are."""
    if np.issubdtype(a.dtype, np.floating):
        return a.astype(np.float64 if jax.config.jax_enable_x64 else np.float32)  # type: ignore[attr-defined]
    return a


def _device_of(row: int, offsets: Array) -> int:
    return int(np.searchsorted(offsets, row, side="right") - 1)


def _check_labels(which: str, split: Split, classes: int) -> None:
    bad = np.argwhere((split.y < 0) | (split.y >= classes))
    if len(bad):
        device = _device_of(bad[0][0], split.offsets)
        raise InputError(
            f"{which}[{device}] has label {split.y[tuple(bad[0])]}: "
            f"labels must be whole numbers from 0 to {classes - 1}"
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
