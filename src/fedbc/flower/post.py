"""Sending orders to nodes and taking their answers as they come, until a deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

POLL_SECONDS = 0.25
"""Flower's own loop asks every 3 s."""
GRACE_SECONDS = 60
"""How much longer than the deadline the SuperLink keeps an order, so that a late answer is seen and told."""
SENDINGS = 3
"""How often an order is sent at most, if the SuperLink is killed while it takes it."""

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
        for order, message_id in zip(orders, self._send(orders), strict=True):
            node = order.metadata.dst_node_id
            if not message_id:
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

    def _send(self, orders: Sequence[Message]) -> list[str]:
        """Push orders; gives their ids, empty for those that could not be sent.

        A SuperLink that is killed in the middle and comes back neither takes the rest of an order nor the same order
        again, though it may have all of it. So a copy is sent, with an id of its own: a device that gets both does the
        same work twice, from the same state, and the answer to the first is not asked for.
        """
        ids, sent = [""] * len(orders), list(orders)
        for sendings_left in reversed(range(SENDINGS)):
            places = [place for place, message_id in enumerate(ids) if not message_id]
            if not places:
                break
            try:
                pushed = list(self.grid.push_messages([sent[place] for place in places]))
                for place, message_id in zip(places, pushed, strict=True):
                    ids[place] = message_id or ""
            except httpx.HTTPError:  # the SuperLink did not answer for as long as the run may wait, or refuses
                raise
            except Exception as error:
                if not sendings_left:
                    raise
                log.warning("orders were not taken (%.300s): sent again", error)
            for place in places:
                sent[place] = _copy(sent[place])
        return ids


def _copy(order: Message) -> Message:
    """The same order under another id, which goes by the time of its making."""
    m = order.metadata
    return Message(order.content, m.dst_node_id, m.message_type, ttl=m.ttl, group_id=m.group_id)
