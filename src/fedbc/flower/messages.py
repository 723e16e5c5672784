"""What travels between server and device, and the checks that it passes before it is used.

A message holds one `ArrayRecord` ("arrays"), one `ConfigRecord` ("config") and, in answers, one `MetricRecord`
("metrics"). Arrays go by the names of their places in the algorithm's pytrees, as `fedbc.storage.named` writes them.
Version 1:

| message | arrays | config | metrics |
| --- | --- | --- | --- |
| query | none | `Order` | |
| its answer | none | `Answer` | train_examples, test_examples |
| train | `broadcast.*` (what the algorithm's `broadcast` gives), `global.*` (z) | `Order` | |
| its answer | `summand.*` (what the algorithm's `finish` gives), nothing else | `Answer` | `finish`'s diagnostics |
| evaluate | `global.*` | `Order` | |
| its answer | none | `Answer` | sums of scores, see `fedbc.flower.scores` |

For FedBC and the model `logistic` (parameters w and b), an answer to "train" holds, all float32,

    summand.weighted.w (60, 10)   summand.weighted.b (10,)    lambda_i x_i
    summand.weight     ()                                     lambda_i
    summand.plain.w    (60, 10)   summand.plain.b    (10,)    x_i
    summand.devices    ()                                     1

`Shapes.of(algorithm, model)` lists names, shapes and types for any method and model. A device that is not written with
this package takes part by sending the same names. Arrays that occur twice (z, as part of the broadcast) cost nothing:
Flower sends equal contents once.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedbc import storage
from fedbc.algorithms.base import Algorithm
from fedbc.errors import FedBCError
from fedbc.models.base import Model
from fedbc.simulation.engine import no_context

__all__ = [
    "Answer",
    "MessageError",
    "Order",
    "Parts",
    "Shapes",
    "Spec",
    "content",
    "from_arrays",
    "from_config",
    "from_metrics",
    "layout",
    "parts",
    "to_arrays",
    "to_config",
    "to_metrics",
]

VERSION = 1
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
NPY_HEADER = 4096
"""Bytes that NumPy's own format may take besides the numbers; real headers have 128."""
MOST_METRICS = 64
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


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


def layout(shapes: Any, prefix: str) -> Layout:
    """Names, shapes and types of a pytree's arrays; `shapes` holds arrays or what `jax.eval_shape` gives."""
    names = storage.named(jax.tree.map(lambda _: 0, shapes), prefix)
    leaves = jax.tree.leaves(shapes)
    return {n: Spec(tuple(a.shape), np.dtype(a.dtype).name) for n, a in zip(names, leaves, strict=True)}


@dataclass(frozen=True)
class Shapes:
    """The shapes of everything that a method moves for a model, found without computing."""

    params: Any
    server: Any
    broadcast: Any
    device: Any
    summand: Any
    info: tuple[str, ...]
    """the names of a device's diagnostics"""

    @classmethod
    def of(cls, algorithm: Algorithm, model: Model) -> Shapes:
        """The shapes for an algorithm and a model."""
        params = jax.eval_shape(model.init, jax.random.key(0))
        server = jax.eval_shape(algorithm.init_server, params)
        broadcast = jax.eval_shape(algorithm.broadcast, server)
        device = jax.eval_shape(algorithm.init_device, params, no_context())

        def outcome(broadcast: Any, device: Any) -> tuple[Any, Any]:
            done = algorithm.finish(algorithm.begin(broadcast, device, no_context()))
            return done.summand, done.info

        summand, info = jax.eval_shape(outcome, broadcast, device)
        return cls(params, server, broadcast, device, summand, tuple(info))


@dataclass(frozen=True)
class Order:
    """What the server asks of a device; every message to a device holds one."""

    run: str
    """the run's name, unique to it: devices keep their state under it"""
    algorithm: str
    device: int
    """the device's number in the federation; -1 while the server does not know it"""
    devices: int
    """how many devices the federation has"""
    round: int
    """the round to train in, or that was just completed; 0 before the first"""
    accepted: int
    """the last round whose summand of this device the server took; 0 if none: the state of that round is the state"""
    seed: int
    epochs: int
    batch_size: int
    """0 is full-batch descent"""
    evaluate: str
    """what to measure, separated by commas, as in `fedbc.simulate`; "" in messages that ask for none"""
    version: int = VERSION


@dataclass(frozen=True)
class Answer:
    """What every answer says besides its arrays and metrics."""

    run: str
    round: int
    device: int
    examples: int
    """training examples, n_i"""
    anew: int
    """1 if the device should have had a state of this run but had none, and started anew"""
    version: int = VERSION


Record = TypeVar("Record", Order, Answer)


def to_config(record: Order | Answer) -> ConfigRecord:
    """As Flower sends it."""
    return ConfigRecord(dataclasses.asdict(record))


