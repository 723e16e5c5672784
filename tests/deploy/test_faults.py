"""Faults, with real processes: devices that die, lie or dawdle; servers that are killed; too few devices."""

import contextlib
import os
import re
import signal
import sqlite3
import sys
import time
import tomllib
from pathlib import Path

import jax
import numpy as np
from flwr.app import Error, Message
from inprocess import Small
from loopback import ROOT, Loopback, slowness, until

import fedbc
from fedbc import storage
from fedbc.errors import InputError

BAD_APP = Path(__file__).parent / "bad_app"
HOSTILE = Path(__file__).parent / "hostile.py"


def global_model(folder):
    return fedbc.load(folder).global_model


def close(a, b, tolerance=1e-6):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)


def test_devices_that_die_lie_or_dawdle(tmp_path, subtests):
    """Round 1: NaN. Round 2: wrong shapes, a late answer, a SIGKILL. Round 3: lambda out of bounds, a damaged state,
    a node that has the key of another device, and the killed device is back. In every round one more device, which does
    not run this package, sends what it likes.
    """
    with Loopback(tmp_path) as loop:
        loop.prepare(7)
        loop.superlink()
        loop.superexec()
        loop.register()
        loop.supernode(0)
        loop.supernode(1)
        stalled = tmp_path / "stalled"
        killed = loop.supernode(2, node_config=f'faults="good,stall,good" stalled="{stalled}"')
        loop.supernode(3, node_config='faults="nan,shapes,lambda"')
        loop.supernode(4, node_config='faults="good,late,good"')
        hostile = loop.start("hostile", sys.executable, HOSTILE, f"127.0.0.1:{loop.port}", "keys/device-5")
        until(lambda: loop.link.text.count("Activated node_id") == 6, 60, "six nodes")
        out = "runs/bad"
        limit = round(30 * max(1, slowness() / 2))  # six devices compile in round 1, at once
        run = loop.run(BAD_APP, run__round_seconds=limit)
        state = loop.app / "state"

        until(stalled.exists, 120, "order of round 2 on device 2")
        killed.end(signal.SIGKILL)
        at = time.monotonic()
        loop.supernode(2, node_config='faults="good,good,good"', name="device-2-again")
        double = loop.start(
            "double-of-0",
            *("fedbc", "deploy", "node", "--device", 0, "--superlink", f"127.0.0.1:{loop.port}"),
            *("--root-certificates", "keys/ca.crt", "--key", "keys/device-6", "--state-dir", tmp_path / "double"),
        )
        pending = until(lambda: pending_of(state, device=1, round=2), 60, "state of device 1 after round 2")
        pending.write_bytes(pending.read_bytes()[:-8] + b"damaged!")
        loop.hears(out, "round 2: sum of", limit + 30)
        closed = time.monotonic() - at
        assert closed < limit + 10 * slowness()
        loop.wait(run, 180)
        log = loop.log(out)
        rows = fedbc.load(loop.app / out).devices.set_index(["round", "device"])

        with subtests.test("the round closes with the rest, at its deadline"):
            assert "round 2: sum of 2 devices, without 2, 3, 4, 5" in log
        with subtests.test("the killed device tells so, and nobody waits for it"):
            # "unavailable" if the server asks in the instant between the old process's going and the new one's coming
            why = "(the device was started anew while it worked|Error: Node Unavailable)"
            assert re.search(rf"round 2, device 2: node \d+ failed \({why}", log)
        with subtests.test("the killed device returns with its state"):
            assert "device 2 lost its state" not in log
            before, after = rows.loc[1, 2], rows.loc[3, 2]
            np.testing.assert_allclose(after.tolerance, before.tolerance + 0.01 * before.multiplier, rtol=1e-5)
            assert after.tolerance > 0
        with subtests.test("what is wrong is rejected with a warning that names it"):
            named = r"device 3 \(node \d+\) is rejected: its "
            assert re.search(f"round 1: {named}summand.plain.w has values that are not finite", log)
            assert re.search(rf"round 2: {named}summand.weighted.b is float32 of shape \(11,\), not", log)
            assert re.search(f"round 3: {named}lambda is 50, out of the bounds 0 to 1", log)
            assert re.search(rf"round 2, device 4: node \d+ did not answer within {limit} s", log)
            assert re.search(r"round 2, device 4: node \d+ answered too late, not used", log)
        with subtests.test("a node is the device whose key it has"):
            assert re.search(r"node \d+ is device 6, the run has 0 to 5: not used", log)
            assert not (tmp_path / "double").exists() or not list((tmp_path / "double").glob("*/device-*"))
            assert "round " not in double.text
        with subtests.test("what a hostile device sends is its own fault alone"):
            named = r"device 5: node \d+"
            assert re.search(
                f"round 1, {named} is rejected: its ConfigRecord has \\d+ bytes where at most \\d+ are needed", log
            )
            assert re.search(f"round 2, {named} did not send all of its answer within {limit} s", log)
            assert re.search(f"round 3, {named} is rejected: it is not a message with at most 1 records", log)
            assert not hostile.ended, hostile.text
        with subtests.test("a damaged state is set aside and reported, the device starts anew"):
            assert re.search(r"device 1 lost its state of round 2 and started anew", log)
            assert list(state.glob("*/device-1/pending.set-aside-1.safetensors"))
            assert rows.loc[3, 1].tolerance == 0
        with subtests.test("the sum is clean"):
            assert rows.index.tolist() == [
                (1, 0),
                (1, 1),
                (1, 2),
                (1, 4),
                (2, 0),
                (2, 1),
                *[(3, d) for d in (0, 1, 2, 4)],
            ]
            close(global_model(loop.app / out), replayed(tmp_path))


