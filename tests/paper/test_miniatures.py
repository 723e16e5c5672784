"""Every experiment in miniature, from specifications through workers to the report's cells; and stopping in between."""

import dataclasses
import json

import pytest

import fedbc
from fedbc.errors import Diverged, InputError, RunsFailed
from fedbc.paper import catalogue, measure, runner, studies, tables, theory
from fedbc.paper.experiment import Part
from fedbc.paper.hyperparameters import TUNINGS
from fedbc.paper.methods import METHODS
from fedbc.paper.report import Report, shown
from fedbc.runs import Lines, RunSpec

FEW = {  # methods that between them take every path of an experiment
    "synthetic": ("fedavg", "fedavg-uniform", "qfedavg", "scaffold-reference", "fedbc", "fedbc-reference"),
    "synthetic-gamma": ("fedbc",),
    "mnist-e1-reference": ("fedbc-reference",),
    "mnist-weights": ("fedbc-weights",),
    "cifar10-e5": ("fedbc",),
    "cifar10-local-e5": ("fedbc",),
    "cifar10-coefficients": ("fedbc",),
    "cifar10-local-e5-reference": ("perfedbc-reference",),
    "shakespeare": ("fedavg",),
}


def miniature(experiment, methods):
    """Two rounds of two devices, one epoch, in the experiment's first setting."""

    def build(setting, seed, algorithm):
        spec = experiment.build(setting, seed, algorithm)
        data = dict(spec.data)
        if data["name"] == "synthetic":
            data["devices"] = 6
        elif data["name"] == "shakespeare":
            data |= {"devices": 4, "max_samples": 25}
        run = {**spec.run, "rounds": 2, "sample": 2, "epochs": 1, "evaluate_every": 1}
        return RunSpec(spec.algorithm, data, spec.model, run)

    return dataclasses.replace(
        experiment, build=build, methods=methods, settings=experiment.settings[:1], rest=(), seeds=(1,), full_seeds=(1,)
    )


def with_choices(folder):
    """Choices for every group, as tuning would write them: the grid's first point."""
    (folder / "chosen").mkdir(parents=True)
    for name, tuning in TUNINGS.items():
        entries = []
        for key in tuning.methods:
            table = ", ".join(f"{k} = {json.dumps(v)}" for k, v in METHODS[key].candidates()[0].items())
            entries.append(f"[[sweep]]\nalgorithm = {{ {table} }}\n")
        (folder / "chosen" / f"{name}.toml").write_text("\n".join(entries))


def run_in_miniature(names, folder, monkeypatch):
    with_choices(folder)
    for name in list(catalogue.EXPERIMENTS):
        methods = FEW.get(name, ("fedavg",))
        monkeypatch.setitem(catalogue.EXPERIMENTS, name, miniature(catalogue.EXPERIMENTS[name], methods))
    said = []
    for name in names:
        runner.Runner(folder, workers=2).run(catalogue.EXPERIMENTS[name], say=said.append)
    assert said == []
    return Report.of(folder)


def test_the_synthetic_experiments(tmp_path, monkeypatch):
    names = [n for n in catalogue.EXPERIMENTS if n.startswith("synthetic")]
    report = run_in_miniature(names, tmp_path, monkeypatch)
    cells = {row.label: row.cells[1] for row in report.tables["synthetic-global"].rows}
    for key in FEW["synthetic"]:
        assert cells[METHODS[key].label].mean is not None, key
    assert shown(cells["FedProx"])["ours"] == "not run"
    first = report.found.first("synthetic", "fedbc", epochs=5)
    assert len(first["coefficients"]["min_accuracy"]) == 2
    assert set(first["snapshots"]) == {"1"}
    assert len(first["multipliers"]) == 6
    row = report.found.runs["synthetic-gamma"][0]
    assert row[1]["spec"]["algorithm"]["tolerance"] == 0.0
    # Nothing is run twice.
    before = (tmp_path / "synthetic.jsonl").read_bytes()
    again = runner.Runner(tmp_path, workers=2)
    again.run(catalogue.EXPERIMENTS["synthetic"], say=pytest.fail)
    assert (tmp_path / "synthetic.jsonl").read_bytes() == before
    (status,) = (s for s in again.status(["synthetic"]) if s.name == "synthetic")
    assert (status.done, status.total, status.core_minutes_left) == (6, 6, 0)


