"""`fedbc run` shared by machines: one shows and writes, every part is there, and wrong words are refused."""

import subprocess
import sys

import pytest
import worlds

import fedbc
from fedbc.cli import main

RUN = ["run", "fedbc", "--rounds", "3", "--devices", "5", "--lanes", "1", "--out", "run"]


def test_a_run_of_two_machines(tmp_path):
    meet = f"127.0.0.1:{worlds.free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "fedbc", *RUN, "--machines", "2", "--machine", str(index), "--meet", meet],
            cwd=tmp_path,
            stdout=-1,
            stderr=-1,
            text=True,
        )
        for index in range(2)
    ]
    first, second = worlds.ended(processes)
    assert first[0] == second[0] == 0, first[2] + second[2]
    assert "Results: run" in first[1]
    assert "Results" not in second[1]
    result = fedbc.load(tmp_path / "run")
    assert result.rounds == 3
    assert sorted(result.participants) == list(range(5))
    assert result.participants_models["w"].shape == (5, 60, 10)
    (tmp_path / "run" / "models-machine-1.safetensors").unlink()
    with pytest.raises(fedbc.InputError, match="models-machine-1"):
        fedbc.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--machines", "2"], "needs --machine"),
        (["--machine", "1"], "machines is missing"),
        (["--machines", "two", "--machine", "0", "--meet", "a:1"], "machines='two' is not accepted"),
        (["--machines", "auto", "--machine", "0"], "the launcher tells them"),
    ],
)
def test_bad_input(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([*RUN, *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