def pending_of(state, *, device, round):
    """The file with a device's state after a round that the server has not confirmed, once it is there."""
    for file in state.glob(f"*/device-{device}/pending.safetensors"):
        with contextlib.suppress(InputError):  # renamed this instant
            if storage.read_arrays(file)[1]["round"] == round:
                return file
    return None


def replayed(folder):
    """The same run without processes, in which the bad devices fail where they were left out."""
    federation = fedbc.data.synthetic(devices=6, seed=1)
    config = tomllib.loads((BAD_APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = {f"{table}__{key.replace('-', '_')}": v for table in config for key, v in config[table].items()}
    run = Small(
        folder / "replay",
        federation,
        fedbc.models.logistic(60, 10),
        **settings | {"run__out": str(folder / "replay" / "run")},
    )
    left_out = {(1, 3), (1, 5), (2, 2), (2, 3), (2, 4), (2, 5), (3, 3), (3, 5)}

    def answer(order, work):
        number, device = order.content["fedbc"]["round"], order.content["fedbc"]["device"]
        if order.metadata.message_type == "train" and (number, device) in left_out:
            return [Message(Error(0, "left out"), reply_to=order)]
        if (number, device) == (3, 1):
            (file,) = run.folder.glob("state/*/device-1/pending.safetensors")
            file.unlink()
        return [work()]

    for node in run.grid.nodes.values():
        node.answer = answer
    return run.run().global_model


def assert_no_secret_is_shown(loop):
    """The secrets of a run that goes on, in what `ps` shows to everybody."""
    with contextlib.closing(sqlite3.connect(loop.app / "state" / "superlink.db", timeout=60)) as database:
        tokens = [token for (token,) in database.execute("SELECT token FROM task WHERE token IS NOT NULL")]
    secrets = [*tokens, (loop.app / "keys" / "superexec.secret").read_text().strip()]
    shown = [p.joinpath("cmdline") for process in loop.processes for p in map(process_folder, process.members(""))]
    lines = [file.read_text() for file in shown if file.exists()]
    assert tokens
    assert len(lines) > 4
    assert not [line for line in lines for secret in secrets if secret in line]


def process_folder(number):
    return Path("/proc", str(number))


def test_servers_that_are_killed_and_too_few_devices(tmp_path, subtests):
    """The ServerApp is killed in round 2 or soon after, and the run started again; the SuperLink is killed later."""
    app = ROOT / "examples" / "deploy_synthetic"
    out = "runs/killed"
    config = {
        "algorithm__name": "scaffold",
        "run__devices": 2,
        "run__rounds": 12,  # of half a second each on a quiet machine: what is to happen before the last one has time
        "run__evaluate_every": 12,
        "run__min_devices": 2,  # an answer that is lost in spite of all has its round done again
        "run__wait_seconds": 300,
        "run__out": out,
    }
    with Loopback(tmp_path) as loop:
        loop.prepare(2)
        link = loop.superlink()
        loop.superexec()
        loop.register()
        loop.supernode(0)
        loop.supernode(1)
        loop.run(app, **config)
        loop.hears(out, "round 1 done", 90)
        (server,) = until(lambda: loop.exec.members("flwr-serverapp"), 5, "ServerApp")
        with subtests.test("other users of the machine find no secret in command lines"):
            assert_no_secret_is_shown(loop)
        with subtests.test("only the SuperLink opens a port"):
            assert [process.listens() for process in loop.processes] == [{loop.port}, set(), set(), set()]
        os.kill(server, signal.SIGKILL)

        run = loop.run(app, **config)
        loop.hears(out, r"goes on after round \d", 60)
        # As when the server's disk is full: for longer than its database waits, nothing can be written.
        with contextlib.closing(sqlite3.connect(loop.app / "state" / "superlink.db", timeout=60)) as database:
            database.execute("BEGIN IMMEDIATE")
            until(lambda: " 503" in loop.link.text, 60, "error of the server")
            time.sleep(3)
            database.rollback()
        done = loop.log(out).count(" done: ")
        until(lambda: loop.log(out).count(" done: ") > done, 90, "round that was done after the errors")
        link.end(signal.SIGKILL)
        loop.superlink()
        loop.wait(run, 180)
        result = fedbc.load(loop.app / out)
        with subtests.test("the run ends as if nothing had happened"):
            federation = fedbc.data.synthetic(devices=2, seed=1)
            wanted = fedbc.simulate(
                fedbc.SCAFFOLD(), fedbc.models.logistic(60, 10), federation, rounds=12, epochs=2, seed=1
            )
            assert result.rounds == 12
            close(result.global_model, wanted.global_model)

        with subtests.test("too few devices: it waits, says so and gives up"):
            few = "runs/few"
            run = loop.run(app, run__devices=3, run__min_devices=3, run__wait_seconds=5, run__out=few)
            loop.wait(run, 90)
            assert re.search(r"waiting: \d of 3 devices are there; gives up in \d s", loop.log(few))
            assert re.search(r"round 1 needs 3 devices, 2 are there after 5 s: given up", loop.log(few))
            assert "failed" in loop.shell(f"flwr list --run-id {run} --format json")
