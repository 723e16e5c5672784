"""An exported model answers as the run's own: PyTorch, ONNX; the card says what it is and how good on which device."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np
import onnx.reference
import pandas as pd
import pytest
import torch

import fedbc
from fedbc import FedBC, InputError, storage
from fedbc.cli import main
from fedbc.export import export, model_card
from fedbc.models import logistic, mlp
from fedbc.torch.models import MLP

CLINICS = pd.DataFrame(
    {
        "clinic": np.resize(["north", "south"], 60),
        "age": np.random.default_rng(0).normal(60, 9, 60),
        "ward": np.resize(["a", "b", "c"], 60),
    }
).assign(diagnosis=lambda f: np.where(f["age"] > 60, "ill", "well"))


def trained(model: Any) -> Any:
    federation = fedbc.data.from_frame(CLINICS, label="diagnosis", device="clinic")
    return fedbc.simulate(FedBC(lr=0.3, start="local", tolerance=1.0), model, federation, rounds=4, seed=1)


@pytest.mark.parametrize("model", [logistic(4, 2), mlp(4, 5, 2)], ids=["logistic", "mlp"])
@pytest.mark.parametrize("device", [None, "south"])
def test_other_libraries_give_the_same_outputs(model: Any, device: str | None, tmp_path: Path) -> None:
    result = trained(model)
    x = fedbc.data.encode(result.meaning.encoding, CLINICS)
    expected = result.predict(CLINICS, device, probabilities=True)
    network = MLP(4, 5, 2) if "hidden" in result.global_model else torch.nn.Linear(4, 2)
    export(result, tmp_path / "m", device=device, torch=True, onnx=True)
    network.load_state_dict(torch.load(tmp_path / "m" / "state_dict.pt"))
    np.testing.assert_allclose(network(torch.from_numpy(x)).softmax(1).detach(), expected, rtol=1e-4)
    session = onnx.reference.ReferenceEvaluator(str(tmp_path / "m" / "model.onnx"))
    (outputs,) = session.run(None, {"x": x})
    np.testing.assert_allclose(torch.from_numpy(outputs).softmax(1), expected, rtol=1e-4)


def test_the_folder_and_its_card(tmp_path: Path) -> None:
    result = trained(logistic(4, 2))
    files = export(result, tmp_path / "m", device="north", torch=True, onnx=True)
    assert [f.name for f in files] == [
        "meaning.json", "model-card.md", "model.onnx", "model.safetensors", "state_dict.pt",
    ]  # fmt: skip
    arrays, _ = storage.read_arrays(tmp_path / "m" / "model.safetensors")
    np.testing.assert_array_equal(arrays["w"], result.local_models["w"][0])
    card = model_card(result, "north")
    rows = result.evaluate().set_index("device")
    for name in ("north", "south"):
        own, common = (f"{100 * rows.loc[name, f'{kind}_accuracy']:.1f} %" for kind in ("local", "global"))
        assert f"| {name} | 6 | {common} | {own} |" in card
    for said in ("The own model of north", "## Limits", "lr = 0.3", "ward = a", "Classes: ill, well"):
        assert said in card


def test_what_has_no_such_form_is_refused(tmp_path: Path) -> None:
    result = fedbc.simulate(
        FedBC(lr=0.1),
        fedbc.models.Model(lambda key: {"a": np.zeros((60, 10), np.float32)}, lambda p, x: x @ p["a"]),
        fedbc.data.synthetic(devices=2),
        rounds=1,
    )
    with pytest.raises(InputError, match="cannot be written in this form"):
        export(result, tmp_path / "m", onnx=True)
    assert not (tmp_path / "m").exists()
    assert export(result, tmp_path / "m", device=1)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """run, runs, predict and export, as one would type them; the table's own file is not needed any more."""
    monkeypatch.chdir(tmp_path)
    CLINICS.to_csv("clinics.csv", index=False)

    def typed(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert (end.value.code or 0) == code, arguments
        return "".join(capsys.readouterr())

    typed(
        "run",
        "fedbc",
        "--data",
        "clinics.csv",
        "--label",
        "diagnosis",
        "--device",
        "clinic",
        "--rounds",
        "3",
        "--lr",
        "0.3",
    )
    assert "finished" in (listed := typed("runs"))
    assert "clinics" in listed
    assert fedbc.runs.list_runs().loc[0, "rounds"] == 3
    (tmp_path / "clinics.csv").rename(tmp_path / "gone.csv")
    typed("predict", "runs/fedbc-clinics-1", "gone.csv", "--local", "--out", "p.csv")
    told = pd.read_csv("p.csv")
    assert told["model"].tolist() == CLINICS["clinic"].tolist()
    expected = fedbc.load("runs/fedbc-clinics-1").predict(CLINICS, CLINICS["clinic"].tolist())
    assert told["prediction"].tolist() == expected.tolist()
    assert "prediction,probability,model" in typed("predict", "runs/fedbc-clinics-1", "gone.csv", "--device", "north")
    assert "already, which is to be added" in typed("predict", "runs/fedbc-clinics-1", "p.csv", code=2)
    typed("export", "runs/fedbc-clinics-1", "--out", "m", "--onnx", "--device", "south")
    assert "Not computed: " in (tmp_path / "m" / "model-card.md").read_text()
    typed("runs", "runs/fedbc-clinics-1", "--delete", "--yes")
    assert not (tmp_path / "runs" / "fedbc-clinics-1").exists()
    assert "holds no runs" in typed("runs", "m", "--delete", "--yes", code=2)
    assert (tmp_path / "m").exists()


def test_a_run_that_diverged_is_not_passed_on_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    CLINICS.assign(dose=1e6 * np.linspace(-1, 1, len(CLINICS)) ** 3).to_csv("clinics.csv", index=False)
    own = ["--data", "clinics.csv", "--label", "dose", "--device", "clinic"]
    said = {}
    for name, command in {
        "run": ["run", "fedavg", *own, "--rounds", "40", "--lr", "3", "--quiet", "--out", "all/div"],
        "export": ["export", "all/div", "--out", "m"],
        "predict": ["predict", "all/div", "clinics.csv"],
        "which": ["predict", "all", "clinics.csv"],
        "number": ["export", "all/div", "--out", "n", "--device", "0"],
    }.items():
        with pytest.raises(SystemExit):
            main(command)
        said[name] = capsys.readouterr().err
    assert "training diverged in round" in said["run"]
    result = fedbc.load("all/div")
    assert result.diverged in said["export"]
    assert result.diverged in said["predict"]
    assert f"Not for use: {result.diverged}" in Path("m/model-card.md").read_text()
    assert result.diverged in repr(result)
    assert html.escape(result.diverged) in result._repr_html_()
    assert "give one of all/div" in said["which"]
    assert "device='0' is unknown: choose one of" in said["number"]
