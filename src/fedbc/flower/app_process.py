"""The process in which a device's app runs: it stays alive from message to message.

What a message costs beyond its work is then next to nothing: data are read, and programs compiled, once for a run. If
the app fails, or the process is killed for want of memory, the device's node goes on and says so.

Node and process speak through a pipe: a line of JSON, then the blocks of bytes that it counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl"""


@dataclass(frozen=True)
class Reply:
    """A message that is ready to be sent."""

    message: bytes
    """Flower's protobuf of it, without content"""
    tree: bytes
    """and of the ids of its objects"""
    objects: dict[str, bytes]
    """their contents"""


def reply_of(message: Message) -> Reply:
    """A message as it is sent."""
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = {object_id: part.deflate() for object_id, part in get_all_nested_objects(message).items()}
    proto = message_to_proto(remove_content_from_message(message))
    return Reply(proto.SerializeToString(), get_object_tree(message).SerializeToString(), objects)


class AppProcess:
    """A process that runs one app, from the node's side."""

    def __init__(self) -> None:
        """Start it; it reads its libraries while nobody waits."""
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, os.getpid()), daemon=True)
        self._process.start()
        other.close()
        self.fab_hash = ""

    @property
    def is_alive(self) -> bool:
        """Whether it can work."""
        return self._process.is_alive()

    def give(self, order: dict[str, Any], fab: bytes, objects: dict[str, bytes]) -> None:
        """Have it work on an order. The first one brings the app."""
        blocks = [*objects.values()]
        order = order | {"ids": list(objects), "fab": order["fab_hash"] != self.fab_hash}
        if order["fab"]:
            blocks.append(fab)
            self.fab_hash = order["fab_hash"]
        _send(self._pipe, order, blocks)

    def wait(self, seconds: float) -> Reply | None:
        """Its reply; None if it is not done after so long, EOFError if it has ended."""
        if not self._pipe.poll(seconds):
            return None
        head, blocks = _receive(self._pipe)
        return Reply(blocks[0], blocks[1], dict(zip(head["ids"], blocks[2:], strict=True)))

    def end(self) -> str:
        """End it; how it ended, in words."""
        self._process.join(1)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join(10)
        self._pipe.close()
        if code is not None and code < 0:
            killed = " (memory may have run out)" if -code == signal.SIGKILL else ""
            return f"it was ended by {signal.Signals(-code).name}{killed}"
        return f"it ended with code {code}"


def _send(pipe: Connection, head: dict[str, Any], blocks: list[bytes]) -> None:
    pipe.send_bytes(json.dumps(head | {"blocks": len(blocks)}).encode())
    for block in blocks:
        pipe.send_bytes(block)


def _receive(pipe: Connection) -> tuple[dict[str, Any], list[bytes]]:
    head = json.loads(pipe.recv_bytes())
    return head, [pipe.recv_bytes() for _ in range(head["blocks"])]


def serve(pipe: Connection, parent: int) -> None:
    """The process: one order after the other, until the node ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node's to act on
    import fedbc.flower  # noqa: F401 (what apps need takes a second to read)

    apps: dict[str, Any] = {}
    states: dict[int, RecordDict] = {}
    while True:
        with contextlib.suppress(EOFError, BrokenPipeError):
            head, blocks = _receive(pipe)
            reply = _work(head, blocks, apps, states)
            _send(pipe, {"ids": list(reply.objects)}, [reply.message, reply.tree, *reply.objects.values()])
            continue
        return


def _work(head: dict[str, Any], blocks: list[bytes], apps: dict[str, Any], states: dict[int, RecordDict]) -> Reply:
    TaskIdentity.run_id, TaskIdentity.task_id = head["run_id"], head["task_id"]
    TaskIdentity.node_id = head["node_id"]
    message: Any = inflate_object_from_contents(head["ids"][-1], dict(zip(head["ids"], blocks, strict=False)))
    message.metadata.__dict__["_message_id"] = head["ids"][-1]
    try:
        app = apps.get(head["fab_hash"])
        if app is None:
            app = apps[head["fab_hash"]] = _load(head, blocks[-1])
        context = Context(
            run_id=head["run_id"],
            node_id=head["node_id"],
            node_config=head["node_config"],
            state=states.setdefault(head["run_id"], RecordDict()),
            run_config=head["run_config"],
        )
        return reply_of(app(message, context))
    except Exception as error:
        import traceback

        traceback.print_exc()
        reason = f"{type(error).__name__}: {error!s:.1000}"
        return reply_of(Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message))


def _load(head: dict[str, Any], fab: bytes) -> Any:
    from flwr.cli.install import install_from_fab
    from flwr.clientapp.utils import get_load_client_app_fn

    install_from_fab(fab, skip_prompt=True)
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    return load(head["fab_id"], head["fab_version"], head["fab_hash"])
