"""A device's half of the protocol: one answer per stage, each given once.

What a device needs from stage to stage (its secrets, the others' keys, its answers) is a record that is kept durably
before the answer leaves, so that a process may be killed at any instant:

- one order at a time is worked on, whichever process got it. The same order again gets the same bytes; another order
  of a stage that was answered is refused. So a mask covers a single vector, a single list of survivors is signed, and
  of a neighbour's two secrets a share of one alone is ever revealed;
- an order of an older attempt is refused; the first order of a newer one replaces the record, and all its secrets;
- with the last answer the secrets are deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedbc.secure import graph, primitives
from fedbc.secure.record import Record, Store
from fedbc.secure.session import (
    STAGES,
    Entry,
    Refused,
    Session,
    Stage,
    agreement,
    by_device,
    devices_from,
    digest,
    entry_from,
    entry_text,
    read,
    roster_digest,
    write,
)

LEAST = 2
"""The sum of a single device would be its vector."""


@dataclass
class Participant:
    """One device."""

    number: int
    signing: ec.EllipticCurvePrivateKey
    registered: Mapping[int, ec.EllipticCurvePublicKey]
    """every device's public key, from a list that does not come from the server"""
    store: Store
    random: Callable[[int], bytes] = field(default=os.urandom)

    def answer(self, stage: Stage, session: Session, order: bytes, vector: Callable[[], np.ndarray]) -> bytes:
        """The answer to an order; `vector` gives what is to be summed, and is called once, at the stage masked."""
        with self.store.held():
            return self._answer(stage, session, order, vector)

    def _answer(self, stage: Stage, session: Session, order: bytes, vector: Callable[[], np.ndarray]) -> bytes:
        record = self.store.load()
        if record is not None and session.attempt < record.session.attempt:
            raise Refused(f"an order of attempt {session.attempt} came after one of attempt {record.session.attempt}")
        if record is None or session.attempt > record.session.attempt:
            if stage != Stage.KEYS:
                raise Refused(f"an order of stage {stage} came without the stages before it in its attempt")
            if session.minimum < LEAST:
                raise Refused(f"a sum of {session.minimum} devices may be asked for: the least is {LEAST}")
            record = Record(session)
        if session != record.session:
            raise Refused(f"an order of attempt {session.attempt} is for another round, purpose or layout than before")
        known = record.answers.get(stage)
        if known is not None:
            if known.order != digest(order):
                raise Refused(f"another order of stage {stage} came in the same attempt")
            return known.answer
        if record.done == len(STAGES):
            raise Refused(f"an order of stage {stage} came after attempt {session.attempt} was over")
        if stage != STAGES[record.done]:
            raise Refused(f"an order of stage {stage} came out of order: the next one is {STAGES[record.done]}")
        answer = self._work(stage, record, order, vector)
        if stage == Stage.UNMASK:  # nothing but the answer is left
            record = Record(session, done=record.done)
        record.keep(stage, digest(order), answer)
        self.store.save(record)
        return answer

    def _work(self, stage: Stage, record: Record, order: bytes, vector: Callable[[], np.ndarray]) -> bytes:
        if stage == Stage.KEYS:
            return self._keys(record)
        value = read(order, stage)
        if stage == Stage.SHARES:
            return self._shares(record, value)
        if stage == Stage.MASKED:
            return self._masked(record, value, vector)
        return self._agree(record, value) if stage == Stage.AGREE else self._unmask(record, value)

    def _keys(self, record: Record) -> bytes:
        """AdvertiseKeys."""
        record.encryption, record.masking, record.seed = (self.random(primitives.SECRET_BYTES) for _ in range(3))
        secrets = (record.encryption, record.masking)
        c, s = (primitives.public_of(primitives.private_from(secret)) for secret in secrets)
        entry = Entry(self.number, c, s, primitives.committed(record.seed), b"")
        signature = primitives.signed(self.signing, entry.signed(record.session))
        record.entries = {self.number: entry._replace(signature=signature)}
        return write(entry_text(record.entries[self.number]))

    def _shares(self, record: Record, order: Any) -> bytes:
        """ShareKeys: after all signatures are checked."""
        if not isinstance(order, list):
            raise Refused("its keys are not a list")
        listed = [entry_from(value) for value in order]
        entries = {entry.device: entry for entry in listed}
        if len(entries) != len(listed):
            raise Refused("its keys name a device twice")
        if len(entries) < record.session.minimum:
            raise Refused(f"it lists {len(entries)} devices, fewer than the minimum of {record.session.minimum}")
        if entries.get(self.number) != record.entries[self.number]:
            raise Refused("it lists other keys for this device than it sent")
        for entry in listed:
            check_entry(entry, record.session, self.registered)
        if len({key for entry in listed for key in (entry.encryption, entry.masking)}) < 2 * len(listed):
            raise Refused("two of its keys are the same")
        record.entries = entries
        roster, near = self._around(record)
        holders, least = (self.number, *near), graph.threshold(len(entries))
        seeds = primitives.split(record.seed, least, len(holders))
        secrets = primitives.split(record.masking, least, len(holders))
        pairs = {to: seed + secret for to, seed, secret in zip(holders, seeds, secrets, strict=True)}
        record.shares = {self.number: pairs.pop(self.number)}
        sent = {}
        for to, text in pairs.items():
            key, about = self._channel(record, roster, self.number, to)
            sent[to] = primitives.encrypted(key, text, about).hex()
        return write(sent)

    def _masked(self, record: Record, order: Any, vector: Callable[[], np.ndarray]) -> bytes:
        """MaskedInputCollection: y = x + PRG(b) + Σ ± PRG(s_uv)."""
        roster, near = self._around(record)
        received = by_device(order, "shares")
        foreign = sorted(received.keys() - set(near))
        if foreign:
            raise Refused(f"it brings shares of device {foreign[0]}, which is no neighbour")
        least = max(graph.threshold(len(record.entries)) - 1, 1)
        if len(received) < least:
            raise Refused(f"it brings shares of {len(received)} neighbours, at least {least} are needed")
        for sender, text in received.items():
            key, about = self._channel(record, roster, sender, self.number)
            try:
                record.shares[sender] = primitives.decrypted(key, text, about)
            except Refused as error:
                raise Refused(f"the share that device {sender} sent: {error}") from None
            if len(record.shares[sender]) != 2 * primitives.SHARE_BYTES:
                raise Refused(f"the share that device {sender} sent is not a pair of shares")
        values, length = np.asarray(vector()), record.session.length
        if values.dtype != np.uint64 or values.shape != (length,):
            raise ValueError(f"the vector is {values.dtype} of shape {values.shape}, not uint64 of ({length},)")
        masked = values + primitives.keystream(primitives.seed_key(record.seed, roster), length)
        for other in received:
            pair = pair_mask(record.masking, record.entries[other].masking, roster, self.number, other, length)
            masked = masked + pair if self.number < other else masked - pair
        return masked.astype("<u8").tobytes()

    def _agree(self, record: Record, order: Any) -> bytes:
        """ConsistencyCheck: signs who is said to have survived."""
        survivors, least = devices_from(order, "survivors"), graph.threshold(len(record.entries))
        if self.number not in survivors:
            raise Refused("this device is asked to unmask a sum that it is not in")
        if set(survivors) - record.entries.keys():
            raise Refused("its survivors were not all there at the beginning")
        if len(survivors) < record.session.minimum:
            raise Refused(f"it has {len(survivors)} survivors, fewer than the minimum of {record.session.minimum}")
        roster, near = self._around(record)
        unknown = (set(survivors) & set(near)) - record.shares.keys()
        if unknown:
            raise Refused(f"device {min(unknown)} is said to have survived, and sent no shares")
        if len(set(survivors) & record.shares.keys()) < least:
            raise Refused(f"fewer than {least} of this device's neighbourhood survived")
        if not graph.is_connected(survivors, graph.neighbours(sorted(record.entries), roster)):
            raise Refused("its survivors fall into parts that share no mask: each part's sum would be seen")
        record.survivors = survivors
        return write(primitives.signed(self.signing, agreement(record.session, roster, survivors)).hex())

    def _unmask(self, record: Record, order: Any) -> bytes:
        """Unmasking: of each neighbour a share of the seed, if it survived, or of the secret key, if it dropped out.

        Not before two thirds of all devices signed the same list of survivors: two lists would each need a third that
        signs both.
        """
        signatures, least = by_device(order, "signatures"), graph.two_thirds(len(record.entries))
        foreign = sorted(signatures.keys() - set(record.survivors))
        if foreign:
            raise Refused(f"it brings a signature of device {foreign[0]}, which is no survivor")
        if len(signatures) < least:
            raise Refused(f"{len(signatures)} devices signed who survived, at least {least} are needed")
        text = agreement(record.session, self._around(record)[0], record.survivors)
        for device, signature in signatures.items():
            key = self.registered.get(device)
            if key is None or not primitives.is_signed(key, signature, text):
                raise Refused(f"device {device} did not sign the survivors that this device was told of")
        survivors = set(record.survivors)
        cut = primitives.SHARE_BYTES
        revealed = {of: pair[:cut] if of in survivors else pair[cut:] for of, pair in record.shares.items()}
        return write({of: share.hex() for of, share in revealed.items()})

    def _around(self, record: Record) -> tuple[bytes, tuple[int, ...]]:
        """The digest of all keys, and this device's neighbours."""
        roster = roster_digest(record.session, record.entries)
        return roster, graph.neighbours(sorted(record.entries), roster)[self.number]

    def _channel(self, record: Record, roster: bytes, sender: int, to: int) -> tuple[bytes, bytes]:
        """The key of what one device sends another through the server, and what the text is about."""
        other = record.entries[to if sender == self.number else sender]
        way, private = f"shares {sender} {to}", primitives.private_from(record.encryption)
        key = primitives.agreed(private, other.encryption, roster, way)
        return key, digest(record.session.bytes, roster, way.encode())


def check_entry(entry: Entry, session: Session, registered: Mapping[int, ec.EllipticCurvePublicKey]) -> None:
    """A device's keys are signed with its registered key, for this attempt."""
    key = registered.get(entry.device)
    if key is None:
        raise Refused(f"device {entry.device} is not in the list of registered devices")
    if not primitives.is_signed(key, entry.signature, entry.signed(session)):
        raise Refused(f"the keys of device {entry.device} are not signed with its registered key for this attempt")


def pair_mask(secret: bytes, public: bytes, roster: bytes, one: int, other: int, length: int) -> np.ndarray:
    """The mask that two devices share; the one with the lower number adds it, the other one subtracts it."""
    low, high = sorted((one, other))
    key = primitives.agreed(primitives.private_from(secret), public, roster, f"mask {low} {high}")
    return primitives.keystream(key, length)
