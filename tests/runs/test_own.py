"""Runs on one's own data and with one's own model: every command takes them, by their content, with their names."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
import torch

import fedbc
from fedbc import InputError, RunSpec
from fedbc.cli import main
from fedbc.reports import compare
from fedbc.reports.comparison import grouped
from fedbc.runs import RunFolder, read_toml
from fedbc.runs.own import load_model
from fedbc.watch.runs import WatchedRun

MODEL = """
import fedbc

def make(features, classes, hidden=4):
    return fedbc.models.mlp(features, hidden, classes)

def broken(features):
    return 1 / 0

def nothing():
    return 3
"""
OWN = ("--data", "clinics.csv", "--label", "diagnosis", "--device", "clinic")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age = rng.normal(60, 10, 90).round()
    names = np.resize(["Clinic 7", "Clinic 10", "7"], 90)
    kinds = np.where(age + rng.normal(0, 5, 90) > 60, "ill", "well")
    pd.DataFrame({"clinic": names, "age": age, "diagnosis": kinds}).to_csv("clinics.csv", index=False)
    (tmp_path / "my_model.py").write_text(MODEL)
    return tmp_path


def spec(**data: object) -> RunSpec:
    own = {"name": "own", "file": "clinics.csv", "label": "diagnosis", "device": "clinic"}
    return RunSpec({"name": "fedbc", "lr": 0.1}, own | data, {}, {"rounds": 2})


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code, arguments


def test_a_run_is_what_its_files_hold_not_where_they_lie(place: Path) -> None:
    here = spec()
    (place / "there").mkdir()
    (place / "clinics.csv").rename(place / "there" / "other.csv")
    there = spec(file="there/other.csv")
    assert there.identity == here.identity
    assert there.data_name == "other"
    assert spec(file="there/other.csv", seed=2).identity != here.identity
    frame = pd.read_csv("there/other.csv")
    frame.assign(age=frame["age"] + 1).to_csv("there/other.csv", index=False)
    assert spec(file="there/other.csv").identity != here.identity
    with pytest.raises(InputError, match="is not what it was"):
        RunSpec.from_dict(json.loads(json.dumps(there.to_dict()))).build_part("data")


def test_the_model_has_the_sizes_of_the_data(place: Path) -> None:
    assert spec().model == {"name": "logistic", "features": 1, "classes": 2}
    assert replace(spec(), model={"name": "mlp", "hidden": 3}).to_dict()["model"]["features"] == 1
    quantity = spec(label="age", task="regression")
    assert quantity.model == {"name": "linear", "features": 2, "outputs": 1}
    result = fedbc.run(quantity, "quantity", quiet=True)
    assert result.history["global_test_loss"].iloc[-1] < result.history["global_test_loss"].iloc[0]
    own = replace(spec(), model={"name": "own", "file": "my_model.py"})
    assert own.build_part("model").name == "mlp(1, 4, 2, 0)"
    (place / "my_model.py").write_text(MODEL + "\n# changed\n")
    with pytest.raises(InputError, match="no longer the file"):
        own.build_part("model")
    for function, words in (
        ("broken", r"ZeroDivisionError.*\(line 8\)"),
        ("nothing", "gives a int"),
        ("x", "no function"),
    ):
        with pytest.raises(InputError, match=words):
            replace(spec(), model={"name": "own", "file": "my_model.py", "function": function}).build_part("model")


def test_commands_take_one_s_own_data_and_model(place: Path) -> None:
    """Names of devices reach the terminal, the folder, the pages and who looks on; a resumed run has the same bits."""
    run(
        "run",
        "fedbc",
        *OWN,
        "--model",
        "my_model.py:make",
        "--model-arguments",
        "hidden=3",
        "--rounds",
        "4",
        "--out",
        "a",
    )
    run(
        "run",
        "fedbc",
        *OWN,
        "--model",
        "my_model.py:make",
        "--model-arguments",
        "hidden=3",
        "--rounds",
        "2",
        "--out",
        "b",
    )
    run("run", "--resume", "b", "--rounds", "4")
    first, second = fedbc.load("a"), fedbc.load("b")
    np.testing.assert_array_equal(first.global_model["hidden"]["w"], second.global_model["hidden"]["w"])
    names = ["7", "Clinic 7", "Clinic 10"]
    assert first.devices["device"].tolist()[:3] == names
    assert WatchedRun("a", RunFolder("a")).look().devices["device"].tolist()[:3] == names
    together = compare(["a"])
    assert together.devices["device"].tolist() == names
    assert together.devices["local_accuracy"].notna().all()
    page = together.page().html()
    assert "Clinic 10" in page
    assert "device 1" not in page
    run("data", "show", "clinics.csv", *OWN[2:])


TORCH = """
import torch
import fedbc

