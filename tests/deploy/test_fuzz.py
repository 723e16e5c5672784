"""Mutated messages, objects and state files, on server and device: what comes of them is used whole or refused.

The same examples every time, so that a failure comes again; FEDBC_FUZZ=2000 draws so many new ones for each test, and
prints how to repeat what it finds.
"""

import contextlib
import functools
import json
import os
import shutil

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inprocess import Small
from test_contained import ANSWER, MOST, WANTED
from test_node import App, Enough, SuperLink, sent
from test_state import LIKE, order, state

import fedbc
from fedbc.errors import InputError
from fedbc.flower import arriving, letters, messages, node, packs
from fedbc.flower.app_process import Reply, reply_of
from fedbc.flower.diary import Diary
from fedbc.flower.journal import Journal
from fedbc.flower.messages import Answer, MessageError
from fedbc.flower.state import DeviceState
from fedbc.runs import deployed

ASKED = int(os.environ.get("FEDBC_FUZZ", 0))
FUZZ = settings(
    max_examples=ASKED or 60,
    derandomize=not ASKED,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def _identity():
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


@st.composite
def changes(draw, most=4):
    """Places, in parts of a whole, with how many bytes go there and which come."""
    place = st.tuples(st.floats(0, 1), st.integers(0, 12), st.binary(max_size=12))
    return draw(st.lists(place, min_size=1, max_size=most))


def changed(content, found):
    content = bytearray(content)
    for place, gone, new in found:
        at = round(place * len(content))
        content[at : at + gone] = new
    return bytes(content)


@functools.cache
def one_answer():
    order = Message(RecordDict(), 7, "train")
    order.metadata.__dict__["_message_id"] = order.object_id
    content = messages.content(ANSWER, arrays=packs.pack({"summand.w": np.ones(3, np.float32)}))
    return reply_of(Message(content, reply_to=order))


@FUZZ
@given(st.data())
def test_an_answer_s_objects(data):
    """Bytes of an answer are changed, cut, doubled: whatever comes of it is a message or an error of this letter."""
    reply = one_answer()
    objects = dict(reply.objects)
    chosen = data.draw(st.sampled_from(list(objects)))
    objects[chosen] = changed(objects[chosen], data.draw(changes()))
    letter = letters.Letter("o", 1, tree=ObjectTree.FromString(reply.tree), contents=objects)
    source = letters.HttpLetters.__new__(letters.HttpLetters)
    source.drop = lambda letter: None
    source.open(letter, MOST)
    assert letter.is_open
    if letter.message is not None and letter.message.has_content():
        try:
            received = messages.parts(letter.message)
            messages.from_config(Answer, received.config)
            messages.unpack(received.arrays, WANTED)
        except MessageError:
            pass


@FUZZ
@given(changes())
def test_a_pack(found):
    try:
        arrays = packs.unpack(changed(packs.pack({"summand.w": np.arange(3, dtype=np.float32)}), found), WANTED)
    except MessageError:
        return
    assert arrays["summand.w"].shape == (3,)


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.booleans(),
    st.lists(st.integers(-5, 5), max_size=3),
    st.lists(st.text(max_size=3), max_size=3),
    st.none(),
)


@FUZZ
@given(data=st.data())
def test_an_order_s_fields_and_arrays(data, orders_of_round_2):
    """A device answers an order as it stands, or refuses it; and the next good one is answered as if nothing was."""
    run, good, wanted, kept = orders_of_round_2
    shutil.copytree(kept, run.folder / "state", dirs_exist_ok=True)
    fields = dict(good.content["fedbc"])
    if data.draw(st.booleans()):
        fields["arrays"] = changed(fields["arrays"], data.draw(changes()))
    names = st.sampled_from([*fields, "more", "metrics", "metric_names"])
    fields |= data.draw(st.dictionaries(names, VALUES, max_size=2))
    record = ConfigRecord({name: value for name, value in fields.items() if value is not None})
    bad = Message(RecordDict({data.draw(st.sampled_from(["fedbc", "fedbc", "more-1", "x"])): record}), 100, "train")
    with contextlib.suppress(fedbc.FedBCError):
        answer_to(run, bad)
    assert answer_to(run, good) == wanted


@pytest.fixture(scope="module")
def orders_of_round_2(tmp_path_factory, make_federation):
    """A device after its first round, with the second one's order, its answer, and its state before that."""
    folder = tmp_path_factory.mktemp("run")
    run = Small(
        folder, make_federation(sizes=(20,)), fedbc.models.logistic(4, 3), algorithm__name="fedbc", run__rounds=2
    )
    run.grid.errors_travel = False
    kept, seen = folder / "before", []

    def watch(order, work):
        if order.metadata.message_type == "train" and order.content["fedbc"]["round"] == 2:
            shutil.copytree(folder / "state", kept)
            seen.append(order)
        return [work()]

    run.grid.nodes[100].answer = watch
    run.run()
    good = seen[0]
    shutil.copytree(kept, folder / "state", dirs_exist_ok=True)
    return run, good, answer_to(run, good), kept


