"""A device's node and what a SuperLink that fails does to it, without processes."""

import logging
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree

from fedbc.flower import node
from fedbc.flower.app_process import reply_of
from fedbc.flower.link import Rejoin
from fedbc.flower.node import DeviceNode, Diary


class Enough(Exception):
    """Ends a node's endless loop."""


class App:
    """An app's process that answers at once, and notes what it was given."""

    fab_hash, is_alive = "", True

    def __init__(self):
        self.given = []

    def give(self, about, fab, objects):
        self.given.append(objects)

    def wait(self, seconds):
        return sent("the answer")


class SuperLink:
    """Gives out orders, of which some objects are missing, and takes answers, some of which it breaks off."""

    def __init__(self, orders, missing=(), breaks_off=0, rejoins=0):
        self.orders, self.missing, self.breaks_off, self.rejoins = list(orders), set(missing), breaks_off, rejoins
        self.objects = {object_id: content for order in orders for object_id, content in order.objects.items()}
        self.asked, self.stored = [], []
        self.clock, self.key, self.address = 0.0, None, "there"

    def ask(self, what, request):
        self.asked.append(what)
        answers = {
            "PullMessages": self.pull_messages,
            "PullObject": self.pull_object,
            "PushMessages": self.push_messages,
            "PushObject": self.push_object,
            "ConfirmMessageReceived": lambda request: None,
        }
        return answers[what](request)

    once = ask

    def pull_messages(self, request):
        if not self.orders and self.asked.count("PullMessages") > 6:
            raise Enough
        order = self.orders.pop(0) if self.orders else None
        return SimpleNamespace(
            messages_list=[MessageProto.FromString(order.message)] if order else [],
            message_object_trees=[ObjectTree.FromString(order.tree)] if order else [],
        )

    def pull_object(self, request):
        there = request.object_id not in self.missing
        return SimpleNamespace(
            object_found=True, object_available=there, object_content=self.objects[request.object_id] if there else b""
        )

    def push_messages(self, request):
        if self.rejoins:
            self.rejoins -= 1
            raise Rejoin("not known here")
        (tree,) = request.message_object_trees
        ids = [tree.object_id, *(child.object_id for child in tree.children)]
        return SimpleNamespace(objects_to_push=[i for i in ids if i not in self.stored], session_id="a session")

    def push_object(self, request):
        if self.breaks_off:
            self.breaks_off -= 1
            return SimpleNamespace(stored=False)
        self.stored.append(request.object_id)
        return SimpleNamespace(stored=True)


def sent(text):
    message = Message(RecordDict({"fedbc": ConfigRecord({"text": text})}), 7, "train", group_id="2")
    return reply_of(message)


@pytest.fixture
def made(tmp_path, monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    monkeypatch.setattr(node, "AppProcess", App)
    monkeypatch.setattr(node, "QUICKEST", 0.01)

    def make(link):
        device = DeviceNode(link, {}, Diary(tmp_path / "device-0.json"))
        device._run = lambda run_id: node.Run("", "", "", b"", {})
        return device

    return make


def test_an_order_that_stays_incomplete_does_not_hold_up_the_next(made):
    """A SuperLink that was cut off while it took an order gives it out all the same; the server sends another."""
    broken, whole = sent("first"), sent("second")
    link = SuperLink([broken, whole], missing=list(broken.objects)[1:])
    device = made(link)
    with pytest.raises(Enough):
        device._take_orders()
    assert [set(objects) for objects in device.apps[0].given] == [set(whole.objects)]
    assert [arriving.tree.object_id for arriving in device.arriving] == [ObjectTree.FromString(broken.tree).object_id]
    assert len(device.diary.facts["orders"]) == 1


def test_an_order_that_stays_incomplete_is_given_up(made, caplog, monkeypatch):
    monkeypatch.setattr(node, "OBJECT_SECONDS", 0.0)
    broken = sent("first")
    device = made(SuperLink([broken], missing=list(broken.objects)[1:]))
    with pytest.raises(Enough), caplog.at_level(logging.WARNING):
        device._take_orders()
    assert device.arriving == []
    assert "the order of round 2 is not answered: the server did not send all of it" in caplog.text
    assert "orders" not in device.diary.facts


@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_answer_that_is_broken_off_is_sent_again(times, made, caplog):
    link = SuperLink([sent("first")], breaks_off=times)
    device = made(link)
    with pytest.raises(Enough), caplog.at_level(logging.WARNING):
        device._take_orders()
    assert link.asked.count("PushMessages") == min(3, times + 1)
    assert ("is not answered" in caplog.text) == (times == 3)
    assert bool(link.stored) == (times < 3)


def test_work_is_done_again_when_the_node_had_to_join_again(made):
    link = SuperLink([sent("first")], rejoins=1)
    device = made(link)
    with pytest.raises(Rejoin):
        device._take_orders()
    assert len(device.arriving) == 1
    with pytest.raises(Enough):
        device._take_orders()
    assert len(device.apps[0].given) == 2
    assert device.arriving == []
    assert link.stored
