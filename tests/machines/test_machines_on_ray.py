"""A run that Ray places: a machine is killed, all start anew from the checkpoint, to the same end."""

import pickle
import subprocess
import sys

import pandas as pd
import pytest
import worlds

import fedbc
from fedbc.cli import main


def test_a_machine_that_dies_is_started_anew(tmp_path):
    """`fedbc run --ray --machines`, in a process of its own for what Ray leaves open."""
    process = subprocess.Popen([sys.executable, worlds.__file__, "ray", str(tmp_path)], stdout=-1, stderr=-1, text=True)
    ((code, out, error),) = worlds.ended([process])
    assert code == 0, error
    assert "start again from checkpoint-round-" in error
    assert "Results: run" in out
    shared = fedbc.load(tmp_path / "run")
    alone = fedbc.run(fedbc.RunSpec(**worlds.ON_RAY), tmp_path / "alone", quiet=True)
    times = ["seconds", "train_seconds"]
    pd.testing.assert_frame_equal(shared.history.drop(columns=times), alone.history.drop(columns=times), rtol=1e-3)
    assert sorted(shared.participants) == sorted(alone.participants)
    assert list((tmp_path / "board").rglob("events*")), "paths are meant from where the command was typed"


def test_bad_input(tmp_path):
    spec = fedbc.RunSpec({"name": "fedbc"})
    with pytest.raises(fedbc.InputError, match="machines=0"):
        fedbc.run(spec, tmp_path / "run", ray="local", machines=0)
    with pytest.raises(fedbc.InputError, match="machines=1000 is not accepted: each takes a core"):
        fedbc.run(spec, tmp_path / "run", ray="local", machines=1000)
    with pytest.raises(fedbc.InputError, match="machines=2 needs ray"):
        fedbc.run(spec, tmp_path / "run", machines=2)
    (tmp_path / "there").write_text("")
    with pytest.raises(fedbc.InputError, match="exists already"):
        fedbc.run(spec, tmp_path, ray="local", machines=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ray", "local"], "--ray local needs --machines N"),
        (["--ray", "local", "--machines", "auto"], "machines='auto' is not accepted"),
        (["--ray", "local", "--machines", "2", "--machine", "0"], "takes no --machine and --meet"),
        (["--ray", "127.0.0.1:9", "--machines", "2"], "ray='127.0.0.1:9' is not accepted: nobody"),
    ],
)
def test_bad_words(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedbc", "--rounds", "1", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_divergence_comes_home_from_another_process():
    there = fedbc.Diverged("too far", round=3, device=1, result=object())
    here = pickle.loads(pickle.dumps(there))
    assert (str(here), here.round, here.device, here.result) == ("too far", 3, 1, None)
