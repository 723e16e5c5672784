"""A device's state on disk: two phases, damage, power cuts, privacy."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedbc
from fedbc import storage
from fedbc.flower.messages import MessageError, Order
from fedbc.flower.state import DeviceState, read_state

ORDER = Order("run-1", "fedbc", 0, 3, 1, 0, 7, 1, 20, "", 600)
LIKE = {"x": np.zeros(3, np.float32), "multiplier": np.zeros((), np.float32)}


def state(value):
    return {"x": np.full(3, value, np.float32), "multiplier": np.float32(value)}


def order(round, accepted):
    return replace(ORDER, round=round, accepted=accepted)


@pytest.fixture
def files(tmp_path):
    return DeviceState(tmp_path / "state", "run-1", 0, LIKE)


def test_a_state_counts_once_the_server_took_its_round(files):
    assert files.settle(order(1, 0)) is None
    files.keep_pending(1, state(1))
    kept = files.settle(order(2, 1))
    assert kept.round == 1
    assert kept.state["x"].tolist() == [1, 1, 1]
    files.keep_pending(2, state(2))
    assert files.settle(order(3, 1)).round == 1  # round 2 was not taken
    assert not (files.folder / "pending.safetensors").exists()
    files.keep_pending(3, state(3))
    assert files.settle(order(3, 3)).state["multiplier"] == 3
    assert files.settle(order(4, 3)).state["multiplier"] == 3
    assert read_state(files.folder, LIKE).round == 3
    assert files.reports == []


def test_an_old_order_changes_nothing(files):
    files.keep_pending(3, state(3))
    files.settle(order(4, 3))
    files.keep_pending(4, state(4))
    with pytest.raises(MessageError, match="it is old"):
        files.settle(order(2, 1))
    assert files.settle(order(5, 4)).round == 4


def test_a_state_of_another_round_is_set_aside(files):
    files.keep_pending(1, state(1))
    files.settle(order(2, 1))
    assert files.settle(order(9, 7)) is None
    assert "server took round 7 last" in files.reports[0]
    assert (files.folder / "state.set-aside-1.safetensors").exists()


@pytest.mark.parametrize("where", [0, 9, 40, -1])
def test_damage_is_detected_set_aside_and_reported(files, where):
    files.keep_pending(1, state(1))
    files.settle(order(2, 1))
    file = files.folder / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[where] ^= 0xFF
    file.write_bytes(content)
    assert files.settle(order(2, 1)) is None
    assert "set aside as" in files.reports[0]
    assert (files.folder / "state.set-aside-1.safetensors").read_bytes() == content
    files.keep_pending(2, state(5))
    assert files.settle(order(3, 2)).round == 2


def test_a_file_of_another_device_is_not_taken(files, tmp_path):
    files.keep_pending(1, state(1))
    other = DeviceState(files.root, "run-1", 1, LIKE)
    other.folder.mkdir()
    os.rename(files.folder / "pending.safetensors", other.folder / "pending.safetensors")
    assert other.settle(order(2, 1)) is None
    assert "another run, device or version" in other.reports[0]


def test_leftovers_of_a_power_cut_are_removed_and_locks_are_not(files):
    """The record of a secure sum is locked while the device trains for it, and its lock lies here."""
    names = [".state.safetensors.x1y2", ".secure.safetensors.lock"]
    for name in names:
        (files.own_folder() / name).touch()
    files.keep_pending(1, state(1))
    assert [(files.folder / name).exists() for name in names] == [False, True]


def test_files_are_for_their_owner_only(files):
    files.keep_pending(1, state(1))
    files.settle(order(2, 1))
    assert (files.folder / "state.safetensors").stat().st_mode & 0o777 == 0o600
    assert files.folder.stat().st_mode & 0o777 == 0o700


WRITER = """
    import sys, itertools
    from pathlib import Path
    import numpy as np
    from fedbc.flower.state import DeviceState
    size = 200_000
    like = {"x": np.zeros(size, np.float32), "y": np.zeros(size, np.float32)}
    files = DeviceState(Path(sys.argv[1]), "run-1", 0, like)
    for round in itertools.count(1):
        files.keep_pending(round, {"x": np.full(size, round, np.float32), "y": np.full(size, round, np.float32)})
        print(round, flush=True)
"""


def test_a_kill_in_mid_write_leaves_the_old_or_the_new_state(tmp_path):
    """The disk cannot be cut off here; what can: a process that is killed at a random instant of its writing."""
    env = os.environ | {"PYTHONPATH": str(Path(fedbc.__file__).parents[1])}
    rng = random.Random(1)
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)], stdout=subprocess.PIPE, env=env
        )
        first = int(writer.stdout.readline())
        time.sleep(rng.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        said = [first, *(int(line) for line in writer.stdout.read().split())]
        writer.wait(timeout=20)
        writer.stdout.close()
        arrays, facts = storage.read_arrays(tmp_path / "run-1" / "device-0" / "pending.safetensors")
        assert facts["round"] - said[-1] in (0, 1)
        assert np.unique(arrays["device.x"]).tolist() == [facts["round"]]
        assert np.unique(arrays["device.y"]).tolist() == [facts["round"]]
