"""What passes for a message, and what does not."""

import dataclasses

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

import fedbc
from fedbc.algorithms import ALGORITHMS
from fedbc.flower import messages, packs
from fedbc.flower.messages import Answer, MessageError, Order, Shapes, Spec, from_config, layout, unpack

ORDER = Order("run-1", "fedbc", 0, 3, 1, 0, 7, 1, 20, "global", 600)
ANSWER = Answer("run-1", 1, 0, 12, 0)
WANTED = {"summand.w": Spec((2, 3), "float32"), "summand.n": Spec((), "float32")}
GOOD = {"summand.w": np.ones((2, 3), np.float32), "summand.n": np.asarray(1, np.float32)}


def test_the_documented_names_of_fedbc():
    shapes = Shapes.of(fedbc.FedBC(), fedbc.models.logistic(60, 10))
    text = messages.__doc__
    found = layout(shapes.summand, "summand")
    assert set(found) == {
        f"summand.{n}" for n in ("weighted.w", "weighted.b", "weight", "plain.w", "plain.b", "devices")
    }
    assert all(name in text for name in found)
    assert {spec.dtype for spec in found.values()} == {"float32"}
    assert found["summand.plain.w"].shape == (60, 10)


@pytest.mark.parametrize("record", [ORDER, ANSWER])
def test_records_come_back(record):
    assert from_config(type(record), dataclasses.asdict(record)) == record


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Order)])
@pytest.mark.parametrize("value", [None, 1.5, b"x", [1], "../x"])
def test_a_field_of_another_type_is_refused(field, value):
    config = ConfigRecord(dataclasses.asdict(ORDER) | ({field: value} if value is not None else {}))
    if value is None:
        del config[field]
    elif isinstance(value, str) and field in ("algorithm", "evaluate"):
        return
    with pytest.raises(MessageError, match=field):
        from_config(Order, config)


@given(st.text(max_size=120))
def test_a_run_never_names_a_path(name):
    record = dataclasses.asdict(ANSWER) | {"run": name}
    try:
        found = from_config(Answer, record)
    except MessageError:
        return
    assert "/" not in found.run
    assert "\\" not in found.run
    assert found.run not in ("", ".", "..")


def test_arrays_come_back():
    found = unpack(packs.pack(GOOD), WANTED)
    assert found["summand.w"].tolist() == GOOD["summand.w"].tolist()
    assert found["summand.n"].shape == ()


def test_equal_arrays_are_sent_once():
    z = np.arange(1000, dtype=np.float32)
    once, twice = packs.pack({"a": z}), packs.pack({"a": z, "b": z.copy(), "c": -z})
    assert len(twice) < 2 * len(once) + 200
    wanted = {name: Spec((1000,), "float32") for name in "abc"}
    found = unpack(twice, wanted)
    assert found["b"].tolist() == z.tolist()
    assert found["c"].tolist() == (-z).tolist()
    assert packs.load(twice).keys() == wanted.keys()


BAD = {
    "lacks 'summand.n'": lambda a: a.pop("summand.n"),
    "which was not asked for": lambda a: a.update(more=np.zeros(1)),
    "is float64 of shape": lambda a: a.update({"summand.w": np.ones((2, 3))}),
    r"shape \(3, 2\), not": lambda a: a.update({"summand.w": np.ones((3, 2), np.float32)}),
    "summand.n has values that are not finite": lambda a: a.update({"summand.n": np.asarray(np.inf, np.float32)}),
    "summand.w has values": lambda a: a.update({"summand.w": np.full((2, 3), np.nan, np.float32)}),
    r"take \d+ bytes where at most": lambda a: a.update({"summand.w": np.ones(9999, np.float32)}),
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_arrays_are_refused(reason):
    arrays = dict(GOOD)
    BAD[reason](arrays)
    with pytest.raises(MessageError, match=reason):
        unpack(packs.pack(arrays), WANTED)


@pytest.mark.parametrize(
    ("same", "reason"),
    [
        ('{"summand.n": "summand.n"}', "stands for an array that is not there"),
        ('{"summand.n": "summand.w"}', r"summand.n is float32 of shape \(2, 3\)"),
        ("[1]", "cannot be read"),
        ("[" * 2000, "cannot be read"),
        ("not json", "cannot be read"),
    ],
)
def test_a_pack_cannot_point_astray(same, reason):
    from safetensors.numpy import save

    with pytest.raises(MessageError, match=reason):
        unpack(save({"summand.w": GOOD["summand.w"]}, {"same": same}), WANTED)


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [({}, "lack"), ({"a": 1.0, "b": 2.0}, "too much"), ({"a": float("nan")}, "not a number"), ({"a": [1.0]}, "not a")],
)
def test_bad_metrics_are_refused(metrics, reason):
    with pytest.raises(MessageError, match=reason):
        messages.from_metrics(metrics, ("a",))


def test_records_under_other_names_are_refused():
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    strange = RecordDict({"fedbc": ConfigRecord(dataclasses.asdict(ORDER)), "more": ConfigRecord({"x": 1})})
    with pytest.raises(MessageError, match="more"):
        messages.parts(Message(strange, 2, "train"))


def test_large_arrays_go_in_several_records(monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    monkeypatch.setattr(messages, "CHUNK", 60)
    pack = packs.pack(GOOD)
    content = messages.content(ORDER, arrays=pack, metrics={"a": 1.5})
    assert sorted(content) == ["fedbc", *(f"more-{n}" for n in range(1, -(-len(pack) // 60)))]
    found = messages.parts(Message(content, 2, "train"))
    assert (found.arrays, found.metrics) == (pack, {"a": 1.5})
    assert from_config(Order, found.config) == ORDER
    del content["more-1"]
    with pytest.raises(MessageError, match="more-2"):
        messages.parts(Message(content, 2, "train"))


def test_every_algorithm_has_a_layout(tiny_model):
    for method in ALGORITHMS.values():
        shapes = Shapes.of(method(), tiny_model)
        assert layout(shapes.summand, "summand")
        assert {"drift", "loss", "weight"} <= set(shapes.info)


def test_bounds_of_fedbc():
    algorithm = fedbc.FedBC(lambda_min=0.5, lambda_max=2.0, multiplier=1.0)
    shapes = Shapes.of(algorithm, fedbc.models.logistic(4, 3))
    zeros = {name: np.zeros(spec.shape, spec.dtype) for name, spec in layout(shapes.summand, "summand").items()}

    def check(weight, devices=1.0):
        arrays = zeros | {"summand.weight": np.float32(weight), "summand.devices": np.float32(devices)}
        algorithm.check_summand(fedbc.storage.restored(shapes.summand, arrays, "summand"), 10)

    for good in (0.5, 1.0, 2.0):
        check(good)
    for bad in (-1.0, 0.4, 2.1, 1e9):
        with pytest.raises(fedbc.InputError, match="lambda"):
            check(bad)
    with pytest.raises(fedbc.InputError, match="counts as 3 devices"):
        check(1.0, 3.0)
