"""Answers that are wrong, late, partial or out of all bounds: they are one device's fault, and nothing else happens."""

import dataclasses
import email.utils
import logging
import re
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree

import fedbc
from fedbc.algorithms import ALGORITHMS
from fedbc.errors import InputError
from fedbc.flower import link, messages, packs
from fedbc.flower.app_process import reply_of
from fedbc.flower.letters import Letter, check_tree, unfold
from fedbc.flower.messages import Answer, MessageError, Spec
from fedbc.flower.post import Post
from fedbc.flower.summing import RoundSum
from fedbc.runs import deployed

WANTED = {"summand.w": Spec((3,), "float32")}
MOST = messages.limit(WANTED)
ANSWER = Answer("run-1", 1, 0, 12, 0)


@pytest.fixture(autouse=True)
def _identity(caplog):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    caplog.set_level(logging.INFO, "flwr.fedbc")


def answer(content=None):
    order = Message(RecordDict(), 7, "train")
    order.metadata.__dict__["_message_id"] = order.object_id
    if content is None:
        content = messages.content(ANSWER, arrays=packs.pack({"summand.w": np.ones(3, np.float32)}))
    return reply_of(Message(content, reply_to=order))


def opened(reply, most=MOST):
    tree = ObjectTree.FromString(reply.tree)
    wanted = check_tree(tree, most)
    return unfold(tree.object_id, {object_id: reply.objects[object_id] for object_id in wanted}, most)


def test_a_good_answer_is_opened():
    received = messages.parts(opened(answer()))
    assert messages.from_config(Answer, received.config) == ANSWER
    assert messages.unpack(received.arrays, WANTED)["summand.w"].tolist() == [1, 1, 1]
    assert opened(answer(Error(5, "it fell over"))).error.reason == "it fell over"


def config(**fields):
    return RecordDict({"fedbc": ConfigRecord(fields)})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (config(metrics=[0] * 60_000), "more than 256 entries"),
        (config(metrics=[True] * 70_000), "bytes where at most"),
        (config(x="x" * 67_000), "fields take more than"),
        (config(arrays=bytes(80_000)), "bytes where at most"),
        (config(other=bytes(66_000)), "fields take more than"),
        (RecordDict({f"more-{n}": ConfigRecord({"arrays": bytes([n])}) for n in range(5)}), "at most 1 records"),
    ],
)
def test_what_would_unpack_to_much_is_not_unpacked(content, reason):
    with pytest.raises(MessageError, match=reason):
        opened(answer(content))


def test_objects_where_none_belong():
    tree = ObjectTree(object_id="a")
    for _ in range(50):
        tree = ObjectTree(object_id="a", children=[tree])
    for bad in (tree, ObjectTree(object_id="a", children=[ObjectTree(object_id="b")] * 2)):
        with pytest.raises(MessageError, match="not a message with"):
            check_tree(bad, MOST)
    reply = answer()
    root = ObjectTree.FromString(reply.tree).object_id
    record = next(i for i, data in reply.objects.items() if data.startswith(b"ConfigRecord"))
    array = {i: d.replace(b"ConfigRecord", b"ArrayRecord", 1) if i == record else d for i, d in reply.objects.items()}
    with pytest.raises(MessageError, match="holds a ArrayRecord"):
        unfold(root, array, MOST)
    with pytest.raises(MessageError, match="not those that it announced"):
        unfold(root, {root: reply.objects[root]}, MOST)


class Slow:
    """Letters that come as they are told to; a grid's are the same."""

    def __init__(self, announced=(), opens=lambda letter: True):
        self.letters, self.opens, self.asked = list(announced), opens, 0

    def announced(self, orders):
        self.asked += 1
        found = [letter for letter in self.letters if letter.order in orders]
        self.letters = [letter for letter in self.letters if letter not in found]
        return found

    def open(self, letter, most):
        if self.opens(letter):
            letter.message = opened(answer())
            letter.message.metadata.__dict__["_src_node_id"] = letter.node

    def drop(self, letter):
        pass


