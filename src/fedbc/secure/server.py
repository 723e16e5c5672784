"""The server's half of the protocol: it hands on what devices send one another, adds, and unmasks the sum.

It keeps public keys, encrypted shares and one running sum of masked vectors, never the vectors. What a device sends is
checked when it comes; what cannot be used is `Refused`, and the device is left out from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedbc.secure import graph, primitives
from fedbc.secure.device import check_entry, pair_mask
from fedbc.secure.session import (
    STAGES,
    Entry,
    Refused,
    Session,
    Stage,
    agreement,
    by_device,
    entry_from,
    entry_text,
    from_hex,
    read,
    roster_digest,
    write,
)


class TooFew(Refused):
    """Fewer devices are left than the minimum, or than the shares need: nothing is unmasked."""


class Gathering:
    """One attempt at one sum, stage by stage: `order`, then `take` for each answer, then `close`."""

    def __init__(self, session: Session, registered: Mapping[int, ec.EllipticCurvePublicKey]) -> None:
        self.session, self.registered = session, registered
        self.done = 0
        self.entries: dict[int, Entry] = {}
        """U1: who advertised keys"""
        self.shared: dict[int, dict[int, bytes]] = {}
        """U2: who shared its secrets, and what it sent to whom"""
        self.survivors: set[int] = set()
        """U3: who sent its masked vector"""
        self.agreed: dict[int, bytes] = {}
        """U4: who signed the list of survivors, and its signature"""
        self.revealed: dict[int, dict[int, bytes]] = {}
        """U5: who revealed shares, and whose"""
        self.total = np.zeros(session.length, np.uint64)
        self._roster, self._near = b"", dict[int, tuple[int, ...]]()

    @property
    def stage(self) -> Stage:
        """The stage whose answers are awaited."""
        return STAGES[self.done]

    @property
    def asked(self) -> list[int] | None:
        """Who is asked at this stage; None is whoever the server chooses."""
        if self.stage == Stage.KEYS:
            return None
        return sorted(((), self.entries, self.shared, self.survivors, self.agreed)[self.done])

    def order(self, device: int) -> bytes:
        """What a device is told at this stage."""
        if self.stage == Stage.KEYS:
            return write(None)
        if self.stage == Stage.SHARES:
            return write([entry_text(self.entries[number]) for number in sorted(self.entries)])
        if self.stage == Stage.AGREE:
            return write(sorted(self.survivors))
        if self.stage == Stage.UNMASK:
            return write({signer: signature.hex() for signer, signature in self.agreed.items()})
        return write({sender: sent[device].hex() for sender, sent in self.shared.items() if device in sent})

    def take(self, device: int, answer: bytes) -> None:
        """Take a device's answer."""
        if self.asked is not None and device not in self.asked:
            raise Refused(f"device {device} was not asked at stage {self.stage}")
        if device in self._answered:
            raise Refused(f"device {device} answered twice at stage {self.stage}")
        if self.stage == Stage.MASKED:
            if len(answer) != 8 * self.session.length:
                raise Refused(f"its masked vector has {len(answer)} bytes, not {8 * self.session.length}")
            self.total += np.frombuffer(answer, "<u8")
            self.survivors.add(device)
            return
        value = read(answer, self.stage)
        if self.stage == Stage.KEYS:
            entry = entry_from(value)
            if entry.device != device:
                raise Refused(f"its keys are those of device {entry.device}")
            check_entry(entry, self.session, self.registered)
            self.entries[device] = entry
        elif self.stage == Stage.SHARES:
            sent = by_device(value, "shares")
            wanted = set(self._near[device])
            if sent.keys() != wanted:
                raise Refused("its shares are not for its neighbours, one for each")
            if any(len(text) != 2 * primitives.SHARE_BYTES + 16 for text in sent.values()):
                raise Refused("its shares have other lengths than encrypted shares")
            self.shared[device] = sent
        elif self.stage == Stage.AGREE:
            signature = from_hex(value, "signature")
            text = agreement(self.session, self._roster, sorted(self.survivors))
            if not primitives.is_signed(self.registered[device], signature, text):
                raise Refused("it did not sign the survivors that it was told of")
            self.agreed[device] = signature
        else:
            shares = by_device(value, "revealed shares")
            if shares.keys() != {device, *self._senders_to(device)}:
                raise Refused("its revealed shares are not of its neighbourhood, one of each")
            if any(len(share) != primitives.SHARE_BYTES for share in shares.values()):
                raise Refused("its revealed shares have other lengths than shares")
            self.revealed[device] = shares

    def close(self) -> None:
        """Go on to the next stage; `TooFew` if too few devices are left for it."""
        have, least = len(self._answered), max(self.session.minimum, 2)
        if self.stage == Stage.AGREE:
            least = graph.two_thirds(len(self.entries))
        if self.stage == Stage.UNMASK:
            least = graph.threshold(len(self.entries))
        if have < least:
            raise TooFew(f"{have} devices are left after stage {self.stage}, at least {least} are needed")
        if self.stage == Stage.KEYS:
            self._roster = roster_digest(self.session, self.entries)
            self._near = graph.neighbours(sorted(self.entries), self._roster)
        self.done += 1

    def sum(self) -> np.ndarray:
        """The sum of the survivors' vectors, modulo 2^64; after the last stage."""
        if self.done != len(STAGES):
            raise Refused(f"the sum cannot be unmasked before stage {self.stage} is over")
        total, length = self.total.copy(), self.session.length
        for device in self.survivors:
            seed = self._secret(device, "seed")
            if primitives.committed(seed) != self.entries[device].commitment:
                raise Refused(f"the revealed shares of device {device}'s seed give another seed than it advertised")
            total -= primitives.keystream(primitives.seed_key(seed, self._roster), length)
        for gone in self.shared.keys() - self.survivors:
            masked = [device for device in self.survivors if gone in self._senders_to(device)]
            if not masked:
                continue
            secret = self._secret(gone, "key")
            if primitives.public_of(primitives.private_from(secret)) != self.entries[gone].masking:
                raise Refused(f"the revealed shares of device {gone}'s key give another key than it advertised")
            for device in masked:
                pair = pair_mask(secret, self.entries[device].masking, self._roster, gone, device, length)
                total = total - pair if device < gone else total + pair
        return total

    @property
    def _answered(self) -> Collection[int]:
        """Who answered at this stage."""
        return (self.entries, self.shared, self.survivors, self.agreed, self.revealed)[self.done]

    def _senders_to(self, device: int) -> set[int]:
        """Whose shares a device was handed."""
        return {sender for sender in self._near[device] if sender in self.shared}

    def _secret(self, of: int, what: str) -> bytes:
        """A secret from the shares of it that were revealed."""
        shares = [shares[of] for _, shares in sorted(self.revealed.items()) if of in shares]
        least = graph.threshold(len(self.entries))
        if len(shares) < least:
            raise TooFew(f"{len(shares)} shares of device {of}'s {what} were revealed, {least} are needed")
        secret = primitives.joined(shares[:least])
        if secret is None:
            raise Refused(f"the revealed shares of device {of}'s {what} are not different ones")
        return secret
