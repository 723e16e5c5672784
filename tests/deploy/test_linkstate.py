"""What a SuperLink keeps of orders, answers, runs and devices when it fails: Flower's own database and handlers."""

import datetime
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.servicer.fleet import fleet_handlers as for_devices
from flwr.superlink.servicer.runtime import runtime_handlers as for_runs
from sqlalchemy.exc import OperationalError

from fedbc.flower import linkstate
from fedbc.flower.app_process import reply_of
from fedbc.flower.linkstate import LastingLinkState

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")  # Flower's


class Link:
    """A SuperLink without its network: its database, a run, a device."""

    def __init__(self, file, kind=LastingLinkState):
        self.file, self.kind = str(file), kind
        self.begin()
        self.run = self.state.create_run(
            "a/b", "1", "0" * 64, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (self.task,) = self.state.get_tasks(run_ids=[self.run])
        self.token = self.state.claim_task(self.task.task_id)
        assert self.state.activate_task(self.task.task_id)
        self.node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, b"a key", 0)
        assert self.state.activate_node(self.node, 15)
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run, self.task.task_id, 1

    def begin(self):
        """Its process starts, again after a kill."""
        objects = ObjectStoreFactory(self.file)
        self.state = self.kind(self.file, NoOpFederationManager(), objects.store())
        self.state.initialize()

    def send_order(self):
        """The run's: an order, whole."""
        message = Message(RecordDict({"fedbc": ConfigRecord({"text": "an order"})}), self.node, "train", ttl=600)
        message.metadata.__dict__["_src_node_id"] = 1
        sent = reply_of(message)
        request = PushAppMessagesRequest(
            messages_list=[MessageProto.FromString(sent.message)],
            message_object_trees=[ObjectTree.FromString(sent.tree)],
        )
        taken = for_runs.push_messages(request, self.state, self.task)
        self.fill(sent, taken)
        message.metadata.__dict__["_message_id"] = taken.message_ids[0]
        return message

    def fill(self, sent, taken):
        for object_id in taken.objects_to_push:
            assert self.state.store_object(self.run, taken.session_id, object_id, sent.objects[object_id])

    def orders(self):
        """The device asks."""
        request = fleet.PullMessagesRequest(node=Node(node_id=self.node))
        found = for_devices.pull_messages(request, self.state, self.state.object_store)
        return [message.metadata.message_id for message in found.messages_list]

    def answer(self, order):
        """The device's, whole."""
        message = Message(RecordDict(), reply_to=order)
        message.metadata.__dict__["_src_node_id"] = self.node
        sent = reply_of(message)
        request = fleet.PushMessagesRequest(
            node=Node(node_id=self.node),
            messages_list=[MessageProto.FromString(sent.message)],
            message_object_trees=[ObjectTree.FromString(sent.tree)],
        )
        self.fill(sent, for_devices.push_messages(request, self.state))

    def answers(self, order):
        """The run asks."""
        request = PullAppMessagesRequest(message_ids=[order.metadata.message_id])
        return for_runs.pull_messages(request, self.state, self.task).messages_list

    def confirm(self, message_id):
        request = ConfirmMessageReceivedRequest(run_id=self.run, message_object_id=message_id)
        for_devices.confirm_message_received(request, self.state, self.state.object_store)

    def rows(self):
        return self.state.num_message_ins(), self.state.num_message_res()


