"""Comparisons: which runs belong together, what is said of them, the numbers of single devices."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedbc
from fedbc.drawing import running_mean
from fedbc.errors import InputError
from fedbc.reports import page
from fedbc.reports.device_rows import constraint
from fedbc.reports.differences import sentences

RUN = {"rounds": 6, "sample": 3, "batch_size": 5}


@pytest.fixture(scope="module")
def small_results(make_federation):
    federation, model = make_federation(), fedbc.models.logistic(4, 3)
    methods = {"fedbc": fedbc.FedBC(lr=0.1), "fedavg": fedbc.FedAvg(lr=0.1)}
    results = {
        name: [fedbc.simulate(algorithm, model, federation, seed=s, **RUN) for s in (0, 1)]
        for name, algorithm in methods.items()
    }
    return federation, model, results


@pytest.fixture(scope="module")
def comparison(small_results):
    federation, model, results = small_results
    return fedbc.compare(results, federation=federation, model=model)


def test_accuracies_of_devices_are_those_that_the_run_measured(comparison):
    """From the stored models of all devices, and in history by a different path: as the run went on."""
    for name, results in comparison.methods.items():
        for seed, result in enumerate(results):
            rows = comparison.devices
            rows = rows[(rows["method"] == name) & (rows["seed"] == seed)]
            last = result.history.iloc[-1]
            assert rows["local_accuracy"].mean() == pytest.approx(last["local_accuracy"], abs=1e-9)
            right = (rows["global_accuracy"] * rows["test_examples"]).sum()
            assert right / rows["test_examples"].sum() == pytest.approx(last["global_accuracy"], abs=1e-9)
            assert rows["multiplier"].to_numpy() == pytest.approx(
                np.where(rows["rounds"] > 0, result.multipliers, np.nan), nan_ok=True
            )


def test_a_stored_run_gives_the_same(small_results, comparison, tmp_path):
    federation, model, results = small_results
    folders = [r.save(tmp_path / f"{name}-{i}") for name, rs in results.items() for i, r in enumerate(rs)]
    again = fedbc.compare(folders, federation=federation, model=model)
    assert again.names == ["fedbc", "fedavg"]
    pd.testing.assert_frame_equal(again.table, comparison.table)
    columns = ["method", "seed", "device", "global_accuracy", "local_accuracy", "coefficient", "drift"]
    pd.testing.assert_frame_equal(again.devices[columns], comparison.devices[columns])


def test_without_data_and_model_the_rest_is_shown(small_results):
    bare = fedbc.compare(small_results[2])  # its specification says "small", which nothing can build
    assert bare.federation is None
    assert bare.devices["local_accuracy"].isna().all()
    page = bare.page()
    assert {"tradeoff", "global-accuracy", "multiplier", "constraint"} <= set(bare.charts)
    assert not {"fairness-global", "partition-sizes"} & set(bare.charts)
    assert "federation=..." in page.html()


def test_devices_lines_that_hide_are_named(small_results):
    federation, model, results = small_results
    twins = fedbc.compare({"a": results["fedbc"], "b": results["fedbc"]}, federation=federation, model=model)
    assert twins.charts["fairness-global"].caption == "a lies under b."


def test_charts_of_learned_tolerances_and_of_own_data_in_a_browser(comparison, browser, tmp_path):
    browser.open(comparison.page().write(tmp_path / "page.html"))
    marks = {chart: browser.marks(chart) for chart in browser.charts()}
    assert set(marks) == set(comparison.charts)
    assert min(marks.values()) > 0
    assert marks["constraint"] == 1 + (comparison.devices["constraint"] != "").sum()  # the line, a point per device


def test_the_table_has_means_and_spread(comparison):
    values = [r.summary()["global_accuracy"] for r in comparison.methods["fedavg"]]
    row = comparison.table.set_index("method").loc["fedavg"]
    assert (row["seeds"], row["global_accuracy"]) == (2, pytest.approx(np.mean(values)))
    assert row["global_accuracy_std"] == pytest.approx(np.std(values, ddof=1))
    shown = f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"
    assert shown in comparison.summary.rows[1]
    assert shown in comparison._repr_html_()


def test_runs_that_differ_in_more_than_the_seed_are_methods_of_their_own(small_results):
    federation, model, results = small_results
    other = fedbc.simulate(fedbc.FedAvg(lr=0.2), model, federation, seed=0, **RUN)
    runs = [*results["fedavg"], results["fedavg"][0], other, *results["fedbc"]]
    found = fedbc.compare(runs)
    assert found.names == ["fedavg, lr 0.1", "fedavg, lr 0.2", "fedbc"]
    assert [len(rs) for rs in found.methods.values()] == [2, 1, 2]  # the run given twice counts once


def test_different_federations_are_refused(small_results, make_federation):
    model, results = small_results[1:]
    other = fedbc.simulate(fedbc.FedAvg(lr=0.1), model, make_federation(seed=5), **RUN)
    with pytest.raises(InputError, match="fedbc and other were run on different federations: data checksum"):
        fedbc.compare({"fedbc": results["fedbc"], "other": other})
    with pytest.raises(InputError, match="at least one"):
        fedbc.compare([])


def test_regression_has_no_accuracy_and_still_a_page(tmp_path):
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(9, 2)), rng.normal(size=(9, 1))) for _ in range(3)]
    federation = fedbc.data.federation(pairs, pairs)
    init, apply = (lambda key: {"w": np.zeros((2, 1), np.float32)}), (lambda p, x: x @ p["w"])
    model = fedbc.models.Model(init, apply, loss=fedbc.models.base.half_squared_error, correct=None)
    results = {"fedavg": fedbc.simulate(fedbc.FedAvg(lr=0.1), model, federation, rounds=2)}
    found = fedbc.compare(results, federation=federation, model=model)
    assert found.words == []
    assert {"global-loss", "global-test-loss", "tradeoff", "partition-sizes"} <= set(found.charts)
    assert not {"global-accuracy", "partition-classes"} & set(found.charts)


def frame(**values):
    rows = [{"method": m, "seed": s, "global_accuracy": v / 100} for m, vs in values.items() for s, v in enumerate(vs)]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"a": [80, 81, 82], "b": [70, 71, 72.3]},
            "a has the most accurate global model (81.0 %): it is ahead of b by 9.9 ± 0.2 points, beyond the spread "
            "over seeds.",
        ),
        (
            {"a": [80, 81, 82], "b": [81, 80, 81]},
            "The most accurate global model: no clear difference. a is ahead with 81.0 %, but its lead over b by "
            "0.3 ± 1.2 points lies within the spread over seeds.",
        ),
        (
            {"a": [80], "b": [70]},
            "a has the most accurate global model (80.0 %), ahead of b by 10.0 points; with one seed it cannot be told "
            "how much of this is chance.",
        ),
        (
            {"a": [80, 81, 82], "b": [70, 71, 72.3], "c": [79, 82, 81]},
            "a has the most accurate global model (81.0 %): it is ahead of b by 9.9 ± 0.2 points, beyond the spread "
            "over seeds; its lead over c by 0.3 ± 1.2 lies within that spread.",
        ),
        (
            {"a": [80, 82], "b": [70, 71, 72]},  # not the same seeds: the spreads add up
            "a has the most accurate global model (81.0 %): it is ahead of b by 10.0 ± 1.7 points, beyond the spread "
            "over seeds.",
        ),
        (
            {"a": [80], "b": [70], "c": [80]},
            "a has the most accurate global model (80.0 %), level with c, ahead of b by 10.0 points; with one seed it "
            "cannot be told how much of this is chance.",
        ),
        ({"a": [0.0], "b": [0.0]}, "The most accurate global model: no difference, 0.0 % with all."),
    ],
)
def test_words(values, said):
    assert sentences(frame(**values), list(values)) == [said]


def test_one_method_needs_no_words():
    assert sentences(frame(a=[80, 81]), ["a"]) == []


def test_who_is_at_the_constraint():
    nan = float("nan")
    rows = pd.DataFrame({"drift": [1.0, 0.96, 1.04, 0.5, 2.0, nan, 1.0], "tolerance": [1.0] * 6 + [nan]})
    assert constraint(rows) == ["at it", "at it", "at it", "inside", "beyond", "", ""]


def test_running_means_keep_the_ends():
    values = pd.Series(np.arange(100.0) ** 2, index=np.arange(1, 101))
    smooth = pd.Series(running_mean(values), values.index)
    assert (smooth.iloc[0], smooth.iloc[-1]) == (values.iloc[0], values.iloc[-1])
    assert smooth.iloc[50] == pytest.approx(values.iloc[46:55].mean())
    short = pd.Series([1.0, 5.0, 2.0])
    assert running_mean(short).tolist() == short.tolist()


def test_many_devices_are_drawn_in_part(comparison):
    from fedbc.reports import spread_over_devices

    count = 500
    rows = pd.DataFrame({"device": np.arange(count), "examples": np.arange(count)[::-1], "method": "fedavg"})
    whole = dataclasses.replace(comparison)
    whole.__dict__["devices"] = rows  # as if it were computed
    shown = spread_over_devices.shown_devices(whole)
    assert len(shown) == spread_over_devices.MOST_DEVICES
    assert (shown[0], shown[-1]) == (0, count - 1)  # the largest and the smallest are among them


def test_the_documentation_runs(tmp_path, monkeypatch):
    text = (Path(__file__).resolve().parents[2] / "docs" / "compare.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "write_figure", lambda *_: [])  # they take their time, and are tested elsewhere
    names: dict = {}
    snippet = snippet.replace("rounds=200", "rounds=2").replace("range(3)", "range(1)")
    exec(compile(snippet, "compare.md", "exec"), names)
    assert (tmp_path / "my-comparison" / "index.html").exists()
    assert len(names["comparison"].devices) == 2 * 30


def test_further_metrics_stand_beside_the_usual_ones(small, tiny_model):
    """In the runs, the devices, a table, the words and the differences; lower is better where it is."""
    algorithms = {"a": fedbc.FedBC(lr=0.2), "b": fedbc.FedBC(lr=0.001)}
    results = {
        name: [fedbc.simulate(a, tiny_model, small, rounds=3, epochs=3, seed=s) for s in (0, 1)]
        for name, a in algorithms.items()
    }
    comparison = fedbc.compare(
        results, federation=small, model=tiny_model, metrics=["balanced_accuracy", "calibration_error"]
    )
    table = results["a"][1].evaluate(metrics=["balanced_accuracy", "calibration_error"], together=True)
    runs = comparison.runs.set_index(["method", "seed"]).loc[("a", 1)]
    assert runs["global_calibration_error"] == pytest.approx(table["global_calibration_error"].iloc[-1])
    for column, whose in (("global_balanced_accuracy_mean", "global"), ("local_balanced_accuracy", "local")):
        assert runs[column] == pytest.approx(table[f"{whose}_balanced_accuracy"][:-1].mean())
    devices = comparison.devices.set_index(["method", "seed"]).loc[("a", 1)]
    np.testing.assert_allclose(devices["local_calibration_error"], table["local_calibration_error"][:-1])
    found = comparison.differences.set_index(["score"])
    assert {"global_balanced_accuracy_mean", "local_calibration_error"} <= set(found.index)
    assert found.loc["local_calibration_error", "test_sets"] > 0
    best = comparison.table.set_index("method")["local_calibration_error"].idxmin()
    assert found.loc["local_calibration_error", "best"] == best
    assert any("lowest calibration error, mean over devices" in words for words in comparison.words)
    assert [t.name for t in comparison.page().tables][:2] == ["summary", "metrics"]
    own = fedbc.compare(results, federation=small, model=tiny_model, metrics={"wrong": lambda y, p: (y != p).sum()})
    assert "local_wrong" in own.runs
    assert "local_wrong" not in set(own.differences["score"])  # nobody knows whether more of it is better
    with pytest.raises(fedbc.InputError, match="metrics='f2' is unknown"):
        fedbc.compare(results, federation=small, model=tiny_model, metrics=["f2"])
    with pytest.raises(fedbc.InputError, match="predicts classes"):
        fedbc.compare(results, federation=small, model=tiny_model, metrics=["rmse"])