@pytest.mark.parametrize("data", ["mnist", "cifar10", "shakespeare"])
def test_the_experiments_on_real_data(data, tmp_path, monkeypatch, real_data):
    names = [n for n in catalogue.EXPERIMENTS if n.startswith(data)]
    report = run_in_miniature(names, tmp_path, monkeypatch)
    for name in names:
        lines = [line for _, line in report.found.runs[name]]
        assert lines
        assert all(line is not None and "summary" in line for line in lines), name
    if data == "cifar10":
        rows = {r.label: r.cells[1] for r in report.tables["cifar10-local-e5"].rows if r.group == "C = 1"}
        assert rows["FedBC"].mean is not None
        assert rows["FedBC-FineTune"].mean is not None
        assert rows["Per-FedBC, reference"].mean is not None
        assert report.found.first("cifar10-coefficients", "fedbc", classes=1) is not None


def test_the_time_left_is_estimated_from_the_latest_runs(tmp_path):
    with_choices(tmp_path)
    experiment = catalogue.EXPERIMENTS["cifar10-e5"]
    done = [r for r in experiment.runs(runner.Store(tmp_path).choices) if r.method in ("fedavg", "fedbc")][:20]
    assert len(done) == 20
    for number, run in enumerate(done):  # programs became faster after the first half
        line = {"hash": run.hash, "spec": run.spec.to_dict(), "summary": {}, "seconds": 600 if number < 10 else 120}
        Lines(tmp_path / "cifar10-e5.jsonl").append(line)

    def minutes(method):
        (*_, status) = runner.Runner(tmp_path).status(["cifar10-e5"], Part(methods=(method,)))
        return status.core_minutes_left / (status.total - status.done)

    assert minutes("fedbc") == 2
    assert minutes("qfedavg") == 2  # as the others, none of its own being known
    assert minutes("pfedme") == 2 * runner.PFEDME_LENGTH


def test_runs_that_fail_are_told_and_the_others_kept(tmp_path):
    with_choices(tmp_path)
    small = miniature(catalogue.EXPERIMENTS["synthetic"], ("fedavg", "fedavg-uniform"))

    def build(setting, seed, algorithm):
        spec = small.build(setting, seed, algorithm)
        too_many = {"sample": 99} if algorithm["weights"] == "uniform" else {}
        return dataclasses.replace(spec, run={**spec.run, **too_many})

    said = []
    half = dataclasses.replace(small, build=build)
    with pytest.raises(RunsFailed, match=r"1 of 2 runs of synthetic failed, .*sample=99.* tries these again"):
        runner.Runner(tmp_path, workers=1).run(half, say=said.append)
    assert len(said) == 1
    assert len(runner.Store(tmp_path).lines) == 1
    with pytest.raises(RunsFailed, match="1 of 1 runs"):  # what failed is tried again, and only that
        runner.Runner(tmp_path, workers=1).run(half, say=said.append)


def test_tuning_whose_runs_fail_ends(tmp_path, monkeypatch):
    tuning = dataclasses.replace(
        TUNINGS["synthetic-e5"],
        methods=("fedavg",),
        seeds=(100,),
        build=lambda setting, seed, algorithm: RunSpec(
            algorithm, {"name": "synthetic", "devices": 6}, run={"sample": 99, "seed": seed}
        ),
    )
    monkeypatch.setitem(TUNINGS, "synthetic-e5", tuning)
    with pytest.raises(RunsFailed, match="5 of 5 runs of tuning synthetic-e5 failed"):
        runner.Runner(tmp_path, workers=1).tune("synthetic-e5", ("fedavg",), say=lambda text: None)
    assert not (tmp_path / "chosen").exists()


def test_missing_data_are_one_error_and_no_results(tmp_path, monkeypatch):
    with_choices(tmp_path)

    def missing(self, part):
        raise InputError(f"{part} is missing")

    monkeypatch.setattr(RunSpec, "build_part", missing)
    with pytest.raises(InputError, match="data is missing"):
        runner.Runner(tmp_path, workers=1).run(catalogue.EXPERIMENTS["mnist-e1"], say=pytest.fail)
    assert not (tmp_path / "mnist-e1.jsonl").exists()


def test_studies(tmp_path, monkeypatch):
    monkeypatch.setattr(theory, "SWEEPS", {"gamma": (0.0, 1.0)})
    monkeypatch.setattr(theory.Case, "rounds", 5)
    monkeypatch.setattr(theory, "cases", lambda rounds=5, real=theory.cases: real(rounds))
    for name in ("toy", "theory"):
        study = studies.STUDIES[name]
        study.run(tmp_path / study.file, lambda *_: None)
    assert len(studies.STUDIES["theory"].read(tmp_path)) == 8  # two problems, two tolerances, with bounds and without
    found = tables.Evidence(tmp_path)
    assert found.studies["toy"]["walks"]["FedAvg"]["path"][0] == [-0.6, -1.2]


