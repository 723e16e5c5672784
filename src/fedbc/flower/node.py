"""`fedbc deploy node`: a device of a deployment, which takes orders from a SuperLink for as long as it runs.

It speaks what Flower's SuperNodes speak, and differs in what it does when something fails:

- every error of the network or of the server is waited out, with growing pauses, without limit;
- a node that the SuperLink takes for offline, or no longer knows, joins again at once; one whose loop stands still for
  five minutes is ended, and its script starts it anew;
- a clock that differs from the server's is measured and said;
- it opens no port and starts nothing that has a secret in its command line: the app runs in a process beside it
  (`fedbc.flower.app_process`) that stays alive from order to order;
- when it was killed over an order, it tells the server so when it is back, and the round does not wait for it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import faulthandler
import logging
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.common.config import get_fused_config_from_fab, parse_config_args
from flwr.common.constant import ErrorCode
from flwr.common.serde import fab_from_proto, message_from_proto, run_from_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity

from fedbc import storage
from fedbc.errors import InputError
from fedbc.flower.app_process import AppProcess, Reply, reply_of
from fedbc.flower.arriving import Arriving
from fedbc.flower.checked import check_version
from fedbc.flower.diary import Diary
from fedbc.flower.link import LONGEST_PAUSE, Link, Rejoin, RunIsOver
from fedbc.flower.node_key import read_private_key

__all__ = ["DeviceNode", "main"]

HEARTBEAT_SECONDS = 15
"""How often the SuperLink hears of this node; after two such times it takes it for offline."""
QUICKEST, AWAITED, SLOWEST = 0.3, 2.0, 5.0
"""Seconds between two questions for orders: quick after an order, slower the longer there was none or the more the
server has to do; while one is not all there, at most the second."""
STANDSTILL_SECONDS = 300
SENDING_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 20.0)
"""Seconds after which an answer is sent again, each time that the SuperLink breaks off while it takes it."""
LEAVE_SECONDS = 10
"""How long a node that is stopped may take to tell the SuperLink so."""
MOST_APPS = 3
"""How many apps have a process at a time."""
log = logging.getLogger("fedbc.device")


@dataclass(frozen=True)
class Run:
    """What is known of a run."""

    fab_hash: str
    fab_id: str
    fab_version: str
    fab: bytes
    config: dict[str, Any]


class DeviceNode:
    """A device that is connected, or tries to be."""

    def __init__(self, link: Link, node_config: dict[str, Any], diary: Diary) -> None:
        self.link, self.node_config, self.diary = link, node_config, diary
        self.node = Node()
        self.runs: dict[int, Run] = {}
        self.apps: list[AppProcess] = [AppProcess()]
        self.arriving: list[Arriving] = []
        self.lost = threading.Event()
        """set when the SuperLink no longer takes this node for online"""
        self._moved = time.monotonic()

    def serve(self) -> None:
        """Join, work, and join again when the server says so; never returns."""
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()
        pause = 1.0
        while True:
            try:
                self._join()
                pause = 1.0
                self._take_orders()
            except Rejoin as reason:
                log.warning("%s; joins again in %.0f s", reason, pause)
                self.diary.note(connected=False, why=str(reason))
                self._moved = time.monotonic()
                time.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(LONGEST_PAUSE, 2 * pause)

    def leave(self) -> None:
        """Tell the SuperLink that this node goes."""
        if self.node.node_id:
            with contextlib.suppress(Exception):
                self.link.once("DeactivateNode", fleet.DeactivateNodeRequest(node_id=self.node.node_id))
        self.diary.note(connected=False, why="it was stopped")

    def _join(self) -> None:
        """Become this device's node; what an earlier process of it left behind is cleared up."""
        key = public_key_to_bytes(self.link.key.public_key())
        request = fleet.ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT_SECONDS)
        try:
            activated = self.link.ask("ActivateNode", request)
        except Rejoin:
            before = self.diary.facts.get("node_id")
            if not before:
                raise
            # That process may be taken to be still there; now those who wait for its answers hear that it is gone.
            with contextlib.suppress(Exception):
                self.link.once("DeactivateNode", fleet.DeactivateNodeRequest(node_id=before))
            activated = self.link.ask("ActivateNode", request)
        self.node = Node(node_id=activated.node_id)
        self.lost.clear()
        log.info("connected to %s as node %d", self.link.address, self.node.node_id)
        clock = round(self.link.clock, 1)
        self.diary.note(node_id=self.node.node_id, connected=True, why=None, clock=clock)
        if abs(clock) > 2:
            log.warning("%s", self.link.about_the_clock())
        mine = {arriving.order.metadata.message_id for arriving in self.arriving}
        for unfinished in self.diary.facts.get("orders", ()):
            order = MessageProto.FromString(base64.b64decode(unfinished))
            if order.metadata.message_id not in mine:
                self._excuse(order, "the device was started anew while it worked on this order")
        self._note_orders()

    def _excuse(self, order: MessageProto, why: str) -> None:
        """Tell the server that an order is not answered, so that it does not wait; as far as that can be told."""
        try:
            message = message_from_proto(order)
            self._identify(message)
            error = Error(ErrorCode.UNKNOWN, why)
            self._send(message, reply_of(Message(error, reply_to=message)), 0.0)
        except Rejoin:
            raise
        except Exception as reason:
            log.debug("the server cannot be told: %r", reason)

    def _note_orders(self) -> None:
        orders = [base64.b64encode(arriving.order.SerializeToString()).decode() for arriving in self.arriving]
        self.diary.note(orders=orders or None)

    def _take_orders(self) -> None:
        last = time.monotonic()
        while True:
            self._moved = asked = time.monotonic()
            if self.lost.is_set():
                raise Rejoin("the SuperLink takes this node for offline")
            reply = self.link.ask("PullMessages", fleet.PullMessagesRequest(node=self.node))
            if reply.messages_list:
                self._expect(Arriving(reply.messages_list[0], reply.message_object_trees[0]))
            if self._work_on_what_is_there() or reply.messages_list:
                last = time.monotonic()
                continue
            # A server that takes long to answer has much to do: it is asked less often.
            slow = 10 * (time.monotonic() - asked)
            longest = AWAITED if self.arriving else SLOWEST
            pause = min(longest, max(QUICKEST, slow, (time.monotonic() - last) / 20))
            self.lost.wait(pause * random.uniform(0.9, 1.1))

    def _expect(self, new: Arriving) -> None:
        """Note an order. It may be here already, and it takes the place of older ones of its kind."""
        made = new.order.metadata.created_at
        rivals = [other for other in self.arriving if other.kind == new.kind]
        if all(other.order.metadata.created_at < made for other in rivals):
            self.arriving = [other for other in self.arriving if other not in rivals] + [new]
            self._note_orders()

    def _work_on_what_is_there(self) -> bool:
        """Fetch more of the orders that arrive, and work on one that is whole; whether there was one.

        An order may never become whole: a SuperLink that was cut off while it took it gives it out, and the server
        sends another in its place. So none is waited for, and each has a limit.
        """
        for arriving in list(self.arriving):
            is_whole, problem = False, ""
            try:
                is_whole = self._fetch(arriving)
                if is_whole:
                    self._work(arriving)
                elif time.monotonic() < arriving.until:
                    continue
                else:
                    problem = "the server did not send all of it"
            except RunIsOver:
                pass
            except Rejoin:
                raise
            except InputError as error:
                problem = str(error)
            except Exception as error:  # whatever is wrong with an order is that order's fault alone
                log.exception("an order cannot be worked on")
                problem = f"{type(error).__name__}: {error!s:.300}"
            if problem:
                log.warning("the order of round %s is not answered: %s", arriving.order.metadata.group_id, problem)
                self._excuse(arriving.order, problem)
            self.arriving.remove(arriving)  # after Rejoin it is still there, and worked on again
            self._note_orders()
            if is_whole:
                return True
        return False

    def _work(self, arriving: Arriving) -> None:
        """One order: have the app work on it, send the answer."""
        message = message_from_proto(arriving.order)
        self._identify(message)
        metadata = message.metadata
        log.info("round %s of run %d: %s", metadata.group_id or "-", metadata.run_id, metadata.message_type)
        began = time.monotonic()
        run = self._run(metadata.run_id)
        reply = self._answer(message, run, arriving.objects)
        self._send(message, reply, time.monotonic() - began)

    def _identify(self, message: Message) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id = message.metadata.run_id, message.metadata.dst_task_id or 0
        TaskIdentity.node_id = self.node.node_id

    def _run(self, run_id: int) -> Run:
        if run_id not in self.runs:
            info = run_from_proto(self.link.ask("GetRun", GetRunRequest(node=self.node, run_id=run_id)).run)
            request = GetFabRequest(node=self.node, hash_str=info.fab_hash, run_id=run_id)
            fab = fab_from_proto(self.link.ask("GetFab", request).fab)
            config = dict(get_fused_config_from_fab(fab.content, info))
            self.runs[run_id] = Run(fab.hash_str, info.fab_id, info.fab_version, fab.content, config)
        return self.runs[run_id]

    def _fetch(self, arriving: Arriving) -> bool:
        """Fetch the objects of an order that are there; whether none is missing."""
        self._identify(message_from_proto(arriving.order))
        run_id, missing = arriving.order.metadata.run_id, arriving.missing
        for object_id in missing:
            request = PullObjectRequest(node=self.node, run_id=run_id, object_id=object_id)
            found = self.link.ask("PullObject", request)
            if not found.object_found:
                raise InputError("the server no longer has all of it")
            if not found.object_available:
                return False
            arriving.objects[object_id] = found.object_content
            self._moved = time.monotonic()
        if missing:
            root = arriving.tree.object_id
            confirmed = ConfirmMessageReceivedRequest(node=self.node, run_id=run_id, message_object_id=root)
            self.link.ask("ConfirmMessageReceived", confirmed)
        return True

    def _answer(self, message: Message, run: Run, objects: dict[str, bytes]) -> Reply:
        app = self._app(run.fab_hash)
        identity = {"run_id": message.metadata.run_id, "task_id": message.metadata.dst_task_id or 0}
        of_app = {"fab_hash": run.fab_hash, "fab_id": run.fab_id, "fab_version": run.fab_version}
        configs = {"run_config": run.config, "node_config": self.node_config}
        try:
            app.give(identity | of_app | configs | {"node_id": self.node.node_id}, run.fab, objects)
            while (reply := app.wait(1.0)) is None:
                self._moved = time.monotonic()
        except (EOFError, OSError):
            self.apps.remove(app)
            why = f"the app's process ended: {app.end()}"
            log.error("%s", why)
            return reply_of(Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message))
        return reply

    def _app(self, fab_hash: str) -> AppProcess:
        """The process of an app: its own, one that waits for its first app, or a new one."""
        self.apps = [app for app in self.apps if app.is_alive]
        for app in self.apps:
            if app.fab_hash in (fab_hash, ""):
                break
        else:
            if len(self.apps) == MOST_APPS:
                self.apps.pop(0).end()
            app = AppProcess()
            self.apps.append(app)
        self.apps.sort(key=lambda other: other is app)  # those that were used last are at the end
        return app

    def _send(self, message: Message, reply: Reply, seconds: float) -> None:
        run_id = message.metadata.run_id
        request = fleet.PushMessagesRequest(
            node=self.node,
            messages_list=[MessageProto.FromString(reply.message)],
            message_object_trees=[ObjectTree.FromString(reply.tree)],
            clientapp_runtime_list=[seconds],
        )
        for pause in SENDING_PAUSES:  # a server that was cut off refuses the rest, and takes it from the beginning
            if self._push(run_id, request, reply):
                return
            self._moved = time.monotonic()
            time.sleep(pause)
        raise InputError("the server breaks off each time that it takes the answer")

    def _push(self, run_id: int, request: fleet.PushMessagesRequest, reply: Reply) -> bool:
        """Send an answer, as far as the server lacks it; whether it took all."""
        taken = self.link.ask("PushMessages", request)
        wanted = set(taken.objects_to_push)
        for object_id in reply.objects:
            if object_id in wanted:
                push = PushObjectRequest(
                    node=self.node,
                    run_id=run_id,
                    object_id=object_id,
                    object_content=reply.objects[object_id],
                    session_id=taken.session_id,
                )
                if not self.link.ask("PushObject", push).stored:
                    return False
        return True

    def _beat(self) -> None:
        """Tell the SuperLink that this node lives; end the process if its loop stands still."""
        while True:
            time.sleep(HEARTBEAT_SECONDS * random.uniform(0.6, 0.8))
            if time.monotonic() - max(self._moved, self.link.asked_at) < STANDSTILL_SECONDS:
                faulthandler.dump_traceback_later(STANDSTILL_SECONDS, exit=True)
            if not self.node.node_id or self.lost.is_set():
                continue
            request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_SECONDS)
            try:
                if not self.link.once("SendNodeHeartbeat", request).success:
                    self.lost.set()
                self.diary.note()
            except Rejoin:
                self.lost.set()
            except Exception as error:
                log.debug("a heartbeat was lost: %s", error)


