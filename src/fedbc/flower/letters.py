"""Taking answers out of a SuperLink so that none of them can do harm beyond being rejected.

Flower's own `pull_messages` takes all answers at once: it waits up to two hours for objects that a node announced and
never sent, unpacks whatever they hold, and raises what goes wrong with one of them for all. Here an answer is a
`Letter`. It is announced once; its objects are fetched as they come, without waiting; their number, kinds and sizes
are checked before anything is unpacked. What is wrong with a letter is a MessageError about that letter.

This is the only module that knows the inside of Flower's grid (version 1.41).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
from flwr.app import ConfigRecord, Message
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import ConfigRecord as ConfigProto
from flwr.proto.runtime_pb2 import GetNodesRequest, PullAppMessagesRequest, SendTaskHeartbeatRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid.http_grid import HttpGrid

from fedbc.flower.link import wrong_certificate
from fedbc.flower.messages import CHUNK, MOST_FIELDS, MessageError

OF_THE_SERVER = (httpx.HTTPError, RunNotRunningException)
"""Errors that are no letter's: the SuperLink was asked in vain for as long as the run waits, or it ended the run."""
MOST_LIST = 256
"""The most entries of a list among a record's fields."""


@dataclass
class Letter:
    """An answer that was announced."""

    order: str
    """the id of the order that it answers"""
    node: int
    message: Message | None = None
    """the answer, once all of it is there"""
    wrong: str = ""
    """why it cannot be used"""
    tree: Any = None
    contents: dict[str, bytes] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether it is all there, or will never be."""
        return self.message is not None or bool(self.wrong)


class Letters(Protocol):
    """Where answers come from."""

    def announced(self, orders: Sequence[str]) -> list[Letter]:
        """The answers to these orders that came since."""

    def open(self, letter: Letter, most: int) -> None:
        """Fetch what is there of a letter, whose arrays may have so many bytes; no exception is the letter's."""

    def drop(self, letter: Letter) -> None:
        """Have a letter forgotten."""

    def nodes(self) -> dict[int, bytes]:
        """The nodes that are there, with the public keys by which the SuperLink knows them."""

    def beat(self) -> None:
        """Tell the SuperLink that this process lives."""


def letters_of(grid: Grid) -> Letters:
    """The letters of any grid of Flower's."""
    return HttpLetters(grid) if isinstance(grid, HttpGrid) else PlainLetters(grid)


class PlainLetters:
    """Letters of a grid within this process: messages are whole when they come."""

    def __init__(self, grid: Grid) -> None:
        self.grid: Any = grid

    def announced(self, orders: Sequence[str]) -> list[Letter]:
        """One by one, so that what cannot be unpacked is that order's fault alone."""
        found = []
        for order in orders:
            try:
                replies = list(self.grid.pull_messages([order]))
            except Exception as error:
                found.append(Letter(order, 0, wrong=f"it cannot be read: {error!s:.200}"))
                continue
            found += [Letter(r.metadata.reply_to_message_id, r.metadata.src_node_id, message=r) for r in replies]
        return found

    def open(self, letter: Letter, most: int) -> None:
        """It is open already."""

    def drop(self, letter: Letter) -> None:
        """Nothing keeps it."""

    def nodes(self) -> dict[int, bytes]:
        """As the grid says."""
        return {node.node_id: node.public_key for node in self.grid.get_nodes()}

    def beat(self) -> None:
        """Nobody listens."""


