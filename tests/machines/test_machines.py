"""One run on many machines: real processes on loopback, equal to one process, killed, resumed, and refused."""

import contextlib
import json

import numpy as np
import pandas as pd
import pytest
import worlds
from needs import missing

import fedbc
from fedbc.machines import Machines, owners
from fedbc.simulation import checkpoints

TIMES = ["seconds", "train_seconds"]


def test_machines_give_what_one_gives(tmp_path):
    """Up to the rounding of sums; the machines among themselves to the bit."""
    worlds.train(tmp_path / "one")
    sent = worlds.world(tmp_path, "train", 2, tmp_path / "two")
    assert sent[0].split()[-1] == sent[1].split()[-1]
    for algorithm in worlds.methods():
        one = fedbc.load(tmp_path / "one" / f"{algorithm.name}-0")
        parts = [fedbc.load(tmp_path / "two" / f"{algorithm.name}-{index}") for index in range(2)]
        tables = [part.history.drop(columns=TIMES) for part in parts]
        pd.testing.assert_frame_equal(tables[0], tables[1], check_exact=True)
        pd.testing.assert_frame_equal(tables[0], one.history.drop(columns=TIMES), rtol=1e-4, atol=1e-6)
        pd.testing.assert_frame_equal(parts[0].devices, one.devices, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(parts[0].multipliers, one.multipliers, rtol=1e-4, atol=1e-6)
        shares = [set(part.participants.tolist()) for part in parts]
        assert shares[0] | shares[1] == set(one.participants.tolist())
        assert not shares[0] & shares[1]
        models = dict(zip(one.participants.tolist(), one.participants_models["w"], strict=True))
        for part in parts:
            for device, own in zip(part.participants.tolist(), part.participants_models["w"], strict=True):
                np.testing.assert_allclose(own, models[device], rtol=1e-4, atol=1e-5)


def test_a_machine_that_is_killed_costs_no_more_than_the_rounds_since_the_checkpoint(tmp_path, capsys):
    """The others end with one line; the parts of the checkpoint resume on another number of machines."""
    worlds.scaffold(worlds.ROUNDS, str(tmp_path / "whole"))
    whole = json.loads(capsys.readouterr().out)
    for killed in (1, 0):
        folder = tmp_path / f"killed-{killed}"
        outcomes = worlds.ended(worlds.start(tmp_path, "scaffold", 2, worlds.ROUNDS, folder, killed))
        assert outcomes[killed][0] == -9
        code, _, error = outcomes[1 - killed]
        assert code == 1, error
        assert "round 7 was the last whole one" in error or "round 6 was the last whole one" in error
        assert f"the last whole checkpoint is in {folder}" in error
        assert {part.round for part in checkpoints.parts(folder / "checkpoint.safetensors")} == {6}
    worlds.scaffold(worlds.ROUNDS, str(tmp_path / "killed-0"))  # on one machine
    assert json.loads(capsys.readouterr().out) == pytest.approx(whole, rel=1e-5)
    assert not checkpoints.parts(tmp_path / "killed-0" / "checkpoint.safetensors")
    told = worlds.world(tmp_path, "scaffold", 3, worlds.ROUNDS, tmp_path / "killed-1", -1)
    for one in told:
        assert json.loads(one.strip().splitlines()[-1]) == pytest.approx(whole, rel=1e-5)
    (part,) = [p for p in checkpoints.parts(tmp_path / "killed-1" / "checkpoint.safetensors") if p.machine == 2]
    part.beside(tmp_path / "killed-1" / "checkpoint.safetensors").unlink()
    with pytest.raises(fedbc.InputError, match="holds no whole checkpoint"):
        worlds.scaffold(worlds.ROUNDS + 1, str(tmp_path / "killed-1"))


def test_a_first_checkpoint_that_was_not_finished(tmp_path):
    """Where a machine died before all had written their parts, Ray begins anew; what is whole stays."""
    file = tmp_path / "checkpoint.safetensors"
    first, second = checkpoints.Part(3, 0, 2).beside(file), checkpoints.Part(3, 1, 2).beside(file)
    first.touch()
    checkpoints.drop_unfinished(file)
    assert not checkpoints.exists(file)
    first.touch()
    second.touch()
    checkpoints.Part(6, 1, 2).beside(file).touch()
    checkpoints.drop_unfinished(file)
    assert len(checkpoints.parts(file)) == 3


def test_machines_with_addresses_of_their_own(tmp_path, capsys):
    """Where the machine's name stands for 127.0.0.1, sums go by the address that leads to machine 0 all the same."""
    worlds.scaffold(worlds.ROUNDS, str(tmp_path / "whole"))
    whole = json.loads(capsys.readouterr().out)
    with contextlib.ExitStack() as stack:
        try:
            inside = stack.enter_context(worlds.network(2))
        except OSError as error:
            missing(f"machines in network namespaces: {error}", "FEDBC_REQUIRE_ROOT")
        processes = worlds.start(
            tmp_path, "scaffold", 2, worlds.ROUNDS, tmp_path / "run", -1, host="10.231.7.1", inside=inside
        )
        for code, out, error in worlds.ended(processes):
            assert code == 0, error
            assert json.loads(out) == pytest.approx(whole, rel=1e-5)  # and nothing else on standard output


def test_ctrl_c_on_one_machine_ends_the_run_on_all_with_the_round(tmp_path):
    for code, _, error in worlds.ended(worlds.start(tmp_path, "interrupted", 2, worlds.ROUNDS, tmp_path / "run", 1)):
        assert code != 0
        assert f"stopped after round 7 of 9; its state is in {tmp_path / 'run'}" in error.strip().splitlines()[-1]
    assert {part.round for part in checkpoints.parts(tmp_path / "run" / "checkpoint.safetensors")} == {7}


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_machine_that_falls_silent_is_given_up_with_one_line(tmp_path, stopped):
    """A stopped process closes no connection; machine 0 has the service by which the others would hear of it."""
    processes = worlds.start(tmp_path, "stopped", 2, worlds.ROUNDS, tmp_path / "run", stopped)
    try:
        _, error = processes[1 - stopped].communicate(timeout=worlds.PATIENCE)
    finally:
        for process in processes:
            process.kill()
        processes[stopped].communicate()
    assert processes[1 - stopped].returncode == 1
    last = error.strip().splitlines()[-1]
    assert f"fedbc: machine {1 - stopped} of 2 heard nothing of machine {stopped} for" in last, error
    assert {part.round for part in checkpoints.parts(tmp_path / "run" / "checkpoint.safetensors")} == {6}


def test_each_machine_loads_its_own_devices_only(tmp_path, capsys):
    told = [one.strip().splitlines()[-1] for one in worlds.world(tmp_path, "own-share", 2, -1)]
    worlds.own_share(Machines())
    alone = capsys.readouterr().out.strip()
    devices = [json.loads(one[: one.index("]") + 1]) for one in (*told, alone)]
    assert sorted(devices[0] + devices[1]) == devices[2] == list(range(11))
    rows, sums, losses = zip(*(one[one.index("]") + 1 :].split() for one in (*told, alone)), strict=True)
    assert int(rows[0]) + int(rows[1]) == int(rows[2])
    assert sums[0] == sums[1] == sums[2]
    assert losses[0] == losses[1]
    assert float(losses[0]) == pytest.approx(float(losses[2]), rel=1e-5)


@pytest.mark.parametrize(
    ("work", "arguments", "line"),
    [
        ("other-data", (), "machine 1 of 2 has another federation than machine 0"),
        ("other-number", (), "machine 1 of 2 has another number of machines than machine 0: 3 and 2"),
        ("other-version", (), "machine 1 of 2 has another software than machine 0: fedbc 9.9"),
        ("own-share", (1,), "machine 1 of 2 could not load its data: clinic-3.csv is not here"),
    ],
)
def test_machines_that_do_not_belong_together_are_refused_by_name(tmp_path, work, arguments, line):
    for index, (code, _, error) in enumerate(worlds.ended(worlds.start(tmp_path, work, 2, *arguments))):
        assert code == 1
        last = error.strip().splitlines()[-1]
        assert line in last or (index == 1 and "clinic-3.csv is not here" in last)


def test_devices_are_dealt_evenly():
    work = np.random.default_rng(0).lognormal(4, 2, 1001)
    for machines in (2, 3, 7):
        by_work, by_number = owners(1001, machines, work), owners(1001, machines)
        for owner in (by_work, by_number):
            counts = np.bincount(owner, minlength=machines)
            assert counts.max() - counts.min() <= 1
        shares = np.bincount(by_work, work) / work.sum() * machines
        heaviest = work.max() / work.sum() * machines
        assert shares.max() <= max(1.05, 1.01 * heaviest)


def test_alone_there_is_nobody_to_tell():
    alone = Machines()
    assert alone.sum({"a": 1.5}) == {"a": 1.5}
    assert alone.words("x") == ["x"]
    assert alone.any(True, False) == [True, False]
    assert alone.gather(np.arange(3)).shape == (1, 3)
    assert alone.sent == 0
