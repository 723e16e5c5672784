"""Sending orders to nodes and taking their answers as they come, until a deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedbc.flower.letters import OF_THE_SERVER, Letter, letters_of

POLL_SECONDS = 0.25
"""Flower's own loop asks every 3 s."""
GRACE_SECONDS = 60
"""How much longer than the deadline the SuperLink keeps an order, so that a late answer is seen and told."""
AT_ONCE = 4
"""How many orders are announced before their content follows: a device asks again and again for what was announced to
it, and a hundred that ask leave the SuperLink no time to take the content."""
SENDING_PAUSES = (0.5, 2.0, 8.0, 20.0, 30.0)
"""Seconds after which an order is sent again, each time that the SuperLink fails while it takes it."""

log = logging.getLogger("flwr.fedbc")


class Sent(NamedTuple):
    """An order that is on its way."""

    node: int
    what: str
    """for people: the kind of order, its round and its device"""


class Post:
    """Orders out, answers in. An answer that comes after its deadline is reported and dropped.

    `on_fault` is told the node and the reason, for each order that had no usable answer.
    """

    def __init__(self, grid: Grid, on_fault: Callable[[int, str], None] = lambda node, reason: None) -> None:
        self.grid, self.letters, self.on_fault = grid, letters_of(grid), on_fault
        self.late: dict[str, Sent] = {}

    def ask(
        self, orders: Sequence[Message], whats: Mapping[int, str], seconds: float, most: int = 0
    ) -> Iterator[Message]:
        """Send orders, one per node; yields answers as they come, never two of a node, until all are in or time is up.

        Nodes that fail or do not answer in time are reported; `whats` says of each node's order what it is. `most` is
        how many bytes of arrays an answer may have. After the deadline the SuperLink is asked once more: answers that
        were there in time count, whatever kept the server.
        """
        waiting: dict[str, Sent] = {}
        for order, message_id in zip(orders, self._send(orders), strict=True):
            node = order.metadata.dst_node_id
            if not message_id:
                self._fault(Sent(node, whats[node]), "could not be reached, left out")
            else:
                waiting[message_id] = Sent(node, whats[node])
        deadline, arriving = time.monotonic() + seconds, dict[str, Letter]()
        while waiting:
            is_last = time.monotonic() > deadline
            self._collect(waiting, arriving)
            for order_id, letter in list(arriving.items()):
                self.letters.open(letter, most)
                if letter.is_open:
                    del arriving[order_id]
                    reply = self._read(letter, waiting.pop(order_id))
                    if reply is not None:
                        yield reply
            if is_last:
                break
            if waiting:
                time.sleep(POLL_SECONDS)
        for order_id, letter in arriving.items():
            self._fault(waiting.pop(order_id), f"did not send all of its answer within {seconds:g} s, left out")
            self.letters.drop(letter)
        for sent in waiting.values():
            self._fault(sent, f"did not answer within {seconds:g} s, left out")
        self.late |= waiting

    def _collect(self, waiting: Mapping[str, Sent], arriving: dict[str, Letter]) -> None:
        """Note which answers are announced; what nobody waits for is dropped."""
        asked = [order for order in (*waiting, *self.late) if order not in arriving]
        for letter in self.letters.announced(asked) if asked else ():
            if letter.order in waiting and letter.order not in arriving:
                arriving[letter.order] = letter
                continue
            if letter.order in self.late:
                sent = self.late.pop(letter.order)
                if letter.node == sent.node:  # not the SuperLink's word that nothing came
                    log.warning("%s: node %d answered too late, not used", sent.what, sent.node)
            else:
                log.warning("node %d answered twice, or without being asked: not used", letter.node)
            self.letters.drop(letter)

    def _read(self, letter: Letter, sent: Sent) -> Message | None:
        message = letter.message
        if message is None:
            self._fault(sent, f"is rejected: {letter.wrong}")
        elif message.has_error():
            self._fault(sent, f"failed ({message.error.reason:.300}), left out")
        elif message.metadata.src_node_id != sent.node:
            self._fault(sent, f"is rejected: its answer says that it is of node {message.metadata.src_node_id}")
        else:
            return message
        return None

    def _fault(self, sent: Sent, what: str) -> None:
        log.warning("%s: node %d %s", sent.what, sent.node, what)
        self.on_fault(sent.node, what)

    def _send(self, orders: Sequence[Message]) -> list[str]:
        """Push orders; gives their ids, empty for those that could not be sent."""
        parts = (orders[begin : begin + AT_ONCE] for begin in range(0, len(orders), AT_ONCE))
        return [message_id for part in parts for message_id in self._push(part)]

    def _push(self, orders: Sequence[Message]) -> list[str]:
        """The same, all at once.

        A SuperLink that is killed in the middle and comes back neither takes the rest of an order nor the same order
        again, though it may have all of it. So a copy is sent, with an id of its own: a device that gets both works on
        the last, or on both from the same state, and the answer to the first is not asked for.
        """
        ids, sent = [""] * len(orders), list(orders)
        for pause in (*SENDING_PAUSES, None):
            places = [place for place, message_id in enumerate(ids) if not message_id]
            if not places:
                break
            try:
                pushed = list(self.grid.push_messages([sent[place] for place in places]))
                for place, message_id in zip(places, pushed, strict=True):
                    ids[place] = message_id or ""
            except OF_THE_SERVER:
                raise
            except Exception as error:
                if pause is None:
                    raise
                log.warning("orders were not taken (%.300s): sent again", error)
                time.sleep(pause)
            for place in places:
                sent[place] = _copy(sent[place])
        return ids


def _copy(order: Message) -> Message:
    """The same order under another id, which goes by the time of its making."""
    m = order.metadata
    return Message(order.content, m.dst_node_id, m.message_type, ttl=m.ttl, group_id=m.group_id)
