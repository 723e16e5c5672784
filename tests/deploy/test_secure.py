"""Secure aggregation through strategy and client, in one process: the simulator's numbers, from sums alone."""

import itertools
import json

import jax
import numpy as np
import pytest
from flwr.app import Error, Message

import fedbc
from fedbc.algorithms import ALGORITHMS
from fedbc.cli import main
from fedbc.errors import InputError
from fedbc.flower import TooFewDevices, gathering
from fedbc.flower.server import finish
from fedbc.flower.settings import Deployment
from fedbc.runs import RunFolder
from fedbc.watch import page
from fedbc.watch.runs import WatchedRun

SECURE = {"run__secure": True, "run__min_devices": 2, "run__most_examples": 100}


def same(a, b, tolerance=2e-6):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)


def failing(order):
    return [Message(Error(0, "killed"), reply_to=order)]


@pytest.mark.parametrize("name", ["fedbc", "scaffold", "ditto", "fedavg"])
def test_a_secure_run_equals_the_simulator(name, deployed, make_federation, tiny_model):
    three = make_federation(sizes=(20, 20, 15))
    own = {"lambda_max": 10.0} if name == "fedbc" else {}
    what = ["global", "local", "train", "lagrangian"] if name in ("fedbc", "ditto") else []
    run = deployed(
        three,
        algorithm__name=name,
        run__rounds=2,
        run__evaluate=",".join(what),
        run__evaluate_every=2,
        **SECURE,
        **{f"algorithm__{k}": v for k, v in own.items()},
    )
    found = run.run()
    wanted = fedbc.simulate(ALGORITHMS[name](**own), tiny_model, three, rounds=2, evaluate=what, evaluate_every=2)
    same(found.global_model, wanted.global_model)
    assert found.devices.columns.tolist() == ["round", "device"]
    assert found.devices.device.tolist() == [0, 1, 2] * 2
    ours, theirs = found.history, wanted.history
    lost = {"worst_accuracy", "worst_decile_accuracy", "best_accuracy", "min_user_accuracy", "max_user_accuracy"}
    lost |= {"violation_max", "seconds", "train_seconds"}
    for column in set(theirs.columns) - lost if what else {"drift", "local_loss"}:
        np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-5, atol=2e-6, err_msg=column)
    assert not (lost - {"seconds", "train_seconds"}) & set(ours.columns)
    rows = wanted.devices[wanted.devices["round"] == 2]
    for name in set(rows) - {"round", "device", "examples", "coefficient", "coefficient_by_examples"}:
        np.testing.assert_allclose(ours[f"round_{name}"].iloc[-1], rows[name].mean(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            ours[f"round_{name}_variance"].iloc[-1], rows[name].var(ddof=0), rtol=1e-3, atol=1e-5
        )


def test_nothing_of_a_single_device_leaves_it(deployed, make_federation):
    three = make_federation(sizes=(20, 20, 15))
    run = deployed(three, algorithm__name="fedavg", run__rounds=1, run__evaluate="global,local", **SECURE)
    run.run()
    stages = {"keys", "shares", "masked", "agree", "unmask"}
    orders = [(o.metadata.message_type, o.content["fedbc"]) for o in run.grid.orders]
    asked = [(kind, config["stage"]) for kind, config in orders if "stage" in config]
    assert {stage for kind, stage in asked if kind == "train"} == stages
    assert {stage for kind, stage in asked if kind == "evaluate"} == stages
    for answer in run.grid.answers:
        fields = dict(answer.content["fedbc"])
        assert fields["examples"] == 1
        assert "metrics" not in fields
    # What the server received of the vectors, for each of the two sums: the sum of any part looks like random bits.
    sent = [(answer, order) for order, answer in zip(run.grid.orders, run.grid.answers, strict=True)]
    masked = [a.content["fedbc"]["arrays"] for a, o in sent if o.content["fedbc"].get("stage") == "masked"]
    trained, measured = masked[:3], masked[3:]
    assert len(measured) == 3
    for vectors in (trained, measured):
        vectors = [np.frombuffer(vector, "<u8") for vector in vectors]
        for part in (p for n in range(1, 4) for p in itertools.combinations(vectors, n)):
            bits = np.unpackbits(np.sum(part, axis=0, dtype=np.uint64).view(np.uint8))
            assert abs(bits.mean() - 0.5) < 6.5 * 0.5 / np.sqrt(len(bits))


def test_a_device_that_falls_silent_after_its_shares(deployed, make_federation, tiny_model):
    """The sum of the others is right, and a device that was left out keeps no trace of the round."""
    three = make_federation(sizes=(20, 20, 15))
    run = deployed(three, algorithm__name="scaffold", run__rounds=2, run__evaluate="", **SECURE)

    def falls(order, work):
        config = order.content["fedbc"]
        return failing(order) if (config["round"], config.get("stage")) == (1, "masked") else [work()]

    run.grid.nodes[102].answer = falls
    result = run.run()
    assert result.devices[["round", "device"]].to_numpy().tolist() == [[1, 0], [1, 1], [2, 0], [2, 1], [2, 2]]
    out = str(run.folder / "plain")
    plain = deployed(three, algorithm__name="scaffold", run__rounds=2, run__evaluate="", run__out=out)
    plain.config["run.move-factor"] = 0.0
    plain.grid.nodes[102].answer = lambda order, work: (
        failing(order) if order.content["fedbc"]["round"] == 1 else [work()]
    )
    same(result.global_model, plain.run().global_model)


@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "agree", "unmask"])
def test_a_server_killed_between_stages_begins_the_round_anew(stage, deployed, tmp_path, monkeypatch):
    options = {"algorithm__name": "scaffold", "run__evaluate": "", "run__rounds": 2, **SECURE}
    whole = deployed(**options, run__out=str(tmp_path / "whole")).run()
    run = deployed(**options, run__out=str(tmp_path / "parts"))
    broken = run.strategy()
    close = gathering.Gathering.close

    def killed(self):
        if (self.session.round, self.stage) == (2, stage):
            raise KeyboardInterrupt
        close(self)

    with monkeypatch.context() as patch:
        patch.setattr(gathering.Gathering, "close", killed)
        with pytest.raises(KeyboardInterrupt):
            broken.start(run.grid)
    before = json.loads((tmp_path / "parts" / "attempt.json").read_text())["attempt"]
    second = run.strategy()
    second.start(run.grid)
    finish(second)
    same(fedbc.load(tmp_path / "parts").global_model, whole.global_model, 0)
    orders = [dict(order.content["fedbc"]) for order in run.grid.orders]
    attempts = [order["attempt"] for order in orders if order["round"] == 2 and "attempt" in order]
    assert sorted(set(attempts)) == [before, attempts[-1]]
    assert attempts[-1] > before


