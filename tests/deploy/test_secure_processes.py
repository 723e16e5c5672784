"""Secure aggregation with real processes, as `fedbc deploy init --secure` writes them: server and three devices."""

import os
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
        loop.prepare(3, secure=True)
        loop.superlink()
        loop.superexec()
        loop.register()
        loop.devices = [loop.supernode(device) for device in range(3)]
        yield loop


WAIT = """
def wait(message, context, call_next):
    fields = message.content["fedbc"]
    if (fields["device"], fields["round"], fields.get("stage")) == (2, 2, "masked"):
        Path({place!r}, f"waits-{{fields['attempt']}}").touch()
        while not Path({place!r}, f"goes-on-{{fields['attempt']}}").exists():
            time.sleep(0.1)
    return call_next(message, context)


client = client_app(model, load_data, mods=[wait])
"""


def app(folder, name, *, waits=False):
    """The app of another method, for the same federation; device 2 `waits` before it masks its vector of round 2."""
    place = folder / f"with-{name}"
    write_app(place, algorithm=name, devices=3, rounds=1, secure=True)
    if waits:
        (file,) = place.glob("*.py")
        head, _, _ = file.read_text().partition("client = client_app(")
        file.write_text("import time\nfrom pathlib import Path\n\n" + head + WAIT.format(place=str(folder)))
    return place


def waiting(folder, *, after=0):
    """The attempt, later than another one, in which device 2 waits; 0 if it does not yet."""
    attempts = [int(file.name.removeprefix("waits-")) for file in folder.glob("waits-*")]
    return max((attempt for attempt in attempts if attempt > after), default=0)


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


def test_servers_killed_between_two_stages(federation, tmp_path):
    """The ServerApp, and then the SuperLink, when all shares are sent and device 2 has not yet masked its vector."""
    out, options = str(federation.app / "runs" / "anew"), {"run__evaluate": "", "run__rounds": 3}
    place = app(tmp_path, "scaffold", waits=True)
    federation.run(place, **options, run__out=out)
    first = until(lambda: waiting(tmp_path), 180, "order to mask in round 2")
    (server,) = until(lambda: federation.exec.members("flwr-serverapp"), 5, "ServerApp")
    os.kill(server, signal.SIGKILL)
    (tmp_path / f"goes-on-{first}").touch()
    run = federation.run(place, **options, run__out=out)
    second = until(lambda: waiting(tmp_path, after=first), 180, "order to mask in another attempt")
    federation.link.end(signal.SIGKILL)
    federation.superlink()
    (tmp_path / f"goes-on-{second}").touch()
    federation.wait(run, 180)
    found = fedbc.load(out)
    assert found.devices.device.tolist() == [0, 1, 2] * 3
    same(found.global_model, fedbc.simulate(fedbc.SCAFFOLD(), LOGISTIC, data(), rounds=3, evaluate=[]).global_model)


def test_a_device_killed_after_its_shares_were_sent(federation, tmp_path):
    """The round's sum is that of the others: as in a plain run without the device in that round."""
    out, options = str(federation.app / "runs" / "killed"), {"run__evaluate": "", "run__rounds": 2}
    run = federation.run(app(tmp_path, "scaffold", waits=True), **options, run__out=out)
    until(lambda: waiting(tmp_path), 180, "order to mask in round 2")
    (file,) = federation.app.glob("state/killed-*/device-2/secure.safetensors")
    assert list(File(file).load().answers) == ["keys", "shares"]
    federation.devices[2].end(signal.SIGKILL)
    federation.supernode(2, name="device-2-again")
    federation.wait(run, 180)
    found = fedbc.load(out)
    taken = found.devices[["round", "device"]].to_numpy().tolist()
    assert taken == [[1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    plain = Small(tmp_path, data(), LOGISTIC, algorithm__name="scaffold", run__move_factor=0.0, **options)
    plain.grid.nodes[102].answer = failing_in_round_2
    same(found.global_model, plain.run().global_model)