def from_config(kind: type[Record], config: Mapping[str, Any]) -> Record:
    """Read an `Order` or `Answer`; a field that is missing, of another type or out of range is a MessageError."""
    version = config.get("version")
    if version != VERSION:
        raise MessageError(f"it has version {version!r} of fedbc's messages, this side speaks {VERSION}")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        value, wanted = config.get(field.name), int if field.type == "int" else str
        if type(value) is not wanted:
            raise MessageError(f"its {field.name} is {value!r:.60}, not of type {wanted.__name__}")
        values[field.name] = value
    record = kind(**values)
    if not RUN_NAME.fullmatch(record.run):  # it names a folder on the device
        raise MessageError(f"its run {record.run!r:.60} is not a name of letters, digits, '.', '_' and '-'")
    low = {name: value for name, value in values.items() if type(value) is int and value < -(name == "device")}
    if low:
        raise MessageError(f"it is out of range in {low}")
    return record


def to_arrays(tree: Any, prefix: str) -> dict[str, Array]:
    """A pytree's arrays by name, as Flower sends them."""
    return {name: Array(np.asarray(a, order="C")) for name, a in storage.named(tree, prefix).items()}


def from_arrays(record: Mapping[str, Array], wanted: Layout) -> storage.Arrays:
    """Read exactly the arrays of a layout; names, types, shapes and sizes are checked before anything is unpacked.

    Values must be finite. What does not fit is a MessageError.
    """
    missing, foreign = sorted(wanted.keys() - record.keys()), sorted(record.keys() - wanted.keys())
    if missing or foreign:
        which = f"lacks {missing[0]!r:.60}" if missing else f"has {foreign[0]!r:.60}, which was not asked for"
        raise MessageError(f"it {which}")
    arrays = {}
    for name, spec in wanted.items():
        sent = record[name]
        if sent.dtype != spec.dtype or tuple(sent.shape) != spec.shape:
            raise MessageError(
                f"its {name} is {sent.dtype:.20} of shape {tuple(sent.shape)}, not {spec.dtype} of shape {spec.shape}"
            )
        if len(sent.data) > spec.bytes + NPY_HEADER:
            raise MessageError(f"its {name} has {len(sent.data)} bytes where {spec.bytes} are needed")
        try:
            array = sent.numpy()  # never unpickles
        except (ValueError, TypeError, OSError, EOFError) as error:
            raise MessageError(f"its {name} cannot be read: {error!s:.100}") from None
        # What the bytes hold need not be what the record said of them.
        if array.dtype.name != spec.dtype or array.shape != spec.shape:
            raise MessageError(f"its {name} holds {array.dtype.name} of shape {array.shape}, against what it says")
        if not np.isfinite(array).all():
            raise MessageError(f"its {name} has values that are not finite")
        arrays[name] = array
    return arrays


def to_metrics(values: Mapping[str, Any]) -> MetricRecord:
    """Scalars, as Flower sends them."""
    return MetricRecord({name: float(value) for name, value in values.items()})


def from_metrics(record: Mapping[str, Any], wanted: tuple[str, ...]) -> dict[str, float]:
    """Read exactly these numbers; NaN never passes, infinity (a tolerance may be) does."""
    if set(record) != set(wanted):
        odd = sorted(set(record) ^ set(wanted))
        raise MessageError(f"its metrics lack or have too much: {', '.join(odd)[:100]}")
    values = {}
    for name in wanted:
        value = record[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise MessageError(f"its {name} is {value!r:.60}, not a number")
        values[name] = float(value)
    return values


def content(
    record: Order | Answer, *, arrays: Mapping[str, Array] | None = None, metrics: Mapping[str, Any] | None = None
) -> RecordDict:
    """A message's content."""
    records: dict[str, Any] = {CONFIG: to_config(record)}
    if arrays is not None:
        records[ARRAYS] = ArrayRecord(dict(arrays))
    if metrics is not None:
        records[METRICS] = to_metrics(metrics)
    return RecordDict(records)


class Parts(NamedTuple):
    """A message's records, found by name; not yet checked."""

    config: Mapping[str, Any]
    arrays: Mapping[str, Array]
    metrics: Mapping[str, Any]


def parts(message: Message) -> Parts:
    """The records of a message; a missing or additional one is a MessageError."""
    found = message.content
    if not set(found) <= {CONFIG, ARRAYS, METRICS} or CONFIG not in found:
        raise MessageError(f"it holds the records {', '.join(sorted(found))[:100]}")
    config: Any = found[CONFIG]
    arrays: Any = found.get(ARRAYS, {})
    metrics: Any = found.get(METRICS, {})
    if not isinstance(config, ConfigRecord) or not isinstance(arrays, ArrayRecord | dict):
        raise MessageError("its records are of other kinds than their names say")
    if not isinstance(metrics, MetricRecord | dict) or len(metrics) > MOST_METRICS:
        raise MessageError(f"it has more than {MOST_METRICS} metrics, or none that are numbers")
    return Parts(config, arrays, metrics)
