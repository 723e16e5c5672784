"""What keeps a deployment running, and what its machines keep to: scripts, standstill, units, the small things."""

import logging
import os
import signal
import string
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

import fedbc
from fedbc import storage
from fedbc.errors import InputError
from fedbc.flower import make_keys, server
from fedbc.flower.app_process import reply_of
from fedbc.flower.diary import Diary
from fedbc.flower.units import write_units

TEMPLATES = Path(fedbc.__file__).parent / "flower" / "template"


def test_whatever_ends_is_started_again_without_limit(tmp_path):
    """`keep` of the scripts, with a `sleep` that notes how long it should take instead of taking it."""
    env = string.Template((TEMPLATES / "env.sh.template").read_text()).substitute(port=8000)
    (tmp_path / "env.sh").write_text(env)
    (tmp_path / "sleep").write_text('#!/bin/sh\necho "$1" >> pauses\n')
    last = 'kill -TERM "$PPID"; exec tail -f /dev/null'
    ways = f"case $(wc -l < starts) in 1) exit 0;; 2) exit 1;; 3) kill -KILL $$;; 12) {last};; esac"
    (tmp_path / "ends").write_text(f"#!/bin/sh\necho x >> starts\n{ways}\n")
    for name in ("sleep", "ends"):
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", ". ./env.sh && keep ./ends"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 143
    pauses = [int(line) for line in (tmp_path / "pauses").read_text().split()]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert "it ended with code 0: again in 1 s" in done.stderr
    assert "it ended with code 137: again in 4 s" in done.stderr


STANDS_STILL = """
import sys, threading, time
from types import SimpleNamespace
from fedbc.flower import node
node.HEARTBEAT_SECONDS, node.STANDSTILL_SECONDS = 0.2, 5.0
node.AppProcess = lambda: None
link = SimpleNamespace(asked_at=time.monotonic(), once=lambda what, request: None)
device = node.DeviceNode(link, {}, None)
threading.Thread(target=device._beat, daemon=True).start()
end = time.monotonic() + (100 if sys.argv[1] == "stands still" else 11)
while time.monotonic() < end:
    time.sleep(0.1)
    if sys.argv[1] == "asks":
        link.asked_at = time.monotonic()
    if sys.argv[1] == "works":
        device._moved = time.monotonic()
print("ran on")
"""


def test_a_device_that_stands_still_is_ended():
    """Its script starts it anew; one that works, or waits for a server that does not answer, does not stand still."""
    processes = {
        what: subprocess.Popen(
            [sys.executable, "-c", STANDS_STILL, what], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for what in ("stands still", "asks", "works")
    }
    said = {what: process.communicate(timeout=120) for what, process in processes.items()}
    assert processes["stands still"].returncode == 1
    assert "Timeout" in said["stands still"][1]
    assert said["asks"][0] == said["works"][0] == "ran on\n"


LEAVES = """
import signal, sys, time
from pathlib import Path
from fedbc.flower import node

class Leaves:
    def __init__(self, link, config, diary):
        pass

    def serve(self):
        print("serves", flush=True)
        while True:
            time.sleep(0.1)

    def leave(self):
        print("leaves", flush=True)
        sys.stdin.readline()
        print("left", flush=True)

node.DeviceNode, node.Link = Leaves, lambda *given: None
node.LEAVE_SECONDS = int(sys.argv[1])
options = {"--device": "0", "--superlink": "x:1", "--root-certificates": "ca.crt", "--key": sys.argv[2]}
node.main([word for pair in options.items() for word in pair] + ["--state-dir", "state"])
"""


@pytest.mark.parametrize(
    ("server", "seconds", "first", "code"),
    [
        ("answers", 100, signal.SIGTERM, 143),
        ("answers", 100, signal.SIGINT, 130),
        ("does not answer", 1, signal.SIGTERM, -signal.SIGALRM),
    ],
)
def test_a_device_that_is_stopped_leaves(server, seconds, first, code, tmp_path):
    """systemd and the script both end it: what comes second must not keep it from telling the server."""
    (key, *_) = [file for file in make_keys(tmp_path / "keys", devices=1) if file.name == "device-0"]
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVES, str(seconds), key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout.readline() == "serves\n"
    process.send_signal(first)
    assert process.stdout.readline() == "leaves\n"
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    if server == "answers":
        process.stdin.write("\n")
        process.stdin.flush()
    assert process.stdout.read() == ("left\n" if server == "answers" else "")
    assert process.wait(60) == code
    process.stdin.close()
    process.stdout.close()


def test_a_device_s_diary_forgets_no_order(tmp_path, monkeypatch):
    """The heartbeat's thread writes at the same time; a node that was killed tells the server of its orders by it."""
    write, writes, may_write = storage.write_atomically, threading.Event(), threading.Event()

    def slowly(*given, **options):
        if not writes.is_set():
            writes.set()
            may_write.wait(10)
        write(*given, **options)

    monkeypatch.setattr(storage, "write_atomically", slowly)
    diary = Diary(tmp_path / "device-0.json")
    beat = threading.Thread(target=diary.note)
    beat.start()
    writes.wait(10)
    work = threading.Thread(target=diary.note, kwargs={"orders": ["one"]})
    work.start()
    work.join(0.5)
    may_write.set()
    beat.join()
    work.join()
    assert Diary(diary.file).facts["orders"] == ["one"]


def test_units_hold_what_they_run_to_its_folder(tmp_path):
    folder = tmp_path / "app"
    (folder / "keys").mkdir(parents=True)
    with pytest.raises(InputError, match="nothing to run"):
        write_units(folder, tmp_path / "units", path="/usr/bin")
    for name in ("superlink.sh", "supernode.sh", "keys/device-2", "keys/device-2.pub"):
        (folder / name).write_text("")
    made = {
        file.name: file.read_text() for file in write_units(folder, tmp_path / "units", path="/opt/bin", memory="2G")
    }
    assert set(made) == {"fedbc-superlink.service", "fedbc-superexec.service", "fedbc-device-2.service"}
    for text in made.values():
        for line in ("Restart=always", "MemoryMax=2G", "ProtectSystem=strict", f"ReadWritePaths={folder}"):
            assert line in text.splitlines()
    assert f"ExecStart=/bin/sh {folder}/supernode.sh 2" in made["fedbc-device-2.service"]
    assert "Environment=HOST=0.0.0.0" in made["fedbc-superlink.service"]
    for given in ({"memory": "lots"}, {"memory": "2G\nUser=root"}, {"path": "/a\nUser=root"}, {"path": '/a"b'}):
        with pytest.raises(InputError, match=f"{next(iter(given))}=.* is not accepted"):
            write_units(folder, tmp_path / "units", **{"path": "/usr/bin"} | given)
    (unit, *_) = write_units(folder, tmp_path / "units", path="/a%b/c d")
    assert 'Environment="PATH=/a%%b/c d"' in unit.read_text().splitlines()
    (tmp_path / "a b").mkdir()
    with pytest.raises(InputError, match="without spaces"):
        write_units(tmp_path / "a b", tmp_path / "units", path="/usr/bin")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (SystemExit(0), "the run ended: it was stopped"),
        (KeyboardInterrupt(), "the run ended: it was stopped"),
        (ValueError("no more"), "the run ended: no more"),
    ],
)
def test_a_run_that_ends_early_says_so_in_its_log(end, said, tmp_path):
    logging.getLogger("flwr.fedbc").setLevel(logging.INFO)
    with pytest.raises(type(end)), server._logged_to(tmp_path / "log.txt"):
        raise end
    assert said in (tmp_path / "log.txt").read_text()


