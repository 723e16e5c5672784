"""An order on its way to a device: announced once, fetched piece by piece."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

__all__ = ["Arriving"]

OBJECT_SECONDS = 600
"""How long the rest of an order is waited for, while others are taken: a server may have many devices to send to, and
gives up itself what it cannot go on with for three minutes."""


@dataclass
class Arriving:
    """An order that was announced, and what has come of it."""

    order: MessageProto
    tree: ObjectTree
    until: float = field(default_factory=lambda: time.monotonic() + OBJECT_SECONDS)
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def kind(self) -> tuple[int, str, str]:
        """Run, kind of work and round: the server waits for one order of a kind only, the last that it sent."""
        metadata = self.order.metadata
        return metadata.run_id, metadata.message_type, metadata.group_id

    @property
    def missing(self) -> list[str]:
        """The ids of the objects that have not come; the message itself comes last."""
        ids = dict.fromkeys(part.object_id for part in iterate_object_tree(self.tree))
        return [object_id for object_id in ids if object_id not in self.objects]
