"""What a terminal shows of a long command, and that nothing else is written elsewhere."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from fedbc import progress
from fedbc.runs import RunSpec, run_missing
from fedbc.runs.many import labels

GRID = """
[data]
name = "synthetic"
devices = 4
[run]
rounds = 3
[[sweep]]
algorithm = { name = "fedavg" }
[sweep.grid]
"run.seed" = [0, 1]
[[sweep]]
algorithm = { name = "fedavg", lr = 1e30 }
run = { rounds = 60 }
"""


def on_a_terminal(arguments, folder, columns=140):
    """The exit code and all that a command writes to a terminal of so many columns, without its control sequences."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedbc", *arguments], cwd=folder, env=environment, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # Linux says so when the last writer has closed it
            break
        if not part:
            break
        written += part
    os.close(ours)
    return process.wait(timeout=60), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode()).replace("\r", "\n")


def test_a_run_on_a_terminal_shows_rounds_rate_time_and_accuracy(tmp_path):
    code, text = on_a_terminal(["run", "fedavg", "--devices", "4", "--rounds", "40", "--out", "r"], tmp_path)
    assert code == 0, text
    assert re.search(r"fedavg ━+ +0/40 +compiling", text)
    assert re.search(r"fedavg ━+ 40/40 \d+(\.\d)? rounds/s \d+(\.\d)? s global accuracy \d+\.\d %", text), text


def test_a_sweep_on_a_terminal_shows_runs_and_their_rounds(tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    code, text = on_a_terminal(["sweep", "grid.toml", "--workers", "1"], tmp_path)
    assert code == 0, text
    assert re.search(r"runs +━+ 0/3", text)
    assert re.search(r"  fedavg lr 0\.01 rounds 3 seed 1 ━+ 0/3", text), text
    done = r"runs ━+ 3/3 (\d+(\.\d)? runs/s|\d+(\.\d)? s/run) \d+(\.\d)? s last global accuracy \d+\.\d %, 1 failed"
    assert re.search(done, text), text


def test_workers_say_how_far_their_runs_are(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(progress.SweepBars, "round", lambda self, worker, row: told.append((worker, row)))
    spec = RunSpec({"name": "fedavg"}, {"name": "synthetic", "devices": 4}, run={"rounds": 2})
    run_missing([spec], tmp_path / "r.jsonl", workers=1)
    worker, row = told[0]
    assert (worker, row["round"]) == (0, 1)
    assert 0 < row["global_accuracy"] <= 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_quiet_is_quiet_on_a_terminal_too(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.shown(quiet=True) as display:
        display.run("fedbc", 2)({"round": 1, "global_accuracy": 0.5})
        display.say("something")
        with progress.download("file") as show:
            show(1, 2)
    assert sys.stderr.getvalue() == ""


def test_counting_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.shown() as display:
        for done in (0, 1, 2):
            display.count("theory", done, 2)
        display.say("two [cases] were run")
    assert re.search(r"theory.*2/2", sys.stderr.getvalue())
    assert "two [cases] were run\n" in sys.stderr.getvalue()


def test_a_display_within_a_display_is_the_same_one():
    with progress.shown() as outer:
        with progress.shown() as inner:
            assert inner is outer is progress.current()
        assert progress.current() is outer
    assert progress.current() is not outer


def test_pace_is_of_what_was_done_since_the_first_report(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    pace = progress.Pace()
    assert pace.rate is None
    pace.at(41)  # a resumed run, after compiling
    assert pace.rate is None
    assert pace.left(100) is None
    now[0] = 110
    pace.at(61)
    assert pace.rate == 2
    assert pace.left(100) == 19.5
    now[0] = 112  # the time left runs on between reports
    assert pace.left(100) == 17.5
    now[0] = 200
    assert pace.left(100) == 0


@pytest.mark.parametrize(
    ("rate", "unit", "said"),
    [
        (None, "round", ""),
        (250.4, "round", "250 rounds/s"),
        (1.25, "round", "1.2 rounds/s"),
        (0.5, "run", "2.0 s/run"),
        (1 / 90, "run", "90 s/run"),
        (1 / 7325, "run", "2:02:05/run"),
        (2.5e6, "bytes", "2.5 MB/s"),
    ],
)
def test_speeds_are_said_as_people_say_them(rate, unit, said):
    assert progress.speed(rate, unit) == said


def test_scores():
    nan = float("nan")
    assert progress.score({"global_accuracy": 0.853, "global_loss": 1}) == "global accuracy 85.3 %"
    assert progress.score({"global_accuracy": nan, "global_loss": 1.25}) == "global loss 1.250"
    assert progress.score({"global_accuracy": nan}) == progress.score({"round": 1}) == ""


def test_labels_name_what_differs():
    specs = [RunSpec({"name": "fedbc", "lr": lr}, run={"seed": s}) for lr in (0.1, 0.2) for s in (0, 1)]
    specs.append(RunSpec({"name": "fedprox"}))
    tables = [spec.to_dict() for spec in specs]
    assert labels(tables)[0] == "fedbc lr 0.1 seed 0"
    assert labels(tables)[-1] == "fedprox lr 0.01 seed 0"
    assert labels(tables[:1]) == ["fedbc"]
