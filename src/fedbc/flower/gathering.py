"""The server's part in a secure sum: the stages of `fedbc.secure.Gathering`, each as orders out and answers in.

An attempt has a number that no attempt of the run had before, also not one that the server forgot when it was killed:
the number is on the disk before the first order leaves, and is at least the time in seconds. A server that was killed
between two stages begins the round anew; nothing of the old attempt can be used in the new one, since keys, signatures,
encryption and masks are bound to the number.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import Message

from fedbc import storage
from fedbc.flower import messages
from fedbc.flower.journal import Journal
from fedbc.flower.masking import session_of
from fedbc.flower.messages import Answer, Kind, MessageError
from fedbc.flower.packs import HEAD
from fedbc.flower.post import Post
from fedbc.flower.roster import registered_keys
from fedbc.flower.settings import Deployment
from fedbc.secure import STAGES, Gathering, Refused, Stage
from fedbc.secure.vectors import Layout

log = logging.getLogger("flwr.fedbc")
ATTEMPT = "attempt.json"
MOST_SHARES = 2**24
"""The most bytes of an answer other than a masked vector."""


class Summed(NamedTuple):
    """The sum of an attempt that succeeded."""

    vector: np.ndarray
    devices: list[int]
    """who is in it"""


def next_attempt(folder: Path) -> int:
    """A number that was never used before in the run of this folder; it is on the disk."""
    file, last = folder / ATTEMPT, 0
    if file.exists():
        last = int(json.loads(file.read_text())["attempt"])
    number = max(last + 1, int(time.time()))
    with storage.explained(file):
        folder.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(file, json.dumps({"attempt": number}))
    return number


class Asked(NamedTuple):
    """What is asked for, and of whom."""

    kind: Kind
    round: int
    devices: list[int]
    pack: bytes
    """the arrays to work from"""
    evaluate: str = ""


def gather(
    asked: Asked,
    layout: Layout,
    settings: Deployment,
    journal: Journal,
    post: Post,
    order_to: Callable[[int, bytes], Message],
    enter: Callable[[Stage, list[int]], None],
    check: Callable[[Answer, int], None],
    reject: Callable[[int, str], None],
) -> Summed | None:
    """Run one attempt among the devices that were drawn; None if too few are left, or their shares do not fit.

    order_to: the order to a device with these arrays. enter: is told each stage, and whom it asks. check: looks at the
    fields of a device's answer. reject: is told of a device whose answer cannot be used, and why.
    """
    attempt, device_of = next_attempt(journal.folder), dict[int, int]()
    session = session_of(journal.run, asked.round, asked.kind, attempt, layout, settings)
    sums = Gathering(session, registered_keys(Path(settings.keys).expanduser()))
    try:
        for stage in STAGES:
            devices, orders, whats = sums.asked if sums.asked is not None else asked.devices, [], {}
            for device in devices:
                order = order_to(device, asked.pack if stage == Stage.MASKED else b"")
                messages.change(order, stage=str(stage), attempt=attempt, secure=sums.order(device))
                node = order.metadata.dst_node_id
                device_of[node] = device
                whats[node] = f"{asked.kind}, round {asked.round}, stage {stage}, device {device}"
                orders.append(order)
            enter(stage, devices)
            most = HEAD + (8 * layout.length if stage == Stage.MASKED else MOST_SHARES)
            for reply in post.ask(orders, whats, settings.round_seconds, most):
                device = device_of.get(reply.metadata.src_node_id, -1)
                try:
                    received = messages.parts(reply)
                    check(messages.from_config(Answer, received.config), device)
                    if received.metrics:
                        raise MessageError("its answer has metrics beside its part of a secure sum")
                    sums.take(device, received.arrays)
                except (MessageError, Refused) as error:
                    reject(device, f"{error} (stage {stage})")
            sums.close()
        return Summed(sums.sum(), sorted(sums.survivors))
    except Refused as error:
        log.warning("round %d: a secure sum to %s failed: %s", asked.round, asked.kind, error)
        return None