def make(features, classes):
    return fedbc.torch.model(torch.nn.Linear(features, classes))

def kept(features, classes):
    net = torch.nn.Linear(features, classes)
    torch.nn.init.constant_(net.weight, 0.5)
    return fedbc.torch.model(net)
"""


def test_a_module_starts_where_the_run_s_seed_says(place: Path) -> None:
    """A file's module is made anew in each process: by chance, methods would start from different weights."""
    (place / "torch_model.py").write_text(TORCH)

    def first(seed: int, function: str = "make") -> np.ndarray:
        torch.manual_seed(int(time.time_ns() % 1000))  # as a new process has it
        model = load_model("torch_model.py", function, features=3, classes=2)
        return np.asarray(model.init(jax.random.key(seed))["weight"])

    np.testing.assert_array_equal(first(0), first(0))
    assert not np.array_equal(first(0), first(1))
    np.testing.assert_array_equal(first(0, "kept"), np.full((2, 3), 0.5, np.float32))
    model = load_model("torch_model.py", features=3, classes=2)
    assert jax.eval_shape(model.init, jax.random.key(0))["weight"].shape == (2, 3)


def test_own_models_are_told_apart_by_their_files_names(place: Path) -> None:
    (place / "wide.py").write_text(MODEL)
    one = replace(spec(), model={"name": "own", "file": "my_model.py"})
    other = replace(spec(), model={"name": "own", "file": "wide.py", "arguments": {"hidden": 3}})
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "my_model.py").write_text(MODEL)
    moved = replace(spec(), model={"name": "own", "file": "elsewhere/my_model.py"}).with_seed(5)
    results = [fedbc.run(s, f"r{i}", quiet=True) for i, s in enumerate((one, other, moved))]
    found = grouped(results)
    assert {name: len(group) for name, group in found.items()} == {
        "fedbc, my_model.py, without arguments": 2,
        "fedbc, wide.py, hidden 3": 1,
    }


def test_files_of_settings_take_them_from_their_own_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = '[data]\nfile = "clinics.csv"\nlabel = "diagnosis"\ndevice = "clinic"\n[model]\nfile = "my_model.py"\n'
    (place / "run.toml").write_text(tables + "[run]\nrounds = 1\n")
    (place / "grid.toml").write_text(tables + '[run]\nrounds = 1\n[[sweep]]\nalgorithm = { name = "fedavg" }\n')
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    assert read_toml(place / "run.toml")["data"]["name"] == "own"
    run("run", "fedavg", "--config", "../run.toml", "--out", "r")
    run("sweep", "../grid.toml", "--workers", "1", "--quiet")
    line = json.loads((place / "grid.jsonl").read_text().splitlines()[0])
    assert line["spec"]["model"]["name"] == "own"
    assert line["summary"]["rounds"] == 1


def test_runs_that_predict_quantities_are_ordered_by_their_losses(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = '[data]\nfile = "clinics.csv"\nlabel = "age"\ndevice = "clinic"\ntask = "regression"\n[run]\nrounds = 2\n'
    grid = '[[sweep]]\nalgorithm = { name = "fedavg" }\n[sweep.grid]\n"algorithm.lr" = [0.001, 0.1]\n'
    (place / "grid.toml").write_text(tables + grid)
    run("sweep", "grid.toml", "--workers", "1")
    said = capsys.readouterr().out
    assert "global test loss" in said
    assert said.index("0.1 ") < said.index("0.001")
    quantity = ("--data", "clinics.csv", "--label", "age", "--device", "clinic", "--task", "regression")
    for command in (("tune", "fedavg"), ("calibrate",)):
        with pytest.raises(SystemExit) as end:
            main([*command, *quantity, "--rounds", "2"])
        assert end.value.code == 2
        told = capsys.readouterr().err
        assert "predicts quantities, so there is no accuracy to choose by" in told
        assert told.count("\n") == 1
    assert not (place / "runs").exists()


def test_mistakes_are_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--data", "clinic.csv"], "does not exist"),
        (["--data", "clinics.csv", "--device", "clinic"], "label is missing"),
        ([*OWN[:2], "--label", "diagnose", "--device", "clinic"], "did you mean 'diagnosis'"),
        ([*OWN, "--model", "my_model.py:broken"], "line 8"),
        ([*OWN, "--model-hidden", "3"], "--model-hidden=3 does not apply"),
        (["--data", "mnits"], "did you mean 'mnist'"),
        (["--label", "x"], "--label=x does not apply to data synthetic"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["run", "fedbc", *arguments, "--rounds", "1"])
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
    assert not (place / "runs").exists()
