"""A run that Ray places: a machine is killed, all start anew from the checkpoint, to the same end."""

import json
import subprocess
import sys

import pytest
import worlds

import fedbc


def test_a_machine_that_dies_is_started_anew(tmp_path):
    """In a process of its own, for what Ray leaves open."""
    process = subprocess.Popen([sys.executable, worlds.__file__, "ray", str(tmp_path)], stdout=-1, stderr=-1, text=True)
    ((code, out, error),) = worlds.ended([process])
    assert code == 0, error
    told = json.loads(out.strip().splitlines()[-1])
    assert told["killed"] == 1
    spec = fedbc.RunSpec(**told["spec"])
    alone = fedbc.run(spec, tmp_path / "alone", quiet=True)
    assert told["rounds"] == alone.rounds
    assert told["last"] == pytest.approx(alone.history[worlds.LAST].iloc[-1].tolist(), rel=1e-4)
    assert told["participants"] == sorted(alone.participants.tolist())


def test_bad_input(tmp_path):
    spec = fedbc.RunSpec({"name": "fedbc"})
    with pytest.raises(fedbc.InputError, match="machines=0"):
        fedbc.runs.run_on_ray([spec], tmp_path / "run", ray="local", machines=0)
    with pytest.raises(fedbc.InputError, match="exists already"):
        fedbc.runs.run_on_ray([spec], tmp_path, ray="local", machines=2)
