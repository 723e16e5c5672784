"""What cannot be compared is refused or left out by name, never compared in silence."""

import dataclasses

import numpy as np
import pytest

import fedbc
from fedbc import storage
from fedbc.cli import tables
from fedbc.reports import comparable, grouping
from fedbc.runs import RunFolder
from fedbc.simulation.result import FORMAT

RUN = {"rounds": 3, "batch_size": 5}


@pytest.fixture(scope="module")
def problem(make_federation):
    return fedbc.models.logistic(4, 3), make_federation()


@pytest.fixture(scope="module")
def run(problem):
    def simulate(algorithm, **options):
        return fedbc.simulate(algorithm, *problem, **RUN | options)

    return simulate


@pytest.fixture(scope="module")
def finished(run):
    return run(fedbc.FedAvg(lr=0.1))


@pytest.fixture(scope="module")
def diverged(run):
    with pytest.raises(fedbc.Diverged) as caught:
        run(fedbc.FedBC(lr=50, dual_lr=1), rounds=9)
    assert 0 < caught.value.result.rounds < 9
    return caught.value.result


def test_a_run_that_diverged_is_left_out_and_named(finished, diverged, tmp_path):
    diverged.save(tmp_path / "diverged")
    finished.save(tmp_path / "finished")
    found = fedbc.compare([tmp_path / "diverged", tmp_path / "finished"])
    assert found.names == ["fedavg"]
    assert found.words == []
    (said,) = found.failures
    assert said.startswith("fedbc, seed 0: training diverged in round")
    assert f"Missing: {said}" in found.page().html()
    with pytest.raises(fedbc.InputError, match="every run diverged, so there is nothing to compare: fedbc"):
        fedbc.compare({"fedbc": diverged})


def test_runs_of_unequal_length_are_compared_only_if_asked_for(run, finished):
    longer = run(fedbc.FedBC(lr=0.1), rounds=4)
    both = {"fedavg": finished, "fedbc": longer}
    with pytest.raises(fedbc.InputError, match="unequal length: fedavg has 3 rounds, fedbc has 4 rounds; go on with"):
        fedbc.compare(both)
    assert fedbc.compare(both, any_rounds=True).names == ["fedavg", "fedbc"]


def test_runs_that_end_by_a_rule_of_theirs_may_be_of_unequal_length(run):
    both = {"fedavg": run(fedbc.FedAvg(lr=0.1), rounds=5, patience=9), "fedbc": run(fedbc.FedBC(lr=0.1), patience=9)}
    found = fedbc.compare(both)
    assert "The runs have 3 to 5 rounds." in found.summary.caption
    assert list(found.table["rounds"]) == [5, 3]
    told = repr(found).splitlines()
    assert len(told) == 3
    assert told[1].startswith("  fedavg, 1 seeds, global accuracy % ")


def test_a_comparison_takes_runs_that_end_early(tmp_path):
    specs = {
        name: fedbc.RunSpec(
            {"name": name}, {"name": "synthetic", "devices": 3}, run={"rounds": 9, "target_accuracy": 0.01}
        )
        for name in ("fedavg", "fedbc")
    }
    found = fedbc.run_comparison(specs, tmp_path / "early", workers=1, quiet=True)
    assert found.failures == []
    assert list(found.table["rounds"]) == [1, 1]
    assert fedbc.run_comparison(specs, tmp_path / "early", workers=1, quiet=True).names == ["fedavg", "fedbc"]


def test_test_sets_are_not_compared_with_validation_sets(run, finished, problem):
    held_out = run(fedbc.FedBC(lr=0.1), validation=0.3)
    with pytest.raises(fedbc.InputError, match=r"fedavg has the test sets, fedbc has validation sets of 0\.3"):
        fedbc.compare({"fedavg": finished, "fedbc": held_out})
    seeds = [held_out, run(fedbc.FedBC(lr=0.1), validation=0.3, seed=1)]
    model, federation = problem
    found = fedbc.compare({"fedbc": seeds}, federation=federation, model=model)
    assert "on all devices' validation sets" in found.summary.caption
    last = [r.history["local_accuracy"].iloc[-1] for r in seeds]
    assert found.devices.groupby("seed")["local_accuracy"].mean().tolist() == pytest.approx(last, abs=1e-9)


def with_data(result, name="mnist", **table):
    return dataclasses.replace(result, spec=result.spec | {"data": {"name": name, **table}})


def test_the_same_data_in_two_folders_are_one_federation(finished):
    here = with_data(finished, data_dir="here", classes=2, exponent=1.3)
    stated = {"name": "mnist", "data_dir": "there", "classes": 2, "exponent": 1.3}
    there = with_data(finished, **fedbc.RunSpec({"name": "fedavg"}, stated).to_dict()["data"])  # all defaults, too
    comparable.check_comparable({"here": [here], "there": [there]})
    other = with_data(finished, data_dir="here", classes=3, exponent=1.3)
    with pytest.raises(fedbc.InputError, match=r"here and other were run on .*: data classes is 2 and 3"):
        comparable.check_comparable({"here": [here], "other": [other]})
    assert "no comparison" not in tables.explanation({"here": here, "there": there})
    assert "The runs differ in data" in tables.explanation({"here": here, "other": other})