def answer_to(run, order):
    """What the device says to an order, as plain values."""
    device = run.grid.nodes[100]
    context = Context(run_id=1, node_id=100, node_config=device.config, state=RecordDict(), run_config=run.config)
    reply = device.app(order, context)
    return dict(reply.content["fedbc"])


METADATA = {
    "run_id": st.integers(0, 2**64 - 1),
    "message_id": st.text(max_size=70),
    "group_id": st.text(max_size=5),
    "message_type": st.sampled_from(["train", "evaluate", "query", "", "train.x", "nonsense"]),
    "ttl": st.floats(),
    "created_at": st.floats(),
    "dst_node_id": st.integers(0, 2**64 - 1),
    "reply_to_message_id": st.text(max_size=5),
}


@FUZZ
@given(data=st.data())
def test_an_order_s_metadata_and_objects(data, tmp_path, monkeypatch):
    """A node gets through whatever order, and answers the good one that follows."""
    monkeypatch.setattr(node, "AppProcess", App)
    monkeypatch.setattr(node, "QUICKEST", 0.0)
    monkeypatch.setattr(arriving, "OBJECT_SECONDS", 0.0)
    bad, good = sent("bad", created_at=1e9), sent("good", group="3", created_at=1e9)
    proto, tree = MessageProto.FromString(bad.message), ObjectTree.FromString(bad.tree)
    for name, values in METADATA.items():
        if data.draw(st.booleans()):
            setattr(proto.metadata, name, data.draw(values))
    if data.draw(st.booleans()):
        tree.children.add().object_id = data.draw(st.text(max_size=70))
    objects = {i: changed(o, data.draw(changes())) if data.draw(st.booleans()) else o for i, o in bad.objects.items()}
    link = SuperLink([Reply(proto.SerializeToString(), tree.SerializeToString(), objects), good])
    device = node.DeviceNode(link, {}, Diary(tmp_path / "device-0.json"))
    device._run = lambda run_id: node.Run("", "", "", b"", {})
    with pytest.raises(Enough):
        device._take_orders()
    assert good.objects in device.apps[0].given
    assert device.arriving == []


@FUZZ
@given(which=st.sampled_from(["state", "pending"]), found=changes(), whole=st.booleans(), accepted=st.integers(0, 3))
def test_a_device_s_state_files(which, found, whole, accepted, tmp_path_factory):
    """A damaged file is set aside, never read: what a device goes on from is a state that it wrote."""
    files = DeviceState(tmp_path_factory.mktemp("device"), "run-1", 0, LIKE)
    files.keep_pending(1, state(1))
    files.settle(order(2, 1))
    files.keep_pending(2, state(2))
    file = files.folder / f"{which}.safetensors"
    before = file.read_bytes()
    file.write_bytes(changed(before, found) if whole else before[: round(found[0][0] * len(before))])
    try:
        kept = files.settle(order(3, accepted))
    except MessageError:
        return
    if kept is not None:
        assert kept.round in (1, 2)
        assert kept.state["x"].tolist() == [kept.round] * 3
        assert kept.round == accepted
    if file.exists() and file.read_bytes() == before:
        assert kept is None or kept.round == accepted
    files.keep_pending(3, state(3))
    assert files.settle(order(4, 3)).round == 3


SPEC = {"data": {"devices": 2}, "run": {}, "algorithm": {}, "model": {}}


def journal(folder):
    return Journal(folder, SPEC, {"z": np.zeros(3, np.float32)})


@FUZZ
@given(which=st.sampled_from(["checkpoint", "rounds"]), found=changes(), cut=st.booleans())
def test_a_server_s_state_files(which, found, cut, tmp_path_factory):
    """A run goes on from what it kept, or says that it is damaged."""
    folder = tmp_path_factory.mktemp("server")
    kept = journal(folder)
    kept.save()
    for number in (1, 2):
        told = {0: (5, {"weight": 0.5, "drift": 1.0, "loss": 2.0})}
        kept.close_round({"z": np.full(3, number, np.float32)}, told)
        kept.save()
        kept.complete_row(kept.history[-1] | {"global_accuracy": 0.25 * number})
    file = kept.file if which == "checkpoint" else kept.lines
    before = file.read_bytes()
    file.write_bytes(before[: round(found[0][0] * len(before))] if cut else changed(before, found))
    again = journal(folder)
    try:
        assert again.resume()
    except InputError:
        return
    assert again.round == 2
    assert np.asarray(again.server["z"]).tolist() == [2, 2, 2]
    assert again.accepted.tolist() == [2, 0]
    assert again.device_rows == kept.device_rows
    measured = [row.get("global_accuracy") for row in again.history]
    assert measured in ([0.25, 0.5], [0.25, None])
    assert again.is_measured == (measured[1] is not None)


@FUZZ
@given(
    st.dictionaries(st.text(max_size=8), st.one_of(st.none(), st.integers(), st.text(max_size=9), st.lists(st.text())))
)
def test_files_for_those_who_look_on(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("run")
    (folder / deployed.FILE).write_text(json.dumps(content))
    assert deployed.read_status(folder) is None
    (folder / deployed.ROUNDS).write_text(json.dumps(content) + "\n{")
    assert deployed.read_rounds(folder / deployed.ROUNDS)[1] == []