class HttpLetters:
    """Letters of a SuperLink."""

    def __init__(self, grid: HttpGrid) -> None:
        self.client: Any = grid._runtime_client
        self.run_id, self.node = grid.run.run_id, Node(node_id=grid.node.node_id)

    def announced(self, orders: Sequence[str]) -> list[Letter]:
        """All at once: an announcement is small, and the SuperLink has read it before."""
        reply = self.client.PullMessages(PullAppMessagesRequest(message_ids=orders))
        return [
            Letter(proto.metadata.reply_to_message_id, proto.metadata.src_node_id, tree=tree)
            for proto, tree in zip(reply.messages_list, reply.message_object_trees, strict=True)
        ]

    def open(self, letter: Letter, most: int) -> None:
        """Fetch the objects that are there; the letter is open once none is missing."""
        try:
            wanted = check_tree(letter.tree, most)
            for object_id in wanted:
                if object_id not in letter.contents and not self._fetch(letter, object_id):
                    return
            letter.message = unfold(letter.tree.object_id, letter.contents, most)
        except MessageError as error:
            letter.wrong = str(error)
        except Exception as error:
            if isinstance(error, OF_THE_SERVER):
                raise
            letter.wrong = f"it cannot be read: {type(error).__name__}: {error!s:.200}"
        letter.contents = {}
        self.drop(letter)

    def _fetch(self, letter: Letter, object_id: str) -> bool:
        reply = self.client.PullObject(PullObjectRequest(node=self.node, run_id=self.run_id, object_id=object_id))
        if not reply.object_found:
            raise MessageError("parts of it are gone: the node did not send all of it in time")
        if not reply.object_available:
            return False
        letter.contents[object_id] = reply.object_content
        return True

    def drop(self, letter: Letter) -> None:
        """Tell the SuperLink that it need not keep it; what it says to that does not matter."""
        request = ConfirmMessageReceivedRequest(
            node=self.node, run_id=self.run_id, message_object_id=letter.tree.object_id
        )
        with contextlib.suppress(Exception):
            self.client.ConfirmMessageReceived(request)

    def nodes(self) -> dict[int, bytes]:
        """As the SuperLink says."""
        return {node.node_id: node.public_key for node in self.client.GetNodes(GetNodesRequest()).nodes}

    def beat(self) -> None:
        """Tell the SuperLink that this process lives."""
        self.client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


def be_patient(grid: Grid, seconds: float) -> None:
    """Ask a SuperLink that does not answer, or answers with an error of its own, for so long; Flower knows no limit.

    Of a server's errors Flower takes 502 to 504 for passing ones; a full disk is told by 500. And it takes every error
    that speaks of TLS for a wrong certificate, such as that of a server which is too busy to shake hands in time.
    """
    invoker: Any = getattr(grid, "_retry_invoker", None)
    if invoker is None:
        return
    gives_up = invoker.should_giveup

    def give_up(error: Exception) -> bool:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.INTERNAL_SERVER_ERROR:
            return False
        if isinstance(error, httpx.TransportError):
            return wrong_certificate(error) is not None
        return bool(gives_up(error))

    invoker.max_time, invoker.should_giveup = seconds, give_up


def check_tree(tree: ObjectTree, most: int) -> list[str]:
    """The ids of a letter's objects, which may be: a message, its content, and as many records as `most` needs."""
    records = 1 + most // CHUNK
    content = list(tree.children)
    below = list(content[0].children) if content else []
    if len(content) > 1 or len(below) > records or any(record.children for record in below):
        raise MessageError(f"it is not a message with at most {records} records")
    return [tree.object_id, *(part.object_id for part in content), *(part.object_id for part in below)]


def unfold(message_id: str, contents: Mapping[str, bytes], most: int) -> Message:
    """The message of these objects; what is not of the form of `fedbc.flower.messages` is refused."""
    kinds = {object_id: _head(data) for object_id, data in contents.items()}
    for object_id, (kind, children) in kinds.items():
        room = MOST_FIELDS + (min(most, CHUNK) if kind == "ConfigRecord" else 0)
        if len(contents[object_id]) > room:
            raise MessageError(f"its {kind} has {len(contents[object_id])} bytes where at most {room} are needed")
        if not set(children) <= contents.keys():
            raise MessageError("its objects are not those that it announced")
        if kind == "ConfigRecord":
            _check_record(contents[object_id])
        elif kind not in ("Message", "RecordDict"):
            raise MessageError(f"it holds a {kind:.40}")
    if [kind for kind, _ in kinds.values()].count("Message") != 1 or kinds[message_id][0] != "Message":
        raise MessageError("it is not one message")
    message = inflate_object_from_contents(message_id, dict(contents))
    if not isinstance(message, Message):
        raise MessageError("it is not a message")
    message.metadata.__dict__["_message_id"] = message_id
    return message


def _head(data: bytes) -> tuple[str, list[str]]:
    kind, children, _ = get_object_head_values_from_object_content(data[: 2 * MOST_FIELDS])
    return kind, children


def _check_record(data: bytes) -> None:
    """A record's fields are few and small; only its arrays may be large. Nothing is unpacked into Python's objects."""
    proto = ConfigProto.FromString(get_object_body(data, ConfigRecord))
    large = 0
    for item in proto.items:
        kind = item.value.WhichOneof("value") or "nothing"
        if kind == "bytes" and item.key == "arrays":
            large += len(item.value.bytes)
        elif kind.endswith("_list") and len(getattr(item.value, kind).vals) > MOST_LIST:
            raise MessageError(f"its {item.key:.40} has more than {MOST_LIST} entries")
    if len(data) - large > MOST_FIELDS:
        raise MessageError(f"its fields take more than {MOST_FIELDS} bytes")
