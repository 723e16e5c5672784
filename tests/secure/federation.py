"""Devices and a server in memory, for tests of the protocol."""

import hashlib

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedbc.secure import STAGES, Gathering, Participant, Refused, Session, Stage
from fedbc.secure.record import Memory

LENGTH = 5


def seeded(*name):
    """A source of bytes that gives the same ones in every test run."""
    count = [0]

    def give(size):
        count[0] += 1
        text = repr((name, count[0])).encode()
        return hashlib.shake_256(text).digest(size)

    return give


class Federation:
    def __init__(self, devices, *, length=LENGTH, minimum=2, seed=0, store=lambda device: Memory()):
        rng = np.random.default_rng(seed)
        self.signing = {d: ec.derive_private_key(1000 + d, ec.SECP256R1()) for d in range(devices)}
        self.registered = {d: key.public_key() for d, key in self.signing.items()}
        self.devices = {
            d: Participant(d, key, self.registered, store(d), seeded(seed, d)) for d, key in self.signing.items()
        }
        self.vectors = rng.integers(0, 2**64, (devices, length), np.uint64)
        self.length, self.minimum = length, minimum
        self.seen = []
        """all that the server received: (stage, device, bytes)"""

    def session(self, attempt=1, **other):
        fields = {"run": "r", "round": 1, "phase": "train", "minimum": self.minimum, "layout": "l"}
        return Session(**(fields | {"attempt": attempt, "length": self.length} | other))

    def gathering(self, attempt=1, **other):
        return Gathering(self.session(attempt, **other), self.registered)

    def tell(self, gathering, device, stage=None, session=None):
        stage = stage or gathering.stage
        order = gathering.order(device)
        return self.devices[device].answer(stage, session or gathering.session, order, lambda: self.vectors[device])

    def advance(self, gathering, gone=()):
        """One stage, without those that are gone."""
        stage = gathering.stage
        for device in gathering.asked if gathering.asked is not None else sorted(self.devices):
            if device not in gone:
                answer = self.tell(gathering, device)
                self.seen.append((stage, device, answer))
                gathering.take(device, answer)
        gathering.close()

    def until(self, stage, attempt=1, gone=()):
        """A gathering that awaits the answers of a stage."""
        gathering = self.gathering(attempt)
        while gathering.stage != stage:
            self.advance(gathering, gone)
        return gathering

    def sum(self, gone_at=None, attempt=1):
        """The sum; `gone_at` gives the stage at which a device falls silent."""
        gathering, gone = self.gathering(attempt), set()
        for stage in STAGES:
            gone |= {device for device, when in (gone_at or {}).items() if when == stage}
            self.advance(gathering, gone)
        return gathering.sum()

    def plain(self, devices):
        return self.vectors[sorted(devices)].sum(axis=0, dtype=np.uint64)


__all__ = ["LENGTH", "STAGES", "Federation", "Refused", "Stage", "seeded"]
