"""The server's side without processes: what is taken, what is told to devices, what a checkpoint keeps."""

import dataclasses
import logging
import socket
import ssl
import time
from types import SimpleNamespace

import httpx
import jax
import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.superlink.grid.http_grid import HttpGrid
from inprocess import public_key

import fedbc
from fedbc import storage
from fedbc.errors import InputError
from fedbc.flower import TooFewDevices, messages, packs, post, roster, strategy
from fedbc.flower.letters import be_patient
from fedbc.flower.server import finish
from fedbc.flower.settings import Deployment, algorithm_from


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO, "flwr.fedbc")


def equal(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def changed(work, **arrays):
    reply = work()
    record = reply.content["fedbc"]
    record["arrays"] = packs.pack(
        packs.load(record["arrays"]) | {n: np.asarray(a, np.float32) for n, a in arrays.items()}
    )
    return reply


def first_array(reply):
    return next(iter(packs.load(reply.content["fedbc"]["arrays"])))


def on(round, kind, honest, other):
    """An answer that is honest but in one round."""

    def answer(order, work):
        mine = order.content["fedbc"]["round"] == round and order.metadata.message_type == kind
        return (other if mine else honest)(order, work)

    return answer


def as_asked(order, work):
    return [work()]


def failing(order, work):
    return [Message(Error(0, "it fell over"), reply_to=order)]


@pytest.mark.parametrize("name", ["scaffold", "fedpd", "fedadmm", "feddyn", "l2gd", "localonly"])
def test_a_rejected_summand_leaves_no_trace_on_the_device(name, deployed, tmp_path, make_federation, tiny_model):
    """Rejected or never trained: the same run. Server and device would drift apart if the device kept the state."""
    results = []
    for kind, fault in {
        "nan": lambda order, work: [
            changed(work, **{next(iter(packs.load(work().content["fedbc"]["arrays"]))): np.nan})
        ],
        "absent": failing,
    }.items():
        run = deployed(algorithm__name=name, run__rounds=3, run__evaluate="", run__out=str(tmp_path / kind))
        run.grid.nodes[101].answer = on(2, "train", as_asked, fault)
        results.append(run.run())
    rejected, absent = results
    equal(rejected.global_model, absent.global_model)
    assert rejected.devices[["round", "device"]].to_numpy().tolist() == [[1, 0], [1, 1], [2, 0], [3, 0], [3, 1]]


def test_a_warning_names_the_device_and_the_reason(deployed, caplog):
    run = deployed(algorithm__name="fedbc", algorithm__lambda_max=1.0, run__rounds=1, run__evaluate="")
    run.grid.nodes[101].answer = lambda order, work: [
        changed(work, **{"summand.weight": 7}) if order.metadata.message_type == "train" else work()
    ]
    run.run()
    assert "round 1: device 1 (node 101) is rejected: its lambda is 7, out of the bounds 0 to 1" in caplog.text


def test_two_answers_to_one_order_count_once(deployed, caplog, tmp_path):
    """The SuperLink stores one answer an order; were it to hand on two, the second would not count."""
    options = {"algorithm__name": "fedavg", "run__rounds": 1, "run__evaluate": ""}
    once = deployed(**options, run__out=str(tmp_path / "once")).run()
    run = deployed(**options, run__out=str(tmp_path / "twice"))
    run.grid.nodes[101].answer = lambda order, work: [work(), work()]
    equal(run.run().global_model, once.global_model)
    assert "node 101 answered twice" in caplog.text


def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(deployed, tmp_path):
    options = {"algorithm__name": "scaffold", "run__evaluate": "", "run__rounds": 4}
    whole = deployed(**options, run__out=str(tmp_path / "whole")).run()
    run = deployed(**options, run__out=str(tmp_path / "parts"))
    first = run.strategy(run__rounds=2)
    first.start(run.grid)
    second = run.strategy()  # what a new ServerApp process does
    assert second.journal.round == 2
    assert second.journal.run == first.journal.run
    second.start(run.grid)
    finish(second)
    equal(fedbc.load(tmp_path / "parts").global_model, whole.global_model)


def test_the_checkpoint_is_written_once_a_round_and_does_not_grow(deployed, monkeypatch):
    write, sizes = storage.write_arrays, []

    def noted(file, *given, **options):
        write(file, *given, **options)
        if file.name == "checkpoint.safetensors":
            sizes.append(file.stat().st_size)

    monkeypatch.setattr(storage, "write_arrays", noted)
    deployed(algorithm__name="fedavg", run__rounds=5, run__evaluate="global").run()
    assert sizes == sizes[:1] * 6  # one before the first round


def test_a_server_killed_before_its_checkpoint_repeats_the_round(deployed, tmp_path, monkeypatch):
    options = {"algorithm__name": "scaffold", "run__evaluate": "", "run__rounds": 3}
    whole = deployed(**options, run__out=str(tmp_path / "whole")).run()
    run = deployed(**options, run__out=str(tmp_path / "parts"))
    broken = run.strategy()
    save = broken.journal.save

    def killed():
        if broken.journal.round == 2:
            raise KeyboardInterrupt
        save()

    monkeypatch.setattr(broken.journal, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        broken.start(run.grid)
    equal(run.run().global_model, whole.global_model)


def test_a_checkpoint_of_another_run_is_refused(deployed):
    run = deployed(algorithm__name="fedavg", run__rounds=1, run__evaluate="")
    run.run()
    with pytest.raises(InputError, match=r"algorithm lr is 0\.01, here it is 0\.5"):
        run.run(algorithm__lr=0.5, run__rounds=2)
    with pytest.raises(InputError, match="holds a finished run of 1 rounds"):
        run.run()
    assert run.run(run__rounds=2).rounds == 2


def test_absent_devices_are_replaced_in_the_sample():
    settings = Deployment(devices=10, sample=4, seed=3)
    everybody = dict.fromkeys(range(10), 0)
    drawn = roster.draw(settings, 5, everybody)
    assert drawn == fedbc.simulation.schedule.sample_devices(3, 5, 10, 4).tolist()
    here = {device: 0 for device in everybody if device != drawn[0]}
    instead = roster.draw(settings, 5, here)
    assert len(instead) == 4
    assert set(drawn[1:]) < set(instead)
    assert roster.draw(settings, 5, {drawn[1]: 0}) == [drawn[1]]


def test_too_few_devices_wait_say_so_and_give_up(deployed, caplog, monkeypatch):
    monkeypatch.setattr(strategy, "SAY_SECONDS", 0)
    monkeypatch.setattr(strategy, "LOOK_SECONDS", 0.1)
    run = deployed(algorithm__name="fedavg", run__min_devices=2, run__wait_seconds=1)
    del run.grid.nodes[101]
    with pytest.raises(TooFewDevices, match="round 1 needs 2 devices, 1 are there after 1 s: given up"):
        run.run()
    assert "waiting: 1 of 2 devices are there; gives up in 1 s" in caplog.text


def lost(ids):
    raise RuntimeError("the push session may have expired")


def nothing_known(ids):
    return [""] * len(ids)


@pytest.mark.parametrize("name", ["fedbc", "scaffold"])
@pytest.mark.parametrize("answer", [lost, nothing_known])
def test_orders_whose_sending_was_cut_off_are_sent_again(name, answer, deployed, tmp_path, caplog, monkeypatch):
    """A SuperLink that was killed after it had taken them: devices get them twice, and the run is the same."""
    options = {"algorithm__name": name, "run__rounds": 3}
    plain = deployed(**options, run__out=str(tmp_path / "plain")).run()
    run = deployed(**options, run__out=str(tmp_path / "cut"))
    push, cut = run.grid.push_messages, []

    def push_messages(messages):
        ids = push(messages)
        if messages[0].metadata.message_type == "train" and len(cut) < 2:
            cut.append(len(messages))
            return answer(ids)
        return ids

    monkeypatch.setattr(run.grid, "push_messages", push_messages)
    result = run.run()
    assert cut == [2, 2]
    assert result.rounds == 3
    equal(result.global_model, plain.global_model)
    assert ("orders were not taken" in caplog.text) == (answer is lost)
    assert "left out" not in caplog.text


def test_orders_that_are_never_taken_end_the_run(deployed, monkeypatch):
    run = deployed(algorithm__name="fedavg", run__rounds=1)
    monkeypatch.setattr(post, "SENDING_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(run.grid, "push_messages", lost)
    with pytest.raises(RuntimeError, match="push session"):
        run.run()


def test_a_round_with_too_few_good_answers_is_tried_again(deployed, caplog):
    run = deployed(algorithm__name="fedavg", run__min_devices=2, run__rounds=1, run__evaluate="", run__attempts=2)
    fell = []

    def falls_once(order, work):
        if order.metadata.message_type == "train" and not fell:
            fell.append(1)
            return failing(order, work)
        return [work()]

    run.grid.nodes[101].answer = falls_once
    assert len(run.run().devices) == 2
    assert "round 1, device 1: node 101 failed (it fell over), left out" in caplog.text
    assert "too few good answers, attempt 1 of 2" in caplog.text
    run.grid.nodes[101].answer = on(2, "train", as_asked, failing)
    with pytest.raises(TooFewDevices, match="round 2 was tried 2 times"):
        run.run(run__rounds=2)


def test_a_device_is_who_holds_its_key(deployed, caplog, tmp_path):
    """A node with device 1's key that says it is device 0 is asked for device 1 and refuses; strangers are not used."""
    run = deployed(algorithm__name="fedavg", run__rounds=1, run__evaluate="")
    run.add(999, 7)
    honest = run.grid.get_nodes
    run.grid.nodes[101].config["partition-id"] = 0
    run.grid.get_nodes = lambda: [
        SimpleNamespace(node_id=node.node_id, public_key=public_key(1)) if node.node_id == 101 else node
        for node in honest()
    ]
    result = run.run()
    assert result.devices.device.tolist() == [0]
    assert "an order for device 1 reached device 0: its key is another one's" in caplog.text
    assert f"node 999 has a key that is not in {tmp_path / 'keys'}: not used" in caplog.text
    assert {o.metadata.dst_node_id for o in run.grid.orders} == {100, 101}


def test_another_node_takes_over_with_the_key(deployed, tmp_path):
    run = deployed(algorithm__name="fedavg", run__rounds=2, run__evaluate="")
    run.strategy(run__rounds=1).start(run.grid)
    del run.grid.nodes[101]
    run.add(999, 1)
    assert run.run().devices.device.tolist() == [0, 1, 0, 1]
    assert run.grid.orders[-1].metadata.dst_node_id == 999


def test_a_server_without_keys_does_not_begin(deployed, tmp_path):
    with pytest.raises(InputError, match="has no public keys"):
        deployed(algorithm__name="fedavg", run__keys=str(tmp_path / "none")).run()


def test_nothing_but_the_summand_leaves_the_device(deployed):
    run = deployed(algorithm__name="fedbc", run__rounds=2, run__evaluate="", run__diagnostics=False)
    seen = []

    def watch(order, work):
        reply = work()
        if order.metadata.message_type == "train":
            seen.append(reply.content)
        return [reply]

    for node in run.grid.nodes.values():
        node.answer = watch
    result = run.run()
    assert len(seen) == 4
    for content in seen:
        assert set(content) == {"fedbc"}
        fields = {field.name for field in dataclasses.fields(messages.Answer)}
        assert set(content["fedbc"]) == fields | {"arrays"}
        arrays = packs.load(content["fedbc"]["arrays"])
        assert {name.split(".")[0] for name in arrays} == {"summand"}
        assert not any("tolerance" in name for name in arrays)
    assert np.isnan(result.tolerances).all()
    assert "multiplier" not in result.devices
    with pytest.raises(InputError, match="stay on their devices"):
        _ = result.local_models


def test_settings_are_read_strictly():
    config = {"run.rounds": 3, "run.batch-size": 0, "algorithm.name": "fedbc", "algorithm.dual-lr": 0.5, "mine": "x"}
    settings = Deployment.from_config(config)
    assert (settings.rounds, settings.as_simulated().batch_size) == (3, None)
    assert algorithm_from(config) == fedbc.FedBC(dual_lr=0.5)
    for bad, reason in {
        ("run.round", 3): "did you mean 'rounds'",
        ("run.rounds", "3"): "type int",
        ("run.evaluate", "gradient"): "does not measure it",
        ("run.sample", 4): "<= 3",
        ("run.optimizer", "adam"): "run.optimizer is an argument of the simulator",
        ("run.check-every", 5): "run.check-every is an argument of the simulator",
        ("algorithm.lrr", 0.1): "unknown",
    }.items():
        read = algorithm_from if bad[0].startswith("algorithm") else Deployment.from_config
        with pytest.raises(InputError, match=reason):
            read(config | dict([bad]))


def test_a_superlink_that_is_gone_is_given_up_on_after_the_stated_time():
    """Flower alone would ask for ever; a port that nobody listens on stands for a SuperLink that never comes back."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    grid = HttpGrid(address, insecure=True, token="token")
    be_patient(grid, 2)
    began = time.monotonic()
    with pytest.raises(httpx.HTTPError):
        list(grid.get_node_ids())
    assert 2 <= time.monotonic() - began < 30
    grid.close()


def test_a_superlink_that_is_too_busy_to_shake_hands_is_asked_again():
    """Flower alone takes each error that speaks of TLS for a wrong certificate, and the run would be over."""

    def raised(error, cause):
        try:
            raise error from cause
        except httpx.TransportError as found:
            return found

    grid = HttpGrid("127.0.0.1:1", insecure=True, token="token")
    busy = raised(httpx.ConnectTimeout("_ssl.c:989: The handshake operation timed out"), TimeoutError())
    stranger = raised(httpx.ConnectError("certificate verify failed"), ssl.SSLCertVerificationError(1, "self-signed"))
    alone = grid._retry_invoker.should_giveup
    assert alone(busy)
    be_patient(grid, 2)
    assert not grid._retry_invoker.should_giveup(busy)
    assert not grid._retry_invoker.should_giveup(raised(httpx.ReadError("ssl: connection reset"), OSError()))
    assert grid._retry_invoker.should_giveup(stranger)
    grid.close()