def post_with(source):
    class Pushes:
        def push_messages(self, orders):
            return [f"order-{order.metadata.dst_node_id}" for order in orders]

    faults = {}
    post = Post(Pushes(), lambda node, what: faults.update({node: what}))
    post.letters = source
    orders = [Message(RecordDict(), node, "train") for node in (1, 2)]
    return post, orders, {1: "order to 1", 2: "order to 2"}, faults


class Clock:
    """Time that passes when somebody waits, and not while the machine is busy."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fedbc.flower.post.time", clock)
    return clock


def test_half_an_answer_keeps_nobody_waiting(clock):
    source = Slow([Letter("order-1", 1), Letter("order-2", 2)], opens=lambda letter: letter.node == 2)
    post, orders, whats, faults = post_with(source)
    replies = post.ask(orders, whats, 1.0, MOST)
    assert next(replies).metadata.src_node_id == 2
    assert clock.now == 0
    assert list(replies) == []
    assert 1.0 < clock.now <= 1.25
    assert faults == {1: "did not send all of its answer within 1 s, left out"}


def test_answers_that_were_there_in_time_count_after_the_deadline(clock):
    """Something kept the server until after the deadline: it looks once more before it leaves devices out."""
    source = Slow([Letter("order-1", 1)])
    post, orders, whats, faults = post_with(source)
    first = source.announced

    def late(orders):
        found = first(orders)
        if source.asked == 1:
            clock.sleep(0.6)
            source.letters.append(Letter("order-2", 2))
        return found

    source.announced = late
    assert [reply.metadata.src_node_id for reply in post.ask(orders, whats, 0.5, MOST)] == [1, 2]
    assert faults == {}


def test_orders_are_announced_a_few_at_a_time(monkeypatch):
    """A device asks for what was announced to it; a hundred that ask keep the SuperLink from taking their orders."""
    post, _, _, _ = post_with(Slow())
    push, sizes = post.grid.push_messages, []
    monkeypatch.setattr(post.grid, "push_messages", lambda orders: sizes.append(len(orders)) or push(orders))
    orders = [Message(RecordDict(), node, "train") for node in range(1, 11)]
    assert post._send(orders) == [f"order-{node}" for node in range(1, 11)]
    assert sizes == [4, 4, 2]


def summed(moves, limit=0.0, factor=0.0):
    with RoundSum(WANTED) as found:
        for device, move in enumerate(moves):
            found.add(device, {"summand.w": np.full(3, device + 1, np.float32)}, 1, {}, move)
        out = [(entry.device, why) for entry, why in found.beyond(limit, factor)]
        return out, found.total()["summand.w"].tolist()


def test_a_device_that_moves_the_model_too_far_is_left_out():
    assert summed([1, 1, 2, 1000], factor=100) == (
        [(3, "it moves the model 1e+03 times as far as the others' median, limit 100")],
        [6, 6, 6],
    )
    assert summed([1, 1, 2, 1000], limit=1.5)[1] == [3, 3, 3]
    assert summed([1, 1, 2, 1000])[1] == [10, 10, 10]
    assert summed([1, 1000], factor=10)[0] == []  # nobody to compare with
    assert summed([0, 0, 0, 5], factor=10)[0] == []  # the others' say nothing
    assert summed([1, 2, 3, 90], factor=100)[0] == []


def lying(record, change):
    arrays = {name: array.copy() for name, array in packs.load(record["arrays"]).items()}
    change(arrays)
    record["arrays"] = packs.pack(arrays)


LIES = {
    "not the product of its lambda": lambda a: a.update({"summand.weighted.w": a["summand.weighted.w"] + 1e6}),
    "would make the global model diverge": lambda a: a.update(
        {n: np.full_like(v, 3e38 if "plain" in n else 1.5e38) for n, v in a.items() if "plain" in n or "ed." in n}
        | {"summand.weight": np.asarray(0.5, np.float32)}
    ),
    "times as far as the others' median": lambda a: a.update(
        {n: np.full_like(v, 1e6 if "plain" in n else 5e5) for n, v in a.items() if "plain" in n or "ed." in n}
        | {"summand.weight": np.asarray(0.5, np.float32)}
    ),
}


@pytest.mark.parametrize("reason", LIES)
def test_lies_of_one_device(reason, deployed, caplog, make_federation):
    run = deployed(make_federation(sizes=(20, 20, 20)), algorithm__name="fedbc", run__rounds=1, run__evaluate="")

    def lies(order, work):
        reply = work()
        if order.metadata.message_type == "train":
            lying(reply.content["fedbc"], LIES[reason])
        return [reply]

    run.grid.nodes[102].answer = lies
    result = run.run()
    assert result.devices.device.tolist() == [0, 1]
    assert "device 2 (node 102) is rejected" in caplog.text
    assert reason in caplog.text
    assert max(np.abs(leaf).max() for leaf in fedbc.storage.named(result.global_model).values()) < 10


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_device_is_left_out_whatever_the_method(name, deployed, caplog, make_federation):
    """All vectors of its summand a million times too large."""
    run = deployed(make_federation(sizes=(20, 20, 20)), algorithm__name=name, run__rounds=1, run__evaluate="")

    def lies(order, work):
        reply = work()
        if order.metadata.message_type == "train":
            lying(reply.content["fedbc"], lambda a: a.update({n: v * 1e6 for n, v in a.items() if v.size > 1}))
        return [reply]

    run.grid.nodes[102].answer = lies
    assert run.run().devices.device.tolist() == [0, 1]
    assert "device 2 (node 102) is rejected" in caplog.text


@pytest.mark.parametrize(
    "name", sorted(n for n, a in ALGORITHMS.items() if n != "qfedavg" and not issubclass(a, fedbc.FedBC))
)
def test_a_device_counts_once_whatever_the_method(name, tiny_model):
    """Weights that no honest device of so many examples has."""
    import jax

    algorithm = ALGORITHMS[name]()
    zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), messages.Shapes.of(algorithm, tiny_model).summand)
    field = next(f for f in ("weight", "senders") if hasattr(zeros, f))
    for value in (-3.0, 1e9):
        with pytest.raises(InputError, match=r"its weight is|it joins as"):
            algorithm.check_summand(zeros._replace(**{field: np.float32(value)}), 20)


def test_clocks_that_differ_are_said():
    clock = link.Clock()
    stamp = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - 10))
    clock.intercept(None, lambda context: httpx.Response(401, headers={"date": stamp}))
    assert 8 < clock.ahead < 11.5
    found = link.Link.__new__(link.Link)
    found._clock = clock
    assert re.search(r"this device's clock is (8|9|10) s ahead of the server's", found._why_unauthorized())
    clock.ahead = -200
    assert "not registered, or was revoked" in found._why_unauthorized()
    clock.ahead = -400
    assert "400 s behind the server's" in found._why_unauthorized()


def test_an_answer_that_took_long_says_little_about_clocks():
    there = 1_000_000.0
    stamp = email.utils.formatdate(there, usegmt=True)
    for sent, received, ahead in [
        (there + 0.5, there + 0.6, 0.0),
        (there + 7.0, there + 7.1, 6.0),
        (there - 7.0, there - 6.5, -6.5),
        (there - 7.0, there + 9.0, 0.0),  # 16 s: the server was busy
        (there + 7.0, there + 30.0, 6.0),
    ]:
        assert link.seconds_ahead(stamp, sent, received) == ahead


def test_status_tells_who_lags_and_why(tmp_path):
    found = deployed.Status("run", 5, [deployed.DeviceStatus(n) for n in range(3)])
    found.look({0: 10, 2: 12})
    found.fault(2, "round 4: it is NaN")
    found.take(3, [3, 1, 3])
    found.enter(tmp_path, "trains round 4", [0, 2], 4)
    read = deployed.read_status(tmp_path)
    assert dataclasses.asdict(read) == dataclasses.asdict(found)
    assert deployed.in_words(read) == (
        "trains round 4; 2 of 3 devices are there; 1 answers not used, such as device 2's: round 4: it is NaN"
    )


def test_a_process_of_the_server_outgrows_no_machine():
    code = """
from fedbc.flower.memory import cap_memory
limit = cap_memory(0.2)
assert limit > 0
try:
    bytearray(limit)
except MemoryError:
    print("contained")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "contained\n", done.stderr
