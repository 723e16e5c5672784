"""A SuperLink's memory that loses nothing when the SuperLink fails: for orders, answers, runs and devices.

Flower marks a message as delivered when it reads it, and drops the order of an answer with it. If the reply that should
carry it never arrives (the SuperLink was killed, its disk was full, a line broke), nobody gets it any more, and a round
waits for it until its deadline. Here a message counts as delivered once its taker has confirmed it, and is given out
again until then; takers know by its id what they have.

Flower also ends a run, and takes devices for gone, when it has not heard of them for a minute, even if it was itself
what did not listen. Here the time in which this process was not there, or could not write, does not count.

This is the only module that knows the tables of Flower's database (version 1.41).
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Iterator
from typing import Any

from flwr.app import Message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NodeStatus
from flwr.supercore.date import now
from flwr.supercore.state.schema.corestate_models import Task
from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes, Node
from flwr.supercore.state.schema.objectstore_models import StoredObject
from flwr.supercore.utils import uint64_to_int64
from sqlalchemy import delete, exists, select, update
from sqlalchemy.exc import OperationalError

AGAIN_SECONDS = 10.0
"""After how long a message that nobody confirmed is given out again."""
SILENCE_SECONDS = 20.0
"""If nobody asked anything for so long, this process did not listen: it was stopped, or its machine slept."""
UPKEEP_SECONDS = 2.0
"""How often such messages, and tasks whose processes died, are looked for. Flower does the latter, writing to its
database, for every object that is pushed or pulled: a third of what a round costs."""


class Seldom:
    """Says at most once in so many seconds that it is time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._last, self._lock = seconds, -float("inf"), threading.Lock()

    def is_due(self) -> bool:
        """Whether it is time, which it then is not for a while."""
        with self._lock:
            if time.monotonic() - self._last < self.seconds:
                return False
            self._last = time.monotonic()
            return True


class LastingLinkState(SqlLinkState):
    """Flower's, but for what the module says."""

    was_away = True
    """whether this process was not there, or could not write, since it last gave everybody time to be heard of again"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._messages_due, self._tasks_due = Seldom(UPKEEP_SECONDS), Seldom(UPKEEP_SECONDS)
        self._asked_at, self._giving = now(), threading.Lock()

    @contextlib.contextmanager
    def session(self) -> Iterator[Any]:
        """A session; notes that the database failed."""
        try:
            with super().session() as session:
                yield session
        except OperationalError:
            self.was_away = True
            raise

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        """A node's orders."""
        self._keep_up()
        is_this_node_s = MessageIns.dst_node_id == uint64_to_int64(node_id)
        confirmed = update(MessageIns).where(is_this_node_s, MessageIns.delivered_at == "", ~_ORDER_IS_HERE)
        with self.session() as session:  # it may have confirmed one after the time at which that is given out again
            session.execute(confirmed.values(delivered_at=now().isoformat()), execution_options=_NO_CACHE)
            return super().get_message_ins(node_id, limit, run_id=run_id)

    def get_message_res(self, message_ids: set[str], run_id: int) -> list[Message]:
        """Answers to these orders."""
        self._keep_up()
        return super().get_message_res(message_ids, run_id)

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """Orders, with their answers; not one that a device works on, nor one whose answer is not confirmed."""
        if not message_ins_ids:
            return
        is_due = MessageIns.created_at + MessageIns.ttl > now().timestamp()
        in_work = select(MessageIns.message_id).where(
            MessageIns.message_id.in_(message_ins_ids), is_due, ~_ORDER_IS_HERE, ~_IS_ANSWERED
        )
        unconfirmed = select(MessageRes.reply_to_message_id).where(
            MessageRes.reply_to_message_id.in_(message_ins_ids), _ANSWER_IS_HERE
        )
        with self.session() as session:
            kept = {*session.scalars(in_work), *session.scalars(unconfirmed)}
            super().delete_messages(message_ins_ids - kept)

    def get_task_by_token(self, token: str) -> Any:
        """Whose request it is."""
        self._give_time()
        return super().get_task_by_token(token)

    def _cleanup_expired_task_tokens(self) -> None:
        # Within a transaction, for the end of which another thread may wait that gives time: so this one does not wait.
        if self._give_time(waits=False) and self._tasks_due.is_due():
            super()._cleanup_expired_task_tokens()

    def _keep_up(self) -> None:
        """Have what was given out and not confirmed given out again; forget orders whose answers were confirmed."""
        self._give_time()
        if not self._messages_due.is_due():
            return
        before = (now() - datetime.timedelta(seconds=AGAIN_SECONDS)).isoformat()
        orders_given = [MessageIns.delivered_at != "", MessageIns.delivered_at < before]
        answers_given = [MessageRes.delivered_at != "", MessageRes.delivered_at < before]
        with self.session() as session:
            done = set(session.scalars(select(MessageRes.reply_to_message_id).where(~_ANSWER_IS_HERE)))
            for change in (
                update(MessageIns).where(*orders_given, _ORDER_IS_HERE, ~_IS_ANSWERED).values(delivered_at=""),
                update(MessageRes).where(*answers_given, _ANSWER_IS_HERE).values(delivered_at=""),
                delete(MessageIns).where(MessageIns.message_id.in_(done)),
                delete(MessageRes).where(MessageRes.reply_to_message_id.in_(done)),
            ):
                session.execute(change, execution_options=_NO_CACHE)

    def _give_time(self, *, waits: bool = True) -> bool:
        """After a time in which nobody could be heard: runs and devices that were there may take their time again.

        Whoever asks meanwhile waits until that is written; False if it is not to wait and would have to.
        """
        if not self._giving.acquire(blocking=waits):
            return False
        try:
            before, self._asked_at = self._asked_at, now()
            if self.was_away or self._asked_at - before > datetime.timedelta(seconds=SILENCE_SECONDS):
                self.was_away = False  # before it writes: a failure there says that it still is
                self._extend()
        finally:
            self._giving.release()
        return True

    def _extend(self) -> None:
        until = now() + datetime.timedelta(seconds=HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL)
        with self.session() as session:
            for change in (
                update(Task).where(Task.active_until.is_not(None)).values(active_until=until),
                update(Node).where(Node.status == NodeStatus.ONLINE).values(online_until=until.timestamp()),
            ):
                session.execute(change, execution_options=_NO_CACHE)


_NO_CACHE = {"synchronize_session": False}
# What is announced has its object from then on until it is confirmed.
_ORDER_IS_HERE = exists().where(StoredObject.object_id == MessageIns.message_id)
_ANSWER_IS_HERE = exists().where(StoredObject.object_id == MessageRes.message_id)
_IS_ANSWERED = exists().where(MessageRes.reply_to_message_id == MessageIns.message_id)
