"""What a command does, its function does in Python: the same files, the same numbers."""

import json
from pathlib import Path

import pandas as pd
import pytest

import fedbc
import fedbc.paper
from fedbc.cli import main
from fedbc.runs import Job, Lines, do_jobs

TINY = ["--devices", "4", "--rounds", "3", "--sample", "3"]
SPEC = fedbc.RunSpec({"name": "fedbc"}, {"name": "synthetic", "devices": 4}, run={"rounds": 3, "sample": 3, "lanes": 1})


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBC_LANES", "1")


def typed(*arguments):
    """Type a command; it must succeed."""
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    assert stop.value.code in (0, None)


def only_folder():
    """The one that a command made below runs/, and that a function without a folder takes, too."""
    (folder,) = Path("runs").iterdir()
    return folder


def written(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("summary.json")}


def history(folder):
    table = pd.read_csv(folder / "history.csv")
    return table.drop(columns=["seconds", "train_seconds"])


def test_a_run_and_going_on_with_it(tmp_path):
    typed("run", "fedbc", *TINY, "--lanes", "1", "--out", "typed")
    result = fedbc.run(SPEC, "called", quiet=True)
    pd.testing.assert_frame_equal(history(tmp_path / "typed"), history(tmp_path / "called"))
    stated = [json.loads((tmp_path / name / "spec.json").read_text()) for name in ("typed", "called")]
    assert stated[0] == stated[1]
    typed("run", "--resume", "typed", "--rounds", "5")
    longer = fedbc.resume("called", rounds=5, quiet=True)["fedbc"]
    assert (result.rounds, longer.rounds) == (3, 5)
    pd.testing.assert_frame_equal(history(tmp_path / "typed"), history(tmp_path / "called"))


def test_a_sweep(tmp_path):
    (tmp_path / "grid.toml").write_text(SPEC.to_toml() + '[[sweep]]\n[sweep.grid]\n"algorithm.lr" = [0.01, 0.1]\n')
    typed("sweep", "grid.toml", "--workers", "1", "--out", "typed.jsonl")
    grid = [fedbc.RunSpec({"name": "fedbc", "lr": lr}, SPEC.data, run=SPEC.run) for lr in (0.01, 0.1)]
    swept = fedbc.sweep(grid, "called.jsonl", workers=1, quiet=True)
    one, other = (Lines(tmp_path / name).read() for name in ("typed.jsonl", "called.jsonl"))
    numbers = [{key: {k: v for k, v in line["summary"].items() if "seconds" not in k} for key, line in lines.items()}
               for lines in (one, other)]  # fmt: skip
    assert numbers[0] == numbers[1]
    assert swept.table["algorithm.lr"].tolist() == [0.01, 0.1]


def test_a_comparison():
    typed("compare", "fedbc", "fedavg", *TINY, "--seeds", "1", "--workers", "1", "--lanes", "1")
    usual = only_folder()
    specs = {name: fedbc.RunSpec({"name": name}, SPEC.data, run=SPEC.run) for name in ("fedbc", "fedavg")}
    called = fedbc.run_comparison(specs, "called", seeds=1, workers=1, quiet=True)
    columns = ["method", "global_accuracy", "local_accuracy"]
    pd.testing.assert_frame_equal(
        called.table[columns],
        fedbc.compare(sorted((usual / "runs").iterdir()))
        .table.set_index("method")
        .loc[["fedbc", "fedavg"]]
        .reset_index()[columns],
    )
    began = written(usual / "runs")
    fedbc.run_comparison(specs, workers=1, quiet=True)  # finds the runs of the command
    assert (only_folder(), written(usual / "runs")) == (usual, began)
    with pytest.raises(fedbc.InputError, match="give a specification for each method"):
        fedbc.run_comparison({})


def test_tuning():
    search = ["lr=0.01,0.1", "dual_lr=0.001"]
    typed("tune", "fedbc", *TINY, "--grid", "own", *(f"--search={s}" for s in search), "--workers", "1", "--lanes", "1")
    usual = only_folder()
    tuned = fedbc.tune(SPEC, "called", grid="own", search=search, workers=1, quiet=True)
    assert (usual / "best.toml").read_text() == tuned.best.read_text()
    assert tuned.chosen.algorithm["lr"] in (0.01, 0.1)
    began = (usual / "trials.jsonl").read_text()
    fedbc.tune(SPEC, grid="own", search=search, workers=1, quiet=True)  # finds the study of the command
    assert (only_folder(), (usual / "trials.jsonl").read_text()) == (usual, began)


def test_a_calibration():
    typed("calibrate", *TINY, "--tolerances", "0.1,learned", "--starts", "global", "--method", "none",
          "--seeds", "1", "--workers", "1", "--lanes", "1")  # fmt: skip
    usual = only_folder()
    how = {"tolerances": [0.1, "learned"], "starts": ["global"], "seeds": 1, "methods": {}, "workers": 1, "quiet": True}
    calibrated = fedbc.calibrate(SPEC, "called", **how)
    assert (usual / "recommended.toml").read_text() == calibrated.recommended.read_text()
    assert calibrated.chosen.algorithm["tolerance"] in (0.1, "learned")
    began = (usual / "results.jsonl").read_text()
    fedbc.calibrate(SPEC, **how)  # finds the runs of the command
    assert (only_folder(), (usual / "results.jsonl").read_text()) == (usual, began)


def test_the_paper():
    assert fedbc.paper.run(["toy"], "results", quiet=True) == ["toy"]
    html, markdown = fedbc.paper.write_report("results")
    assert (html, markdown) == (Path("results/report.html"), Path("results/paper.md"))
    assert html.exists()
    assert markdown.exists()


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_a_number_of_workers_that_is_none_is_refused_before_anything_is_written(workers):
    how = {"workers": workers, "quiet": True}
    for call in (
        lambda: fedbc.sweep([SPEC], "results.jsonl", **how),
        lambda: fedbc.run_comparison({"FedBC": SPEC}, **how),
        lambda: fedbc.tune(SPEC, **how),
        lambda: fedbc.calibrate(SPEC, **how),
        lambda: list(do_jobs([Job(dict, "nothing", 1)], workers=workers)),
    ):
        with pytest.raises(fedbc.InputError, match=f"workers={workers} is not accepted"):
            call()
    assert list(Path().iterdir()) == []