def test_fewer_than_the_minimum_end_the_run(deployed):
    run = deployed(algorithm__name="fedavg", run__rounds=1, run__evaluate="", run__attempts=2, **SECURE)
    run.grid.nodes[101].answer = lambda order, work: (
        failing(order) if order.content["fedbc"].get("stage") == "masked" else [work()]
    )
    with pytest.raises(TooFewDevices, match="round 1 was tried 2 times"):
        run.run()
    assert not [o for o in run.grid.orders if o.content["fedbc"].get("stage") == "unmask"]


def test_a_device_for_secure_sums_refuses_all_else(deployed, caplog):
    run = deployed(algorithm__name="fedavg", run__rounds=1, run__evaluate="", run__min_devices=2, run__attempts=1)
    for node in run.grid.nodes.values():
        node.config["secure"] = True
    with pytest.raises(TooFewDevices):
        run.run()
    assert "this device takes part in secure sums only" in caplog.text


def test_an_order_without_a_stage_is_refused(deployed, caplog, monkeypatch):
    """A server that leaves out the protocol and asks for the summand as it is."""
    run = deployed(algorithm__name="fedavg", run__rounds=1, run__evaluate="", run__attempts=1, **SECURE)
    monkeypatch.setattr(gathering.messages, "change", lambda order, **fields: None)
    with pytest.raises(TooFewDevices):
        run.run()
    assert "an order without a stage: this run has secure sums only" in caplog.text


def test_keys_of_a_device_that_is_not_in_the_list_are_refused(deployed, tmp_path, caplog):
    """Device 0 has an older list, without device 1: it takes part in no sum with a stranger."""
    run = deployed(algorithm__name="fedavg", run__rounds=1, run__evaluate="", run__attempts=1, **SECURE)
    own = tmp_path / "own"
    own.mkdir()
    (own / "device-0.pub").write_bytes((tmp_path / "keys" / "device-0.pub").read_bytes())
    run.grid.nodes[100].config["keys"] = str(own)
    with pytest.raises(TooFewDevices):
        run.run()
    assert "device 1 is not in the list of registered devices" in caplog.text


def test_settings_that_need_single_uploads_are_refused():
    good = {"run.secure": True, "run.min-devices": 2}
    assert Deployment.from_config(good).secure
    with pytest.raises(InputError, match="min_devices=1 is not accepted with secure=true"):
        Deployment.from_config({"run.secure": True})
    with pytest.raises(InputError, match="move_limit=2 is not accepted with secure=true"):
        Deployment.from_config(good | {"run.move-limit": 2.0})


def test_what_is_missing_is_explained(deployed, tmp_path, capsys):
    """`fedbc show` and the page that follows runs say why there is no table of devices."""
    deployed(algorithm__name="fedavg", run__rounds=1, run__evaluate="", **SECURE).run()
    with pytest.raises(SystemExit):
        main(["show", str(tmp_path / "run")])
    assert "no table of devices, no worst device and no deciles" in capsys.readouterr().out
    views = [WatchedRun("run", RunFolder(tmp_path / "run")).look()]
    assert "no table of devices, no worst device" in page.html("run", views, page.data(views))


def test_a_method_without_a_range_does_not_begin(deployed):
    with pytest.raises(InputError, match="'weight', lambda_i, has no declared range"):
        deployed(algorithm__name="fedbc", **SECURE).run()