class Clock:
    """Moves the time of Flower's database."""

    def __init__(self, monkeypatch):
        self.ahead = datetime.timedelta()
        for module in ("flwr.supercore.corestate.sql_corestate", "flwr.server.superlink.linkstate.sql_linkstate"):
            monkeypatch.setattr(f"{module}.now", self)
        monkeypatch.setattr(linkstate, "now", self)

    def __call__(self):
        return now() + self.ahead

    def wait(self, **span):
        self.ahead += datetime.timedelta(**span)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(linkstate, "UPKEEP_SECONDS", 0.0)
    return Clock(monkeypatch)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A database with all tables; Flower takes seconds to make one."""
    file = tmp_path_factory.mktemp("empty") / "superlink.db"
    state = SqlLinkState(str(file), NoOpFederationManager(), ObjectStoreFactory(str(file)).store())
    state.initialize()
    return file


@pytest.fixture
def link(tmp_path, clock, empty):
    return Link(shutil.copy(empty, tmp_path / "superlink.db"))


def test_an_order_is_given_out_until_it_is_confirmed(link, clock):
    order = link.send_order()
    name = order.metadata.message_id
    assert link.orders() == [name]  # the reply is lost
    assert link.orders() == []
    link.begin()  # and so is the process
    clock.wait(seconds=11)
    assert link.orders() == [name]
    link.confirm(name)
    clock.wait(seconds=11)
    assert link.orders() == []
    assert link.rows() == (1, 0)


def test_an_order_that_is_answered_is_not_given_out_again(link, clock):
    order = link.send_order()
    assert link.orders()
    link.answer(order)  # of a device that never confirms
    clock.wait(seconds=11)
    assert link.orders() == []


def test_an_answer_is_given_out_until_it_is_confirmed(link, clock):
    order = link.send_order()
    link.orders()
    link.confirm(order.metadata.message_id)
    link.answer(order)
    (first,) = link.answers(order)
    assert link.answers(order) == []
    link.begin()
    clock.wait(seconds=11)
    (second,) = link.answers(order)
    assert second == first
    assert not second.HasField("error")
    link.confirm(first.metadata.message_id)
    clock.wait(seconds=11)
    link.orders()
    assert link.rows() == (0, 0)  # nothing stays behind


def test_an_order_that_is_confirmed_late_is_not_lost(link, clock):
    """It was to be given out again already, when the device, which had it all along, said so; and then answered."""
    order = link.send_order()
    link.orders()
    clock.wait(seconds=11)
    link.state._keep_up()  # as any node's question does
    link.confirm(order.metadata.message_id)
    assert link.orders() == []
    link.answer(order)
    assert link.orders() == []
    (answer,) = link.answers(order)
    assert not answer.HasField("error")


def test_a_question_that_comes_to_its_end_late_does_no_harm(link, clock):
    """The device asked again meanwhile, confirmed and began; only now does Flower look for the order's objects."""
    order = link.send_order()
    name = order.metadata.message_id
    link.orders()
    link.confirm(name)
    link.state.delete_messages({name})  # what Flower then does
    link.answer(order)
    link.state.delete_messages({name})
    (answer,) = link.answers(order)
    assert not answer.HasField("error")
    link.confirm(answer.metadata.message_id)
    clock.wait(minutes=20)
    link.state.delete_messages({name})
    assert link.rows() == (0, 0)


def test_flower_alone_loses_both(tmp_path, empty):
    """Why all of this: should Flower mend it, this test says so."""
    link = Link(shutil.copy(empty, tmp_path / "superlink.db"), SqlLinkState)
    order = link.send_order()
    assert link.orders()
    assert link.orders() == []
    link.answer(order)
    assert link.answers(order)
    assert all(message.HasField("error") for message in link.answers(order))


def test_the_time_in_which_the_superlink_was_not_there_does_not_count(link, clock):
    order = link.send_order()
    link.begin()
    clock.wait(minutes=7)
    assert link.state.get_task_by_token(link.token).run_id == link.run  # the first request after that of any run
    assert link.answers(order) == []  # the device is not taken for gone
    clock.wait(minutes=2)  # a process that was stopped, and goes on
    assert link.orders() == [order.metadata.message_id]
    assert link.state.get_task_by_token(link.token) is not None
    for _ in range(7):  # devices ask, and nothing is heard of the run
        clock.wait(seconds=10)
        link.orders()
    assert link.state.get_task_by_token(link.token) is None
    link.state.get_tasks()
    assert link.state.get_run_status({link.run})[link.run].sub_status == "failed"


def test_whoever_asks_first_after_it_was_stopped_has_the_others_wait(link, clock, monkeypatch):
    write = link.state._extend

    def slowly():
        time.sleep(0.3)
        write()

    monkeypatch.setattr(link.state, "_extend", slowly)
    assert link.state.get_task_by_token(link.token)
    clock.wait(minutes=5)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(link.state.get_task_by_token, [link.token] * 4))
    assert all(found)


def test_the_time_in_which_its_disk_was_full_does_not_count(link, clock):
    assert link.state.get_task_by_token(link.token)
    with pytest.raises(OperationalError), link.state.session():
        raise OperationalError("INSERT", {}, Exception("database or disk is full"))
    clock.wait(minutes=9)
    assert link.state.get_task_by_token(link.token) is not None
    assert not link.state.was_away


def test_the_superlink_uses_it(monkeypatch):
    import uvicorn
    from flwr.server.superlink.linkstate import linkstate_factory
    from flwr.superlink import extensions

    from fedbc.flower import superlink

    for module, name in ((uvicorn, "run"), (linkstate_factory, "SqlLinkState"), (extensions, "get_middleware")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr("flwr.superlink.cli.flower_superlink", lambda: None)
    monkeypatch.setattr("sys.argv", [])
    capped = []
    monkeypatch.setattr(superlink, "cap_memory", lambda: capped.append(1))
    superlink.main(["--host", "127.0.0.1"])
    assert linkstate_factory.SqlLinkState is LastingLinkState
    assert capped