def main(arguments: list[str]) -> None:
    """Run a device until it is stopped."""
    parser = argparse.ArgumentParser(prog="fedbc deploy node", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", type=int, required=True, help="its number, from 0")
    parser.add_argument("--superlink", required=True, help="host:port of the server")
    parser.add_argument("--root-certificates", required=True, help="the certificate of the authority")
    parser.add_argument("--key", type=Path, required=True, help="the device's private key")
    parser.add_argument("--state-dir", type=Path, required=True, help="where the device keeps its state")
    parser.add_argument("--node-config", default="", help="further values for context.node_config: 'a=1 b=\"x\"'")
    given = parser.parse_args(arguments)
    check_version()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    for name in ("httpx", "httpcore", "jax"):
        logging.getLogger(name).setLevel(logging.WARNING)
    state = given.state_dir.resolve()
    config = {"partition-id": given.device, "state-dir": str(state), "key": str(given.key.resolve())}
    config |= parse_config_args([given.node_config] if given.node_config else None)
    key = read_private_key(given.key)
    diary = Diary(state / f"device-{given.device}.json")
    taken = f"device {given.device} runs already, with the same state folder {state}"
    faulthandler.dump_traceback_later(STANDSTILL_SECONDS, exit=True)
    for number in STOPPING:
        signal.signal(number, _stop)
    with storage.hold(diary.file, taken, seconds=2):
        node = DeviceNode(Link(given.superlink, given.root_certificates, key), config, diary)
        try:
            node.serve()
        finally:
            node.leave()


STOPPING = (signal.SIGINT, signal.SIGTERM)


def _stop(number: int, frame: Any) -> None:
    """End; once. systemd and the script both say so, and what comes second shall not keep the node from leaving."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    signal.alarm(LEAVE_SECONDS)  # a server that does not answer keeps it no longer
    sys.exit(128 + number)
