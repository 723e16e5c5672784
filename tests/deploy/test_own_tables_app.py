"""`fedbc deploy init --data clinics.csv`: an app whose devices read tables of their own, without processes."""

import importlib
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from inprocess import direct_grid, write_keys

import fedbc
from fedbc import InputError
from fedbc.cli import main
from fedbc.data import from_own_table
from fedbc.flower.server import finish, prepare
from fedbc.flower.settings import Deployment, algorithm_from

TORCH = """
import torch
import fedbc

def make(features, classes, hidden=3):
    return fedbc.torch.model(
        torch.nn.Sequential(torch.nn.Linear(features, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes))
    )
"""
OWN = ("--data", "clinics.csv", "--label", "diagnosis", "--device", "clinic")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "clinic": np.resize(["Clinic 10", "Clinic 2", "Ward A"], 70),
            "age": rng.normal(60, 10, 70).round(),
            "scanner": rng.choice(["old", "new", None], 70),
        }
    )
    frame["diagnosis"] = np.where(frame["age"] + rng.normal(0, 5, 70) > 60, "ill", "well")
    frame.to_csv("clinics.csv", index=False)
    (tmp_path / "my_model.py").write_text(TORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def init(*arguments):
    with pytest.raises(SystemExit) as end:
        main(["deploy", "init", *arguments])
    return end.value.code


@pytest.mark.parametrize(
    ("name", "options", "algorithm"),
    [
        ("plain", (), fedbc.FedBC()),
        ("modules", ("--model", "my_model.py:make", "--model-arguments", "hidden=4"), fedbc.FedAvg()),
    ],
)
def test_devices_with_tables_of_their_own_end_where_the_simulator_does(place, monkeypatch, name, options, algorithm):
    assert not init(name, *OWN, *options, "--algorithm", algorithm.name, "--rounds", "2")
    monkeypatch.syspath_prepend(str(place / name))
    app = importlib.import_module(name)
    try:
        config = {"algorithm.name": algorithm.name, "run.devices": 3, "run.rounds": 2, "run.join-seconds": 0}
        config |= {"run.out": str(place / "run"), "run.keys": write_keys(place / "keys", 3)}
        strategy = prepare(algorithm_from(config), app.model, Deployment.from_config(config))
        grid = direct_grid(app.client, config, place / "state", 3)
        for node in grid.nodes.values():
            node.config["data"] = str(place / name / "data" / f"{node.config['partition-id']}.csv")
        fedbc.RunFolder(place / "run").write_meaning(app.MEANING)
        strategy.start(grid)
        deployed = fedbc.load(finish(strategy))
    finally:
        for module in (name, f"{name}_meaning"):
            sys.modules.pop(module, None)
    spec = fedbc.RunSpec(
        {"name": algorithm.name},
        {"name": "own", "file": "clinics.csv", "label": "diagnosis", "device": "clinic"},
        {"name": "own", "file": "my_model.py", "arguments": {"hidden": 4}} if options else {},
    )
    federation = spec.build_part("data")
    wanted = fedbc.simulate(algorithm, spec.build_part("model"), federation, rounds=2)
    for ours, theirs in zip(jax.tree.leaves(deployed.global_model), jax.tree.leaves(wanted.global_model), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 if options else 1e-6)
    assert deployed.meaning == federation.meaning
    assert deployed.devices["device"].tolist() == wanted.devices["device"].tolist()
    np.testing.assert_allclose(deployed.history["local_accuracy"], wanted.history["local_accuracy"])


def test_a_device_takes_only_its_own_rows(place):
    frame = pd.read_csv("clinics.csv")
    federation = fedbc.data.from_frame(frame, label="diagnosis", device="clinic")
    own = frame[frame["clinic"] == "Clinic 10"]
    for rows in (own, own.drop(columns="clinic"), own.sample(frac=1, random_state=1).sort_index()):
        alone = from_own_table(federation.meaning, rows, 1)
        assert alone.device_names == ("Clinic 10",)
        np.testing.assert_array_equal(alone.train.x, federation.train.of(1)[0])
        np.testing.assert_array_equal(alone.test.y, federation.test.of(1)[1])
    for rows, words in (
        (frame, "the table has rows of 'Clinic 2', but device 1 is 'Clinic 10'"),
        (own.assign(diagnosis="dead"), "label='dead' is unknown"),
        (own.drop(columns="age"), "column='age' is unknown"),
    ):
        with pytest.raises(InputError, match=words):
            from_own_table(federation.meaning, rows, 1)


def test_what_does_not_go_together_is_one_line(place, capsys):
    np.savez("arrays.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2, device=[0, 0, 1, 1])
    for arguments, words in (
        (["--data", "synthetic"], "is not yours"),
        (["--model", "my_model.py"], "data is missing"),
        ([*OWN, "--devices", "3"], "cannot both be given"),
        (["--data", "arrays.npz"], "holds no tables"),
    ):
        assert init("app", *arguments) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
    assert not (place / "app").exists()
