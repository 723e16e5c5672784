"""All arrays of a message as one pack of bytes, and the checks that a pack passes before it is used."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import deserialize
from safetensors.numpy import save as to_safetensors

from fedbc import storage
from fedbc.errors import FedBCError

__all__ = ["Layout", "MessageError", "Spec", "layout", "limit", "load", "pack", "unpack"]

HEAD = 4096
"""Bytes that a pack may take besides numbers and names."""
HEAD_OF_ARRAY = 256
"""Bytes that an array's entry in a pack's head may take besides its name."""
SAME = "same"
TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
"""What the format calls the types that arrays may have."""


class MessageError(FedBCError, ValueError):
    """A message that cannot be used; it says why."""


class Spec(NamedTuple):
    """Shape and type of one array."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """The size of its numbers."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


Layout = Mapping[str, Spec]
"""Names, shapes and types of a pack's arrays."""


def layout(shapes: Any, prefix: str) -> Layout:
    """The layout of a pytree; `shapes` holds arrays or what `jax.eval_shape` gives."""
    names = storage.named(jax.tree.map(lambda _: 0, shapes), prefix)
    leaves = jax.tree.leaves(shapes)
    return {n: Spec(tuple(a.shape), np.dtype(a.dtype).name) for n, a in zip(names, leaves, strict=True)}


def limit(wanted: Layout) -> int:
    """The most bytes that a pack of this layout may have."""
    return HEAD + sum(spec.bytes + HEAD_OF_ARRAY + 12 * len(name) for name, spec in wanted.items())


def pack(arrays: storage.Arrays) -> bytes:
    """Arrays by name as bytes; equal ones are in it once."""
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for name, array in arrays.items():
        key = (array.dtype.str, array.shape, array.tobytes())
        if (other := first.setdefault(key, name)) != name and array.size > 1:
            same[name] = other
    kept = {name: np.asarray(array, order="C") for name, array in arrays.items() if name not in same}
    return to_safetensors(kept, {SAME: json.dumps(same)} if same else None)


def unpack(data: bytes, wanted: Layout) -> storage.Arrays:
    """Read exactly the arrays of a layout; sizes, names, types and shapes are checked before they are used.

    Values must be finite. What does not fit is a MessageError.
    """
    most = limit(wanted)
    if len(data) > most:
        raise MessageError(f"its arrays take {len(data)} bytes where at most {most} are needed")
    try:
        found = {str(name): entry for name, entry in deserialize(data)}
        same = _same(data)
    except Exception as error:
        raise MessageError(f"its arrays cannot be read: {error!s:.200}") from None
    names = found.keys() | same.keys()
    missing, foreign = sorted(wanted.keys() - names), sorted(names - wanted.keys())
    if missing or foreign:
        which = f"lacks {missing[0]!r:.60}" if missing else f"has {foreign[0]!r:.60}, which was not asked for"
        raise MessageError(f"it {which}")
    return {name: _array(name, found.get(same.get(name, name)), spec) for name, spec in wanted.items()}


def load(data: bytes) -> storage.Arrays:
    """All arrays of a pack that this side made."""
    found = dict(deserialize(data))
    names = {name: name for name in found} | _same(data)
    specs = {name: Spec(tuple(e["shape"]), TYPES[e["dtype"]]) for name, e in found.items()}
    return {name: _array(name, found[other], specs[other]) for name, other in names.items()}


def _same(data: bytes) -> dict[str, str]:
    (size,) = struct.unpack("<Q", data[:8])
    if size > len(data) or b'"__metadata__"' not in data[8 : 8 + size]:
        return {}
    text = json.loads(data[8 : 8 + size])["__metadata__"].get(SAME, "{}")
    return {str(name): str(other) for name, other in json.loads(text).items()}


def _array(name: str, entry: Any, spec: Spec) -> np.ndarray:
    if entry is None:
        raise MessageError(f"its {name} stands for an array that is not there")
    shape, dtype = tuple(entry["shape"]), TYPES.get(entry["dtype"], str(entry["dtype"]))
    if (shape, dtype) != tuple(spec):
        raise MessageError(f"its {name} is {dtype:.40} of shape {shape!s:.60}, not {spec.dtype} of shape {spec.shape}")
    array = np.frombuffer(entry["data"], np.dtype(spec.dtype)).reshape(spec.shape)
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        raise MessageError(f"its {name} has values that are not finite")
    return array
