"""Interruptions: a run that is killed, stopped or resumed ends with the same bits as one that was left alone."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedbc
from fedbc import storage

CLI = [sys.executable, "-m", "fedbc"]
RUN = ["run", "fedbc", "--devices", "6", "--sample", "3", "--momentum", "0.5", "--seed", "4", "--evaluate-every", "7"]


def same_run(a, b):
    for name in ("multipliers", "tolerances", "participants"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for tree in ("global_model", "local_models"):
        x, y = storage.named(getattr(a, tree)), storage.named(getattr(b, tree))
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_array_equal(x[name], y[name])
    times = ["seconds", "train_seconds"]
    assert a.history.drop(columns=times).equals(b.history.drop(columns=times))
    assert a.devices.equals(b.devices)


def start(*arguments, cwd):
    return subprocess.Popen(
        [*CLI, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_round(folder, number, process):
    """Until the run has checkpointed at least so many rounds."""
    file = folder / "checkpoint.safetensors"
    for _ in range(3000):
        assert process.poll() is None, process.stderr.read()
        if file.exists() and storage.read_arrays(file)[1]["round"] >= number:
            return
        time.sleep(0.02)
    raise AssertionError("the run did not get under way in a minute")


def test_killed_at_a_random_moment_and_resumed(tmp_path):
    rounds = ["--rounds", "400", "--checkpoint-every", "3"]
    whole = subprocess.run([*CLI, *RUN, *rounds, "--out", "whole"], cwd=tmp_path, capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    process = start(*RUN, *rounds, "--out", "killed", cwd=tmp_path)
    wait_for_round(tmp_path / "killed", random.randrange(1, 150), process)
    time.sleep(random.random() * 0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "killed" / "summary.json").exists()
    resumed = subprocess.run([*CLI, "run", "--resume", "killed"], cwd=tmp_path, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    same_run(fedbc.load(tmp_path / "whole"), fedbc.load(tmp_path / "killed"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopping_keeps_what_is_done_and_says_how_to_go_on(tmp_path, how):
    """By Ctrl-C, or by `kill` or a cluster's time limit."""
    process = start(*RUN, "--rounds", "100000", "--checkpoint-every", "5", "--out", "stopped", cwd=tmp_path)
    wait_for_round(tmp_path / "stopped", 5, process)
    os.kill(process.pid, how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.count("\n") == 1
    assert "go on with: fedbc run --resume stopped" in errors
    assert "stopped after round" in errors
    done = storage.read_arrays(tmp_path / "stopped" / "checkpoint.safetensors")[1]["round"]
    assert f"stopped after round {done} of 100000" in errors
    resumed = subprocess.run(
        [*CLI, "run", "--resume", "stopped", "--rounds", str(done + 2)], cwd=tmp_path, capture_output=True, text=True
    )
    assert resumed.returncode == 0, resumed.stderr
    assert fedbc.load(tmp_path / "stopped").rounds == done + 2


def test_resume_in_python(small, tiny_model, tmp_path):
    algorithm = fedbc.FedBC(lr=0.1, dual_lr=0.1)
    setting = {"epochs": 2, "batch_size": 5, "sample": 2, "seed": 1, "evaluate_every": 2}
    whole = fedbc.simulate(algorithm, tiny_model, small, rounds=7, **setting)
    fedbc.simulate(algorithm, tiny_model, small, rounds=3, **setting, checkpoint=tmp_path, evaluate=["global"])
    with pytest.raises(fedbc.InputError, match="belongs to another run: its run evaluate is"):
        fedbc.simulate(algorithm, tiny_model, small, rounds=7, **setting, checkpoint=tmp_path, resume=True)
    # The last of a run's rounds is always evaluated, so stopping after an even round leaves no trace of the stop.
    fedbc.simulate(algorithm, tiny_model, small, rounds=4, **setting, checkpoint=tmp_path)
    resumed = fedbc.simulate(algorithm, tiny_model, small, rounds=7, **setting, checkpoint=tmp_path, resume=True)
    same_run(whole, resumed)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "text"])
def test_damaged_checkpoints_are_refused(small, tiny_model, tmp_path, damage):
    algorithm = fedbc.FedAvg()
    fedbc.simulate(algorithm, tiny_model, small, rounds=1, checkpoint=tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[-3] ^= 1
    else:
        content = bytearray() if damage == "empty" else bytearray(b"this is no checkpoint")
    file.write_bytes(bytes(content))
    with pytest.raises(fedbc.InputError, match=r"checkpoint\.safetensors is damaged"):
        fedbc.simulate(algorithm, tiny_model, small, rounds=2, checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": fedbc.FedAvg(lr=0.02)}, "algorithm lr is 0.01, here it is 0.02"),
        ({"algorithm": fedbc.FedProx()}, "algorithm mu is None, here it is 0.1"),
        ({"seed": 2}, "run seed is 0, here it is 2"),
        ({"model": fedbc.models.logistic(4, 4)}, "model name is"),
        ({"lanes": 1}, "run lanes is 2, here it is 1"),
    ],
)
def test_foreign_checkpoints_are_refused(small, tiny_model, tmp_path, change, message):
    setting = {
        "algorithm": fedbc.FedAvg(),
        "model": tiny_model,
        "federation": small,
        "rounds": 1,
        "checkpoint": tmp_path,
    }
    fedbc.simulate(**setting, lanes=2)
    with pytest.raises(fedbc.InputError, match=f"belongs to another run: its {message}"):
        fedbc.simulate(**setting | {"lanes": 2} | change, resume=True)


def test_other_data_are_refused(make_federation, small, tiny_model, tmp_path):
    fedbc.simulate(fedbc.FedAvg(), tiny_model, small, rounds=1, checkpoint=tmp_path)
    with pytest.raises(fedbc.InputError, match="belongs to another run: its data checksum"):
        fedbc.simulate(fedbc.FedAvg(), tiny_model, make_federation(seed=1), rounds=2, checkpoint=tmp_path, resume=True)
