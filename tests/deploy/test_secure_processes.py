"""Secure aggregation with real processes, as `fedbc deploy init --secure` writes them: server and three devices."""

import signal

import jax
import numpy as np
import pytest
from flwr.app import Error, Message
from inprocess import Small
from loopback import Loopback, until

import fedbc
from fedbc.algorithms import ALGORITHMS
from fedbc.flower import write_app
from fedbc.secure.record import File

LOGISTIC = fedbc.models.logistic(60, 10)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Loopback(tmp_path_factory.mktemp("loopback")) as loop:
        loop.prepare(3, "--secure")
        loop.superlink()
        loop.superexec()
        loop.register()
        loop.devices = [loop.supernode(device) for device in range(3)]
        yield loop


def app(folder, name):
    """The app of another method, for the same federation."""
    write_app(folder / f"with-{name}", algorithm=name, devices=3, rounds=1, secure=True)
    return folder / f"with-{name}"


def data():
    return fedbc.data.synthetic(devices=3, seed=1)


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["fedbc", "ditto", "fedavg"])
def test_a_secure_deployment_equals_the_simulator(name, federation, tmp_path):
    what = ["global", "local"] if name == "fedbc" else []
    out = str(federation.app / "runs" / name)
    federation.wait(federation.run(app(tmp_path, name), run__evaluate=",".join(what), run__out=out), 120)
    found = fedbc.load(out)
    method = ALGORITHMS[name](lambda_max=10.0) if name == "fedbc" else ALGORITHMS[name]()
    wanted = fedbc.simulate(method, LOGISTIC, data(), rounds=1, evaluate=what)
    same(found.global_model, wanted.global_model)
    assert found.devices.columns.tolist() == ["round", "device"]
    for column in ("global_accuracy", "local_accuracy") if what else ("drift",):
        np.testing.assert_allclose(found.history[column], wanted.history[column], rtol=1e-4)


def failing_in_round_2(order, work):
    failed = Message(Error(0, "killed"), reply_to=order)
    return [failed if order.content["fedbc"]["round"] == 2 else work()]


def test_a_device_killed_after_its_shares_were_sent(federation, tmp_path):
    """The round's sum is that of the others: as in a plain run without the device in that round."""
    out, options = str(federation.app / "runs" / "killed"), {"run__evaluate": "", "run__epochs": 60, "run__rounds": 2}
    run = federation.run(app(tmp_path, "scaffold"), **options, run__out=out)

    def has_sent_its_shares():
        for file in federation.app.glob("state/killed-*/device-2/secure.safetensors"):
            record = File(file).load()
            if record is not None and (record.session.round, record.done) == (2, 2):
                return True
        return False

    until(has_sent_its_shares, 120, "shares of device 2 in round 2")
    federation.devices[2].end(signal.SIGKILL)
    federation.supernode(2, name="device-2-again")
    federation.wait(run, 180)
    found = fedbc.load(out)
    taken = found.devices[["round", "device"]].to_numpy().tolist()
    assert taken == [[1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    plain = Small(tmp_path, data(), LOGISTIC, algorithm__name="scaffold", run__move_factor=0.0, **options)
    plain.grid.nodes[102].answer = failing_in_round_2
    same(found.global_model, plain.run().global_model)
