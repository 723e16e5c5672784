"""Sending orders to nodes and taking their answers as they come, until a deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

POLL_SECONDS = 0.25
"""Flower's own loop asks every 3 s."""
GRACE_SECONDS = 60
"""How much longer than the deadline the SuperLink keeps an order, so that a late answer is seen and told."""

log = logging.getLogger("flwr.fedbc")


class Sent(NamedTuple):
    """An order that is on its way."""

    node: int
    what: str
    """for people: the kind of order, its round and its device"""


class Post:
    """Orders out, answers in. An answer that comes after its deadline is reported and dropped."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.late: dict[str, Sent] = {}

    def ask(self, orders: Sequence[Message], whats: Mapping[int, str], seconds: float) -> Iterator[Message]:
        """Send orders, one a node; yields answers as they come, never two of one node, until all are in or time is up.

        Nodes that fail or do not answer in time are reported; `whats` says of each node's order what it is.
        """
        waiting: dict[str, Sent] = {}
        for order, message_id in zip(orders, self.grid.push_messages(orders), strict=True):
            node = order.metadata.dst_node_id
            if message_id is None:
                log.warning("%s could not be sent to node %d: left out", whats[node], node)
            else:
                waiting[message_id] = Sent(node, whats[node])
        deadline = time.monotonic() + seconds
        while waiting:
            for reply in self.grid.pull_messages([*waiting, *self.late]):
                answered = reply.metadata.reply_to_message_id
                if answered in self.late:
                    sent = self.late.pop(answered)
                    if not reply.has_error():
                        log.warning("%s: node %d answered too late, not used", sent.what, sent.node)
                elif answered not in waiting:
                    log.warning("node %d answered twice, or without being asked: not used", reply.metadata.src_node_id)
                elif reply.has_error():
                    sent = waiting.pop(answered)
                    log.warning("%s: node %d failed (%.300s), left out", sent.what, sent.node, reply.error.reason)
                else:
                    del waiting[answered]
                    yield reply
            if time.monotonic() > deadline:
                break
            if waiting:
                time.sleep(POLL_SECONDS)
        for sent in waiting.values():
            log.warning("%s: node %d did not answer within %g s, left out", sent.what, sent.node, seconds)
        self.late |= waiting