def test_a_run_from_before_an_argument_was_there_is_of_the_same_method(run, finished):
    known = {key: value for key, value in finished.spec["run"].items() if key != "evaluate_every"}
    before = dataclasses.replace(finished, spec=finished.spec | {"run": known})
    assert "evaluate_every" in finished.spec["run"]
    seeds = [before, run(fedbc.FedAvg(lr=0.1), seed=1)]
    assert {name: len(group) for name, group in grouping.grouped(seeds).items()} == {"fedavg": 2}
    rarely = run(fedbc.FedAvg(lr=0.1), evaluate_every=2)
    assert list(grouping.grouped([finished, rarely])) == ["fedavg, evaluate_every 1", "fedavg, evaluate_every 2"]


def test_devices_are_not_scored_on_foreign_data_or_by_a_foreign_model(finished, problem, make_federation):
    model, _ = problem
    with pytest.raises(fedbc.InputError, match="is not what the runs were made with: its checksum is"):
        fedbc.compare({"fedavg": finished}, federation=make_federation(seed=5), model=model)
    with pytest.raises(fedbc.InputError, match=r"is not what fedavg was run with: it has parameters .*\(4, 5\)"):
        fedbc.compare({"fedavg": finished}, model=fedbc.models.logistic(4, 5))


def test_a_pooled_run_is_of_the_same_federation(run, finished):
    assert fedbc.compare({"pooled": run(fedbc.FedAvg(lr=0.1), pooled=True), "fedavg": finished}).names


@pytest.mark.parametrize("name", ["history.csv", "devices.csv"])
def test_a_table_that_was_cut_short_is_not_read(finished, tmp_path, name):
    folder = finished.save(tmp_path / "run")
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole.replace(b"\n", b"\r\n"))  # as some version control systems do
    assert fedbc.load(folder).rounds == 3
    for damaged in (whole[: whole.rindex(b"\n", 0, -1) + 1], whole[:-9], whole.replace(b"1", b"2", 1)):
        (folder / name).write_bytes(damaged)
        with pytest.raises(fedbc.InputError, match=rf"{name} is (not as the run wrote it|damaged)"):
            fedbc.load(folder)


def test_of_an_older_folder_the_rounds_are_counted(finished, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write(finished)
    arrays, _ = storage.read_arrays(folder.models)
    storage.write_arrays(folder.models, arrays, {"format": FORMAT})
    assert folder.read().rounds == 3
    lines = folder.history.read_text().splitlines()
    folder.history.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(fedbc.InputError, match="cut short or changed"):
        folder.read()


def test_a_specification_without_its_tables_is_damaged(finished, tmp_path):
    folder = finished.save(tmp_path / "run")
    (folder / "spec.json").write_text("{}")
    with pytest.raises(fedbc.InputError, match="damaged: it has no algorithm"):
        fedbc.load(folder)


def test_regression_is_compared_by_losses_over_the_same_examples(tmp_path):
    rng = np.random.default_rng(0)
    sizes = (30, 9, 12)
    pairs = [(x := rng.normal(size=(n, 2)), (x @ [1.0, 2.0 + i])[:, None]) for i, n in enumerate(sizes)]
    federation = fedbc.data.federation(pairs, pairs)
    init = lambda key: {"w": np.zeros((2, 1), np.float32)}  # noqa: E731
    model = fedbc.models.Model(init, lambda p, x: x @ p["w"], loss=fedbc.models.half_squared_error, correct=None)
    results = {
        name: fedbc.simulate(algorithm, model, federation, rounds=4)
        for name, algorithm in (("fedavg", fedbc.FedAvg(lr=0.1)), ("local", fedbc.LocalOnly(lr=0.1)))
    }
    row = results["local"].history.iloc[-1]
    own = [np.asarray(results["local"].local_models["w"][i], float) for i in range(3)]
    losses = np.concatenate([0.5 * (x @ w - y)[:, 0] ** 2 for w, (x, y) in zip(own, pairs, strict=True)])
    assert row["local_test_loss"] == pytest.approx(losses.mean(), rel=1e-4)

    found = fedbc.compare(results, federation=federation, model=model)
    assert [c.key for c in found.summary.columns] == [
        *("method", "seeds", "global_test_loss", "local_test_loss", "global_loss", "seconds")
    ]
    assert found.words[1].startswith("local has the local models of lowest test loss (")
    html = found.page().html()
    assert {"tradeoff", "global-test-loss", "local-test-loss", "fairness-global", "fairness-local"} <= set(found.charts)
    assert "do not say how to build" not in html
    last = found.devices[found.devices["method"] == "local"]
    assert (last["local_test_loss"] * last["test_examples"]).sum() / sum(sizes) == pytest.approx(row["local_test_loss"])


def test_with_accuracies_losses_on_test_sets_are_not_shown(finished, problem):
    model, federation = problem
    found = fedbc.compare({"fedavg": finished}, federation=federation, model=model)
    assert "global_test_loss" not in [c.key for c in found.summary.columns]
    assert "global-test-loss" not in found.charts
