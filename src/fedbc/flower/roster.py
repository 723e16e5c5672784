"""Which node is which device, and who trains in a round.

Flower's node ids are random; what is drawn goes by device number. A device is who holds its key: the server's folder
of public keys (`device-0.pub`, `device-1.pub`, ..., as `fedbc deploy keys` writes them) says which number is whose, and
the SuperLink says which node showed which key. Nobody has to be asked, and nobody can claim to be another device.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedbc.errors import InputError
from fedbc.flower.settings import Deployment
from fedbc.simulation.schedule import SAMPLE, generator, sample_devices

NAME = re.compile(r"device-(0|[1-9][0-9]*)\.pub")
log = logging.getLogger("flwr.fedbc")


def public_keys(folder: Path) -> dict[bytes, int]:
    """The devices' public keys, as Flower writes them, and whose they are."""
    keys: dict[bytes, int] = {}
    for file in sorted(folder.glob("device-*.pub")):
        found = NAME.fullmatch(file.name)
        if found is None:
            continue
        key, number = read_public_key(file), int(found.group(1))
        if (other := keys.setdefault(key, number)) != number:
            raise InputError(f"{file} is the key of device {other}, too: each device needs a key of its own")
    if not keys:
        raise InputError(
            f"{folder.resolve()} has no public keys (device-0.pub, ...), which tell the server who is who: "
            "make them with 'fedbc deploy keys', or set run.keys to the folder that has them"
        )
    return keys


def registered_keys(folder: Path) -> dict[int, ec.EllipticCurvePublicKey]:
    """The public keys of a folder by device, for checking signatures."""
    public_keys(folder)  # the same checks
    found = ((NAME.fullmatch(file.name), file) for file in sorted(folder.glob("device-*.pub")))
    return {int(name.group(1)): load_key(file) for name, file in found if name}


def read_public_key(file: Path) -> bytes:
    """A device's public key, as Flower writes it; another file is an InputError."""
    return public_key_to_bytes(load_key(file))


def load_key(file: Path) -> ec.EllipticCurvePublicKey:
    """A device's public key; another file is an InputError."""
    try:
        key = load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is not a public key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(f"{file} is not an elliptic-curve key, as Flower needs it")
    return key


@dataclass
class Roster:
    """The devices that are there; `devices` is how many the federation has, `folder` holds their public keys."""

    devices: int
    folder: Path
    holders: dict[int, int] = field(default_factory=dict)
    """device to node"""
    _keys: dict[bytes, int] = field(default_factory=dict)
    _strangers: set[int] = field(default_factory=set)

    def refresh(self, nodes: Mapping[int, bytes]) -> dict[int, int]:
        """Device to node, of the nodes that are there; what changed is logged."""
        if any(key not in self._keys for node, key in nodes.items() if node not in self._strangers):
            self._keys = public_keys(self.folder)  # keys may be added, and replaced, while a run goes on
        holders: dict[int, int] = {}
        for node, key in nodes.items():
            device = self._keys.get(key)
            if device is not None and device < self.devices:
                holders[device] = node
            elif node not in self._strangers:
                self._strangers.add(node)
                known = f"is device {device}, the run has 0 to {self.devices - 1}"
                who = f"has a key that is not in {self.folder}" if device is None else known
                log.warning("node %d %s: not used", node, who)
        for device in sorted(self.holders.keys() | holders.keys()):
            before, now = self.holders.get(device), holders.get(device)
            if now is None:
                log.warning("device %d has gone (node %d)", device, before)
            elif now != before:
                log.info("device %d is there (node %d)", device, now)
        self.holders = dict(sorted(holders.items()))
        return self.holders


def draw(settings: Deployment, number: int, here: Mapping[int, int]) -> list[int]:
    """The devices of a round: those that the simulator draws; for those that are away, others that are there."""
    drawn = sample_devices(settings.seed, number, settings.devices, settings.sample or None).tolist()
    chosen = [device for device in drawn if device in here]
    others = sorted(here.keys() - set(drawn))
    missing = min(len(drawn) - len(chosen), len(others))
    if missing:
        chosen += generator(settings.seed, SAMPLE, number, 1).choice(others, missing, replace=False).tolist()
    return sorted(chosen)
