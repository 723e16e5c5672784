"""Which node is which device.

Flower's node ids are random; what is drawn goes by device number. Each node is asked once for its partition id; one
that fails to say is asked again after a while. If several nodes claim one device, the first keeps it; the next takes
its place when the first has gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Message

from fedbc.flower import messages
from fedbc.flower.messages import Answer, MessageError
from fedbc.flower.post import Post

log = logging.getLogger("flwr.fedbc")
QUERY_SECONDS = 120
AGAIN_SECONDS = 30


@dataclass
class Roster:
    """The devices that are there; `devices` is how many the federation has."""

    devices: int
    claims: dict[int, int] = field(default_factory=dict)
    """node to device, in the order of the claims"""
    failed: dict[int, float] = field(default_factory=dict)
    """nodes that did not say who they are, and when"""
    told: set[tuple[int, int]] = field(default_factory=set)

    def refresh(self, post: Post, query: Callable[[int], Message], run: str) -> dict[int, int]:
        """Ask nodes that are new who they are; returns device to node, for the devices that are there."""
        online = set(post.grid.get_node_ids())
        for node in [n for n in self.claims if n not in online]:
            log.warning("device %d has gone (node %d)", self.claims.pop(node), node)
        recently = {node for node, when in self.failed.items() if time.monotonic() - when < AGAIN_SECONDS}
        new = sorted(online - self.claims.keys() - recently)
        if new:
            whats = dict.fromkeys(new, "asked for its partition-id")
            for reply in post.ask([query(node) for node in new], whats, QUERY_SECONDS):
                device = self._claim(reply, run)
                if device is not None:
                    self.claims[reply.metadata.src_node_id] = device
            self.failed = {node: time.monotonic() for node in new if node not in self.claims} | {
                node: when for node, when in self.failed.items() if node in recently
            }
        return self._holders()

    def _claim(self, reply: Message, run: str) -> int | None:
        node = reply.metadata.src_node_id
        try:
            found = messages.parts(reply)
            answer = messages.from_config(Answer, found.config)
            messages.from_metrics(found.metrics, ("train_examples", "test_examples"))
            if answer.run != run or not 0 <= answer.device < self.devices:
                raise MessageError(f"it claims to be device {answer.device} of run {answer.run}")
        except MessageError as error:
            log.warning("node %d is not used: %s", node, error)
            return None
        log.info("node %d is device %d, with %d training examples", node, answer.device, answer.examples)
        return answer.device

    def _holders(self) -> dict[int, int]:
        holders: dict[int, int] = {}
        for node, device in self.claims.items():
            first = holders.setdefault(device, node)
            if first != node and (node, device) not in self.told:
                self.told.add((node, device))
                log.warning("node %d claims to be device %d, as node %d does: not used", node, device, first)
        return dict(sorted(holders.items()))
