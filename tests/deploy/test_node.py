"""A device's node and what a SuperLink that fails does to it, without processes."""

import logging
import time
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree

from fedbc.errors import InputError
from fedbc.flower import arriving, node
from fedbc.flower.app_process import reply_of
from fedbc.flower.diary import Diary
from fedbc.flower.link import Rejoin
from fedbc.flower.node import DeviceNode


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
        self.asked, self.stored, self.told = [], [], b""
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
        there = request.object_id in self.objects and request.object_id not in self.missing
        return SimpleNamespace(
            object_found=request.object_id in self.objects,
            object_available=there,
            object_content=self.objects[request.object_id] if there else b"",
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
        self.told += request.object_content
        return SimpleNamespace(stored=True)


def sent(text, group="2", **made):
    message = Message(RecordDict({"fedbc": ConfigRecord({"text": text})}), 7, "train", group_id=group)
    message.metadata.__dict__.update({f"_{name}": value for name, value in made.items()})
    return reply_of(message)


@pytest.fixture
def made(tmp_path, monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    monkeypatch.setattr(node, "AppProcess", App)
    monkeypatch.setattr(node, "QUICKEST", 0.01)
    monkeypatch.setattr(node, "SENDING_PAUSES", (0.0, 0.0, 0.0))

    def make(link):
        device = DeviceNode(link, {}, Diary(tmp_path / "device-0.json"))
        device._run = lambda run_id: node.Run("", "", "", b"", {})
        return device

    return make


def test_an_order_that_stays_incomplete_does_not_hold_up_the_next(made):
    broken, whole = sent("first"), sent("second", group="3")
    link = SuperLink([broken, whole], missing=list(broken.objects)[1:])
    device = made(link)
    with pytest.raises(Enough):
        device._take_orders()
    assert [set(objects) for objects in device.apps[0].given] == [set(whole.objects)]
    assert [order.tree.object_id for order in device.arriving] == [ObjectTree.FromString(broken.tree).object_id]
    assert len(device.diary.facts["orders"]) == 1


def test_the_last_order_of_a_round_takes_the_place_of_the_others(made):
    """A SuperLink that was cut off while it took an order gives it out all the same; the server sends another."""
    for place, orders in enumerate((["old", "new"], ["new", "old"], ["new", "new"])):
        by_name = {"old": sent("first", created_at=100.0), "new": sent("second", created_at=101.0)}
        link = SuperLink([by_name[name] for name in orders], missing=by_name["old"].objects)
        device = made(link)
        device.diary.note(orders=None)
        with pytest.raises(Enough):
            device._take_orders()
        given = [set(objects) for objects in device.apps[0].given]
        assert given[0] == set(by_name["new"].objects)
        assert len(given) == (2 if place == 2 else 1)  # one that is given out again after its answer: the same work
        assert [a.tree.object_id for a in device.arriving] == (
            [ObjectTree.FromString(by_name["old"].tree).object_id] if place == 1 else []
        )


@pytest.mark.parametrize(("seconds", "wanted"), [(0.01, 0.3), (0.1, 1.0), (3.0, 2.0)])
def test_a_server_that_has_much_to_do_is_asked_less_often(seconds, wanted, made, monkeypatch):
    """Also for the rest of an order: a hundred devices that ask for theirs would keep it from taking them."""
    order = sent("first")
    link = SuperLink([order], missing=list(order.objects)[1:])
    device, clock, pauses = made(link), [1000.0], []
    ask = link.ask

    def slowly(what, request):
        clock[0] += seconds if what == "PullMessages" else 0.0
        return ask(what, request)

    link.ask = slowly
    monkeypatch.setattr(node, "QUICKEST", 0.3)
    monkeypatch.setattr(node, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(node.random, "uniform", lambda low, high: 1.0)
    device.lost = SimpleNamespace(is_set=lambda: False, wait=pauses.append)
    with pytest.raises(Enough):
        device._take_orders()
    assert device.arriving
    assert pauses == pytest.approx([wanted] * len(pauses))
    assert len(pauses) > 3


def test_an_order_that_is_given_out_twice_is_one(made):
    order = sent("first")
    link = SuperLink([order, order], missing=list(order.objects)[1:])
    device = made(link)
    with pytest.raises(Enough):
        device._take_orders()
    assert len(device.arriving) == 1
    link.missing.clear()
    link.asked.clear()
    with pytest.raises(Enough):
        device._take_orders()
    assert len(device.apps[0].given) == 1


def test_an_order_that_stays_incomplete_is_given_up(made, caplog, monkeypatch):
    monkeypatch.setattr(arriving, "OBJECT_SECONDS", 0.0)
    broken = sent("first")
    link = SuperLink([broken], missing=list(broken.objects)[1:])
    device = made(link)
    with pytest.raises(Enough), caplog.at_level(logging.WARNING):
        device._take_orders()
    assert device.arriving == []
    assert "the order of round 2 is not answered: the server did not send all of it" in caplog.text
    assert b"the server did not send all of it" in link.told  # or it would wait until its deadline
    assert "orders" not in device.diary.facts


@pytest.mark.parametrize(
    "error", [InputError("no such app"), ValueError("the app's archive is damaged"), KeyError("x")]
)
def test_whatever_goes_wrong_with_an_order_the_server_is_told(error, made, caplog):
    def fails(run_id):
        raise error

    link = SuperLink([sent("first"), sent("second", group="3")])
    device = made(link)
    device._run = fails
    with pytest.raises(Enough), caplog.at_level(logging.WARNING):
        device._take_orders()
    assert link.told.count(str(error).encode()) == 2
    assert device.arriving == []


@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_answer_that_is_broken_off_is_sent_again(times, made, caplog):
    link = SuperLink([sent("first")], breaks_off=times)
    device = made(link)
    with pytest.raises(Enough), caplog.at_level(logging.WARNING):
        device._take_orders()
    assert link.asked.count("PushMessages") == times + 1  # the last one is the excuse, after three
    assert ("the server breaks off each time" in caplog.text) == (times == 3)
    assert (b"breaks off" in link.told) == (times == 3)
    assert (b"RecordDict" in link.told) == (times < 3)


class Beaten(BaseException):
    """Ends a heartbeat's endless loop."""


@pytest.mark.parametrize("said", [SimpleNamespace(success=False), Rejoin("it is not known here")])
def test_a_device_that_is_taken_for_offline_joins_again(said, made, monkeypatch):
    """The SuperLink's word comes with a heartbeat, as after a standstill."""
    link, asked = SuperLink([]), []
    link.key, link.asked_at = SimpleNamespace(public_key=lambda: None), 0.0
    device = made(link)

    def ask(what, request):
        asked.append(what)
        if what == "PullMessages":
            device.lost.set()  # the heartbeat's thread, again
        if asked.count("ActivateNode") == 2:
            raise Enough
        if what == "SendNodeHeartbeat" and isinstance(said, Exception):
            raise said
        answers = {"ActivateNode": SimpleNamespace(node_id=7), "PullMessages": SimpleNamespace(messages_list=[])}
        return answers.get(what, said)

    def sleep(seconds):
        if asked == ["SendNodeHeartbeat"]:
            raise Beaten

    link.ask = link.once = ask
    monkeypatch.setattr(node, "public_key_to_bytes", lambda key: b"its key")
    monkeypatch.setattr(node.faulthandler, "dump_traceback_later", lambda seconds, exit: None)
    monkeypatch.setattr(node, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(node.threading, "Thread", lambda **given: SimpleNamespace(start=lambda: None))
    device.node.node_id = 7
    with pytest.raises(Beaten):
        device._beat()
    assert device.lost.is_set()
    asked.append("now it is served")
    with pytest.raises(Enough):
        device.serve()
    assert asked[2:] == ["ActivateNode", "PullMessages", "ActivateNode"]


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
