"""What travels between server and device, and the checks that it passes before it is used.

A message holds one `ConfigRecord` named "fedbc": the fields of an `Order` or an `Answer` and, beside them, `arrays`,
`metrics` (numbers) and `metric_names`, where its kind has them. `arrays` are bytes in the format of safetensors: one
pack of all arrays, each under the name of its place in the algorithm's pytrees, as `fedbc.storage.named` writes it. A
pack beyond 16 MB goes on in records "more-1", "more-2", ... with `arrays` alone. Version 2:

| message | arrays | fields | metrics |
| --- | --- | --- | --- |
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
this package takes part by sending the same. Arrays that occur twice (z, as part of the broadcast) are in the pack once:
its metadata `same` tells, as JSON, which name stands for which other one.

Why bytes, and not Flower's `ArrayRecord`: every record and every array is an object of its own that is stored, pushed
and pulled one by one, at about 10 ms of the SuperLink's time each.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict

from fedbc import storage
from fedbc.flower.packs import Layout, MessageError, Spec, layout, limit, pack, unpack
from fedbc.simulation.shapes import Shapes

__all__ = [
    "Answer",
    "Kind",
    "Layout",
    "MessageError",
    "Order",
    "Parts",
    "Shapes",
    "Spec",
    "change",
    "content",
    "from_config",
    "from_metrics",
    "layout",
    "limit",
    "named_pack",
    "pack",
    "parts",
    "unpack",
]

VERSION = 2


class Kind(StrEnum):
    """The kinds of message, by Flower's names for them."""

    TRAIN = "train"
    EVALUATE = "evaluate"


RECORD = "fedbc"
MORE = re.compile(r"more-[1-9][0-9]{0,3}")
CHUNK = 16 * 2**20
"""The most bytes of arrays in one record: each is one request to the SuperLink."""
MOST_FIELDS = 64 * 1024
"""The most bytes of a record's fields besides its arrays."""
MOST_METRICS = 64
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Order:
    """What the server asks of a device; every message to a device holds one."""

    run: str
    """the run's name, unique to it: devices keep their state under it"""
    algorithm: str
    device: int
    """the device's number in the federation"""
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
    seconds: int
    """how long after it was sent the server waits for the answer; later it need not be worked on"""
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
    low = {name: value for name, value in values.items() if type(value) is int and value < 0}
    if low:
        raise MessageError(f"it is out of range in {low}")
    return record


def named_pack(**trees: Any) -> bytes:
    """A pack of pytrees, each under the name of its argument."""
    arrays: storage.Arrays = {}
    for prefix, tree in trees.items():
        arrays |= storage.named(tree, prefix)
    return pack(arrays)


def from_metrics(received: Mapping[str, Any], wanted: tuple[str, ...]) -> dict[str, float]:
    """Read exactly these numbers; NaN never passes, infinity (a tolerance may be) does."""
    if set(received) != set(wanted):
        odd = sorted(set(received) ^ set(wanted))
        raise MessageError(f"its metrics lack or have too much: {', '.join(odd)[:100]}")
    values = {}
    for name in wanted:
        value = received[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise MessageError(f"its {name} is {value!r:.60}, not a number")
        values[name] = float(value)
    return values


def content(
    record: Order | Answer, *, arrays: bytes | None = None, metrics: Mapping[str, Any] | None = None
) -> RecordDict:
    """A message's content; `arrays` is a pack."""
    fields: dict[str, Any] = dataclasses.asdict(record)
    if metrics:
        fields |= {"metric_names": list(metrics), "metrics": [float(value) for value in metrics.values()]}
    records = {RECORD: fields}
    if arrays is not None:
        first, *rest = [arrays[begin : begin + CHUNK] for begin in range(0, max(1, len(arrays)), CHUNK)]
        fields["arrays"] = first
        records |= {f"more-{number}": {"arrays": chunk} for number, chunk in enumerate(rest, 1)}
    return RecordDict({name: ConfigRecord(values) for name, values in records.items()})


class Parts(NamedTuple):
    """A message's parts; not yet checked."""

    config: Mapping[str, Any]
    arrays: bytes
    """the pack; empty if there is none"""
    metrics: Mapping[str, Any]


def parts(message: Message) -> Parts:
    """The parts of a message; what is not of their form is a MessageError."""
    records: dict[str, Any] = dict(message.content.items())
    if RECORD not in records or not all(name == RECORD or MORE.fullmatch(name) for name in records):
        raise MessageError(f"it holds the records {', '.join(sorted(records))[:100]}")
    if not all(isinstance(record, ConfigRecord) for record in records.values()):
        raise MessageError("its records are of other kinds than their names say")
    fields = dict(records.pop(RECORD))
    names, values = fields.pop("metric_names", []), fields.pop("metrics", [])
    if not isinstance(names, list) or not isinstance(values, list) or not len(names) == len(values) <= MOST_METRICS:
        raise MessageError(f"it has more than {MOST_METRICS} metrics, or none that are numbers")
    chunks = [fields.pop("arrays", b"")]
    for number in range(1, len(records) + 1):
        more = records.get(f"more-{number}")
        if more is None or set(more) != {"arrays"}:
            raise MessageError(f"it holds the records {', '.join(sorted(records))[:100]}")
        chunks.append(more["arrays"])
    if not all(isinstance(chunk, bytes) for chunk in chunks):
        raise MessageError("its arrays are not bytes")
    return Parts(fields, b"".join(chunks), dict(zip(map(str, names), values, strict=True)))


def change(message: Message, **fields: Any) -> None:
    """Change fields of a message in place, as a mod does."""
    record: Any = message.content[RECORD]
    for name, value in fields.items():
        record[name] = value
