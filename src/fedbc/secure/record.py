"""What a device keeps of the attempt that it takes part in, and where."""

from __future__ import annotations

import contextlib
import dataclasses
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedbc import storage
from fedbc.errors import InputError
from fedbc.secure.session import STAGES, Entry, Session, Stage, entry_from, entry_text

FORMAT = "fedbc-secure-2"
SECRETS = ("encryption", "masking", "seed")


class Given(NamedTuple):
    """An answer that was given, and the digest of the order that it answers."""

    order: bytes
    answer: bytes


@dataclass
class Record:
    """One attempt, as one device sees it."""

    session: Session
    done: int = 0
    """how many stages were answered"""
    encryption: bytes = b""
    """the secret of c^SK"""
    masking: bytes = b""
    """the secret of s^SK"""
    seed: bytes = b""
    """b"""
    entries: dict[int, Entry] = field(default_factory=dict)
    """what all devices advertised"""
    shares: dict[int, bytes] = field(default_factory=dict)
    """by device: a share of its seed, and one of its s^SK"""
    survivors: tuple[int, ...] = ()
    """who is in the sum, as this device was told and signed"""
    answers: dict[Stage, Given] = field(default_factory=dict)

    def keep(self, stage: Stage, order: bytes, answer: bytes) -> None:
        """Note an answer before it is given."""
        self.answers[stage] = Given(order, answer)
        self.done = STAGES.index(stage) + 1


class Store(Protocol):
    """Where a device keeps its record."""

    def held(self) -> AbstractContextManager[None]:
        """A context that one order at a time is worked on in, whichever process got it; the others wait."""

    def load(self) -> Record | None:
        """The record; None if there is none."""

    def save(self, record: Record) -> None:
        """Replace the record, durably: what it held before is gone."""


@dataclass
class Memory:
    """A record in memory, for tests and measurements."""

    record: Record | None = None

    def held(self) -> AbstractContextManager[None]:
        """Nobody else has it."""
        return contextlib.nullcontext()

    def load(self) -> Record | None:
        """A copy."""
        return self.record and dataclasses.replace(
            self.record, shares=dict(self.record.shares), answers=dict(self.record.answers)
        )

    def save(self, record: Record) -> None:
        """Replace it."""
        self.record = record


@dataclass
class File:
    """A record in a file for its owner only; one that is damaged counts as none, and its attempt is over."""

    path: Path

    def held(self) -> AbstractContextManager[None]:
        """Kept to this process, as long as it lives."""
        return storage.hold(self.path, f"{self.path} is held by another process", seconds=storage.FOR_EVER)

    def load(self) -> Record | None:
        """The record, as it was before the device's process ended, whenever that was."""
        if not self.path.exists():
            return None
        try:
            arrays, facts = storage.read_arrays(self.path)
            return _from_plain(facts, arrays) if facts.get("format") == FORMAT else None
        except (InputError, KeyError, TypeError, ValueError):
            return None

    def save(self, record: Record) -> None:
        """Written beside the old one, to the disk, and put in its place."""
        arrays = {str(stage): np.frombuffer(given.answer, np.uint8) for stage, given in record.answers.items()}
        storage.write_arrays(self.path, arrays, _plain(record), private=True)


def _plain(record: Record) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "session": dataclasses.asdict(record.session),
        "done": record.done,
        **{name: getattr(record, name).hex() for name in SECRETS},
        "entries": [entry_text(entry) for entry in record.entries.values()],
        "shares": {str(of): pair.hex() for of, pair in record.shares.items()},
        "survivors": list(record.survivors),
        "orders": {str(stage): given.order.hex() for stage, given in record.answers.items()},
    }


def _from_plain(facts: dict[str, Any], arrays: storage.Arrays) -> Record:
    entries = [entry_from(value) for value in facts["entries"]]
    return Record(
        Session(**facts["session"]),
        facts["done"],
        entries={entry.device: entry for entry in entries},
        shares={int(of): bytes.fromhex(pair) for of, pair in facts["shares"].items()},
        survivors=tuple(facts["survivors"]),
        answers={Stage(s): Given(bytes.fromhex(order), arrays[s].tobytes()) for s, order in facts["orders"].items()},
        **{name: bytes.fromhex(facts[name]) for name in SECRETS},
    )
