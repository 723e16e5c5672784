"""The live history: what a reader sees of a run that goes on, ends, crashes, is killed, is resumed."""

import json
import os
import signal
import subprocess
import sys

import pytest

import fedbc
from fedbc.runs import CallEachRound, RunFolder, RunSpec, begin, execute_in, live
from fedbc.runs.live import Follower, recorded


def rounds_of(follower):
    follower.refresh()
    return [row["round"] for row in follower.rows]


def test_a_reader_sees_rounds_as_they_are_written(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    follower = Follower(RunFolder(tmp_path))
    assert not follower.refresh()
    with recorded(RunFolder(tmp_path), 5) as record:
        assert rounds_of(follower) == []
        assert follower.state == "running"
        assert follower.begun["rounds"] == 5
        record({"round": 1, "seconds": 0.1, "global_accuracy": float("nan")})
        record({"round": 2, "seconds": 0.1})
        assert rounds_of(follower) == []  # written once a second at most
        now[0] += 1
        record({"round": 3, "seconds": 0.1})
        assert rounds_of(follower) == [1, 2, 3]
        assert follower.rows[0]["global_accuracy"] is None
    follower.refresh()
    assert (follower.state, follower.why) == ("finished", "")


def test_rounds_at_a_checkpoint_are_written_at_once(tmp_path):
    follower = Follower(RunFolder(tmp_path))
    with recorded(RunFolder(tmp_path), 9, every=2) as record:
        for number in range(1, 6):
            record({"round": number})
        assert rounds_of(follower) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (KeyboardInterrupt("stopped after round 2"), "stopped", "stopped after round 2"),
        (fedbc.Diverged("training diverged", round=3, device=1), "failed", "training diverged"),
        (ValueError(), "failed", "ValueError"),
    ],
)
def test_how_a_run_ended(tmp_path, error, state, why):
    with pytest.raises(type(error)), recorded(RunFolder(tmp_path), 5):
        raise error
    follower = Follower(RunFolder(tmp_path))
    assert follower.refresh()
    assert (follower.state, follower.why) == (state, why)


def test_a_resumed_run_takes_its_rounds_back(tmp_path):
    with recorded(RunFolder(tmp_path), 4, every=1) as record:
        for number in (1, 2, 3):
            record({"round": number, "value": "old"})
    follower = Follower(RunFolder(tmp_path))
    with recorded(RunFolder(tmp_path), 4, every=1) as record:
        record({"round": 2, "value": "new"})
        assert rounds_of(follower) == [1, 2]
        assert follower.state == "running"
        assert [row["value"] for row in follower.rows] == ["old", "new"]


def test_a_line_that_was_cut_off_is_passed_over(tmp_path):
    with recorded(RunFolder(tmp_path), 4, every=1) as record:
        record({"round": 1})
    with RunFolder(tmp_path).live.open("a") as file:
        file.write('{"round": 2, "glo')
    follower = Follower(RunFolder(tmp_path))
    assert rounds_of(follower) == [1]
    with recorded(RunFolder(tmp_path), 4, every=1) as record:
        record({"round": 2})
    assert rounds_of(follower) == rounds_of(Follower(RunFolder(tmp_path))) == [1, 2]


def test_another_run_in_the_same_folder_is_read_anew(tmp_path):
    with recorded(RunFolder(tmp_path), 4, every=1) as record:
        record({"round": 1})
        record({"round": 2})
    follower = Follower(RunFolder(tmp_path))
    assert rounds_of(follower) == [1, 2]
    RunFolder(tmp_path).live.unlink()
    assert rounds_of(follower) == []
    with recorded(RunFolder(tmp_path), 4, every=1) as record:
        record({"round": 1})
    assert rounds_of(follower) == [1]


HELD = """
import sys
from fedbc.runs import RunFolder
from fedbc.runs.live import recorded
with recorded(RunFolder(sys.argv[1]), 9, every=1) as record:
    record({"round": 1})
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_run_whose_process_was_killed_is_stopped_and_two_cannot_run_at_once(tmp_path):
    command = [sys.executable, "-c", HELD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        follower = Follower(RunFolder(tmp_path))
        follower.refresh()
        assert follower.state == "running"
        with pytest.raises(fedbc.InputError, match="is being run by another process"), recorded(RunFolder(tmp_path), 9):
            pass
        os.kill(process.pid, signal.SIGKILL)
    follower.refresh()
    assert (follower.state, follower.why) == ("stopped", "its process was killed")
    assert rounds_of(follower) == [1]


def test_what_cannot_be_recorded_does_not_stop_a_run(tmp_path):
    nowhere = RunFolder(tmp_path / "nowhere")
    with pytest.warns(UserWarning, match=r"live\.jsonl cannot be written"), recorded(nowhere, 2) as record:
        record({"round": 1})


def test_a_run_folder_has_its_history_while_it_runs(tmp_path):
    spec = RunSpec({"name": "fedavg"}, {"name": "synthetic", "devices": 4}, run={"rounds": 3})
    folder, seen = tmp_path / "run", []
    begin(RunFolder(folder), spec)
    follower = Follower(RunFolder(folder))
    result = execute_in(
        RunFolder(folder), spec, [CallEachRound(lambda row: seen.append(rounds_of(follower)))], checkpoint_every=1
    ).finished()
    assert seen == [[1], [1, 2], [1, 2, 3]]
    assert follower.state == "finished"
    assert [json.loads(json.dumps(r)) for r in result.history.to_dict("records")] == follower.rows
