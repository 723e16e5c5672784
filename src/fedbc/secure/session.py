"""What all who take part in one attempt at a sum agree on, and how the stages' messages are written.

Everything that is signed, encrypted or turned into a key is bound to the session's bytes: the run, the round, what the
sum is for, the attempt, the minimum and the layout. What belongs to another attempt does not verify, does not decrypt
and does not cancel.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from fedbc.errors import FedBCError


class Refused(FedBCError, ValueError):
    """A message of the protocol that cannot be used; it says why."""


class Stage(StrEnum):
    """The stages of an attempt, in order."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked"
    AGREE = "agree"
    UNMASK = "unmask"


STAGES = tuple(Stage)
"""All stages, in order."""
KEY_BYTES = 32
MOST_DEVICES = 100_000


@dataclass(frozen=True)
class Session:
    """One attempt at one sum."""

    run: str
    round: int
    phase: str
    """what is summed: "train" or "evaluate\""""
    attempt: int
    """grows from attempt to attempt of a run, whatever the round"""
    minimum: int
    """fewer survivors are never unmasked"""
    layout: str
    """a digest of the vector's layout, scales and ranges"""
    length: int
    """how many numbers the vector has"""

    @property
    def bytes(self) -> bytes:
        """The same for all who take part, and for nobody else."""
        return b"fedbc secure sum 2\n" + canonical(dataclasses.asdict(self))


class Entry(NamedTuple):
    """What a device advertises."""

    device: int
    encryption: bytes
    """the public key c^PK"""
    masking: bytes
    """the public key s^PK"""
    commitment: bytes
    """SHA-256 of the seed b, by which the server knows whether it put the right one together"""
    signature: bytes

    def signed(self, session: Session) -> bytes:
        """What the signature is of."""
        return session.bytes + canonical(_plain(self._replace(signature=b"")))


def canonical(value: Any) -> bytes:
    """One spelling of plain values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(*parts: bytes) -> bytes:
    """SHA-256 of parts, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def write(value: Any) -> bytes:
    """A message of plain values; bytes are written as hexadecimal text."""
    return canonical(value)


def read(data: bytes, stage: Stage) -> Any:
    """The values of a message."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):  # the latter of lists in lists in lists
        raise Refused(f"its {stage} cannot be read") from None


def entry_text(entry: Entry) -> dict[str, Any]:
    """An entry as plain values."""
    return _plain(entry)


def entry_from(value: Any) -> Entry:
    """An entry from plain values; anything else is refused."""
    if not isinstance(value, dict) or set(value) != set(Entry._fields):
        raise Refused("its keys are not an entry of device, two keys, commitment and signature")
    number = whole(value["device"], "device")
    fields = {name: from_hex(value[name], name) for name in Entry._fields[1:]}
    if any(len(fields[name]) != KEY_BYTES for name in ("encryption", "masking", "commitment")):
        raise Refused(f"its keys have other lengths than {KEY_BYTES} bytes")
    return Entry(number, **fields)


def roster_digest(session: Session, entries: Mapping[int, Entry]) -> bytes:
    """A digest of all that was advertised: all keys of the attempt come from it, and so does the graph."""
    return digest(session.bytes, *(canonical(_plain(entries[device])) for device in sorted(entries)))


def agreement(session: Session, roster: bytes, survivors: Sequence[int]) -> bytes:
    """What devices sign that were told who survived."""
    return session.bytes + canonical({"roster": roster.hex(), "survivors": list(survivors)})


def whole(value: Any, name: str) -> int:
    """A device's number, or a count."""
    if type(value) is not int or not 0 <= value < MOST_DEVICES:
        raise Refused(f"its {name} is {value!r:.60}, not a whole number")
    return value


def from_hex(value: Any, name: str) -> bytes:
    """Bytes that were written as text."""
    try:
        if isinstance(value, str) and len(value) <= 4096:
            return bytes.fromhex(value)
    except ValueError:
        pass
    raise Refused(f"its {name} is not hexadecimal text")


def by_device(value: Any, name: str) -> dict[int, bytes]:
    """Bytes by device, from plain values."""
    if not isinstance(value, dict) or not all(str(key).isdecimal() and len(str(key)) <= 6 for key in value):
        raise Refused(f"its {name} are not listed by device")
    return {int(key): from_hex(text, name) for key, text in value.items()}


def devices_from(value: Any, name: str) -> tuple[int, ...]:
    """A list of devices, in order and each once."""
    if not isinstance(value, list):
        raise Refused(f"its {name} are not a list of devices")
    found = tuple(whole(number, name) for number in value)
    if list(found) != sorted(set(found)):
        raise Refused(f"its {name} are not in order, each once")
    return found


def _plain(entry: Entry) -> dict[str, Any]:
    return {n: v.hex() if isinstance(v, bytes) else v for n, v in entry._asdict().items()}