def test_orders_whose_time_is_over_are_not_worked_on(deployed):
    """A device slower than the deadline would work through one after the other, and never catch up."""
    run = deployed(algorithm__name="fedavg", run__rounds=1, run__evaluate="", run__round_seconds=30)

    def late(order, work):
        order.metadata.__dict__["_created_at"] -= 31
        return [work()]

    run.grid.nodes[101].answer = late
    assert run.run().devices.device.tolist() == [0]
    said = [answer.error.reason for answer in run.grid.answers if answer.has_error()]
    assert said
    assert all("is not worked on: its time was over" in reason for reason in said)


def test_a_killed_run_leaves_nothing_behind(deployed):
    run = deployed(algorithm__name="fedavg", run__rounds=2, run__evaluate="")
    first = run.strategy(run__rounds=1)
    first.start(run.grid)
    leftover = first.journal.file.with_name(f".{first.journal.file.name}.abc")
    leftover.write_bytes(b"half a checkpoint")
    run.run()
    assert not leftover.exists()


def test_the_same_arrays_are_the_same_bytes_in_every_process(tmp_path):
    code = """
import sys
import numpy as np
from pathlib import Path
from fedbc import storage
names = [f"device.{n}.{part}" for n in range(20) for part in ("w", "b")]
storage.write_arrays(Path(sys.argv[1]), {name: np.arange(3.0) for name in names}, {"b": 1, "a": [2]})
"""
    for number in (1, 2):
        env = os.environ | {"PYTHONHASHSEED": str(number)}
        subprocess.run([sys.executable, "-c", code, tmp_path / str(number)], env=env, check=True, timeout=120)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_light_devices_answer_as_the_benchmark_needs(deployed, monkeypatch):
    """`benchmarks.deployment` has devices that speak as others do, and do not train."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from benchmarks.deployment import LightApp

    def light(order, work):
        app, sent = LightApp(), reply_of(order)
        app.give({}, b"", {i: sent.objects[i] for i in sorted(sent.objects, key=lambda i: i == order.object_id)})
        reply = app.wait(1)
        answer = inflate_object_from_contents(ObjectTree.FromString(reply.tree).object_id, dict(reply.objects))
        return [answer]

    run = deployed(algorithm__name="fedbc", run__rounds=2, run__diagnostics=False)
    for node in run.grid.nodes.values():
        node.answer = light
    result = run.run()
    assert result.devices.device.tolist() == [0, 1, 0, 1]
    assert result.history.global_accuracy.tolist() == [1, 1]