@pytest.mark.usefixtures("real_data")
def test_the_study_of_partitions(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "CLASSES", (3,))
    monkeypatch.setattr(studies, "EXPONENTS", (1.2,))
    study = studies.STUDIES["partitions"]
    study.run(tmp_path / study.file, lambda *_: None)
    (mnist, cifar10) = study.read(tmp_path)["classes"]
    assert [mnist["dataset"], cifar10["dataset"]] == ["MNIST", "CIFAR-10"]
    federation = fedbc.data.mnist(classes=3, exponent=1.2, split="ordered")
    for i, untrained in enumerate(mnist["in_order"]["untrained"]):
        trained, tested = (
            part.y[part.offsets[i] : part.offsets[i + 1]] for part in (federation.train, federation.test)
        )
        assert untrained == sum(label not in trained for label in tested)
    assert mnist["in_order"]["test"] == len(federation.test.y)
    assert sum(mnist["in_order"]["untrained"][-5:]) > 0.3 * len(federation.test.y)


class Stop(Exception):
    """Stands for a kill."""


def test_a_run_that_was_killed_goes_on_to_the_same_result(tmp_path, monkeypatch):
    spec = RunSpec({"name": "fedbc", "dual_lr": 0.1}, {"name": "synthetic", "devices": 6}, run={"rounds": 6, "seed": 2})
    whole = measure.run_to_line(spec)
    real = measure.Simulation.advance

    def until_the_third(self, **arguments):
        if self.round == 3:
            raise Stop
        return real(self, **arguments)

    monkeypatch.setattr(measure, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(measure.Simulation, "advance", until_the_third)
    with pytest.raises(Stop):
        measure.run_to_line(spec, str(tmp_path))
    assert [p.suffix for p in tmp_path.iterdir()] == [".safetensors"]
    rounds = []
    monkeypatch.setattr(
        measure.Simulation, "advance", lambda self, **a: (rounds.append(self.round), real(self, **a))[1]
    )
    resumed = measure.run_to_line(spec, str(tmp_path))
    assert rounds == [3, 4, 5]
    times = {"seconds"}
    assert {k: v for k, v in resumed["summary"].items() if k not in times} == {
        k: v for k, v in whole["summary"].items() if k not in times
    }
    assert resumed["multipliers"] == whole["multipliers"]
    assert list(tmp_path.iterdir()) == []


def test_divergence_is_a_result_and_a_crash_is_not(tmp_path, monkeypatch):
    spec = RunSpec({"name": "fedavg", "lr": 1e30}, {"name": "synthetic", "devices": 4}, run={"rounds": 3})
    line = measure.run_to_line(spec)
    assert line["diverged"] >= 1
    assert runner.is_result(line)
    monkeypatch.setattr(measure, "CHECKPOINT_SECONDS", 0)
    late = dataclasses.replace(spec, algorithm={"name": "fedavg", "lr": 0.01}, run={"rounds": 3, "seed": 2})
    kept = []
    real = measure.Simulation.advance

    def until_the_third(self, **arguments):
        if self.round == 2:
            kept.extend(p.suffix for p in tmp_path.iterdir())
            raise Diverged("made up", round=3, device=None)
        return real(self, **arguments)

    monkeypatch.setattr(measure.Simulation, "advance", until_the_third)
    assert measure.run_to_line(late, str(tmp_path))["diverged"] == 3
    assert kept == [".safetensors"]
    assert list(tmp_path.iterdir()) == []  # nothing is left of it to go on from
    assert not runner.is_result({"hash": "x", "error": "the process died (exit -9)"})


def test_results_outlive_a_new_argument(tmp_path):
    """A line from before an argument was added is found under the specification of today."""
    spec = RunSpec({"name": "fedbc"}, run={"rounds": 1, "seed": 1})
    line = measure.run_to_line(spec)
    del line["spec"]["algorithm"]["bounds"]
    line["hash"] = "0123456789abcdef"
    (tmp_path / "synthetic.jsonl").write_text(json.dumps(line) + "\n")
    assert list(runner.Store(tmp_path).lines) == [spec.identity]
    assert fedbc.__version__ in line["versions"].values()
