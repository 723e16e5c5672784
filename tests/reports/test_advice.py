"""Verdicts take the finite test sets into account, and a comparison advises each device."""

import numpy as np
import pandas as pd
import pytest

import fedbc
from fedbc.reports.differences import SCORES, error_of_test_sets, leads, sentences

GLOBAL, LOCAL = SCORES[:2]


def devices(difference, test_examples, seeds=2):
    """Two methods that differ by so much on each device, in shares."""
    rows = [
        {"method": method, "seed": seed, "device": i, "test_examples": n, "global_accuracy": own, "local_accuracy": own}
        for seed in range(seeds)
        for i, (d, n) in enumerate(zip(difference, test_examples, strict=True))
        for method, own in (("a", 0.5 + d + 0.01 * seed), ("b", 0.5 + 0.01 * seed))
    ]
    return pd.DataFrame(rows)


def test_the_error_of_the_test_sets_is_clustered_by_device():
    d, n = np.array([0.1, -0.2, 0.3, 0.0]), np.array([10, 20, 30, 40])
    table = devices(d, n)
    assert error_of_test_sets(table, "a", "b", LOCAL) == pytest.approx(100 * d.std(ddof=1) / 2)
    w = n / n.sum()
    expected = 100 * np.sqrt(4 / 3 * np.sum(w**2 * (d - w @ d) ** 2))
    assert error_of_test_sets(table, "a", "b", GLOBAL) == pytest.approx(expected)
    assert np.isnan(error_of_test_sets(devices(d[:1], n[:1]), "a", "b", LOCAL))


def test_a_difference_that_rests_on_one_device_is_not_clear():
    """Twelve clinics, one of which makes the difference: seeds agree on it, other patients need not."""
    d = np.zeros(12)
    d[4] = 0.276
    runs = pd.DataFrame(
        {"method": ["a"] * 3 + ["b"] * 3, "seed": [0, 1, 2] * 2, "local_accuracy": [0.823, 0.825, 0.821, 0.8, 0.8, 0.8]}
    )
    (alone,) = sentences(runs, ["a", "b"])
    assert "beyond the spread over seeds" in alone
    table = devices(d, np.full(12, 27), seeds=3)
    (said,) = sentences(runs, ["a", "b"], table)
    assert "no clear difference" in said
    assert "lies within the error from seeds and finite test sets" in said
    (lead,) = leads(runs, ["a", "b"], LOCAL, table)[2]
    assert lead.deviation == pytest.approx(0.2)
    assert lead.test_error == pytest.approx(2.3)


def test_the_error_is_that_of_other_test_sets():
    """Drawn again and again, with devices that differ in nothing but chance, the difference varies as it says."""
    rng = np.random.default_rng(0)
    n, found, said = np.full(10, 40), [], []
    for _ in range(300):
        d = rng.binomial(40, 0.7, 10) / 40 - rng.binomial(40, 0.7, 10) / 40
        found.append(100 * d.mean())
        said.append(error_of_test_sets(devices(d, n, seeds=1), "a", "b", LOCAL))
    assert np.mean(said) == pytest.approx(np.std(found), rel=0.1)


def test_a_comparison_advises_every_device(small, tiny_model, tmp_path):
    methods = {
        "fedbc": [fedbc.simulate(fedbc.FedBC(lr=0.05), tiny_model, small, rounds=2, seed=s) for s in (0, 1)],
        "fedavg": [fedbc.simulate(fedbc.FedAvg(lr=0.05), tiny_model, small, rounds=2)],
    }
    comparison = fedbc.compare(methods, federation=small, model=tiny_model).personalized(tmp_path / "work")
    advice = comparison.advice
    assert len(advice) == 2 * small.devices
    personal = comparison.personal["fedbc"]
    mean = np.mean([p.local_accuracy for p in personal], axis=0)
    np.testing.assert_allclose(advice[advice["method"] == "fedbc"]["personal_accuracy"], mean)
    said = {"use your own", "use the global model", "cannot tell"}
    assert set(advice["verdict"]) <= said
    page = comparison.write(tmp_path / "page")
    assert "Which model for which device" in page.read_text()
    written = pd.read_csv(tmp_path / "page" / "tables" / "advice.csv")
    assert written["advice"].tolist() == advice["advice"].tolist()
    differences = pd.read_csv(tmp_path / "page" / "tables" / "differences.csv")
    assert {"seeds", "test_sets", "verdict"} <= set(differences)
    for chart in ("advice", "models"):
        assert (tmp_path / "page" / "figures" / f"{chart}-fedbc.png").exists()
    (models,) = [c for c in comparison.page().charts if c.name == "models-fedbc"]
    assert f"personalised {100 * mean.mean():.1f} %" in models.description


def split_runs(by_split, seeds=(0,)):
    """Two methods whose difference on each split is given, in points."""
    return pd.DataFrame(
        [
            {"method": m, "seed": s, "split": k, "local_accuracy": 0.8 + (d / 100 if m == "a" else 0)}
            for k, d in enumerate(by_split)
            for s in seeds
            for m in ("a", "b")
        ]
    )


def test_splits_of_the_same_data_tell_what_one_of_them_hides():
    """On the first split the method leads by 2.3 points with every seed; over twelve by nothing to speak of."""
    by_split = np.array([2.3, -0.4, 0.6, 1.5, -0.9, 0.2, 0.9, -0.6, 1.6, 0.3, -0.2, 0.7])
    (one,) = leads(split_runs(by_split[:1], (0, 1, 2)), ["a", "b"], LOCAL)[2]
    assert one.is_clear
    table = devices(np.zeros(12), np.full(12, 27)).assign(examples=108)
    best, _, (lead,) = leads(split_runs(by_split), ["a", "b"], LOCAL, table)
    assert best == "a"
    assert lead.difference == pytest.approx(0.5)
    assert np.isnan(lead.deviation)  # one seed: its chance is in the splits, each of which trains anew
    assert lead.split_error == pytest.approx(by_split.std(ddof=1) * np.sqrt(1 / 12 + 27 / 108))
    assert lead.error == lead.split_error
    assert not lead.is_clear
    (said,) = sentences(split_runs(by_split, (0, 1)), ["a", "b"], table)
    assert "no clear difference" in said
    assert "the error from seeds, splits and finite test sets" in said
    (clear,) = sentences(split_runs(by_split + 5), ["a", "b"], table)
    assert "beyond the error from splits and finite test sets" in clear


def test_the_error_over_splits_is_that_of_other_data():
    """Data sets drawn anew, each split eight times: the mean over the splits varies about as much as it says."""
    rng = np.random.default_rng(1)
    found, said = [], []
    for _ in range(300):
        data = rng.normal(size=(60, 2))  # a learner that answers with the mean of what it trained on, twice
        values = []
        for _ in range(8):
            order = rng.permutation(60)
            train, test = data[order[:48]], data[order[48:]]
            loss = ((test - train.mean(0)) ** 2).mean(0)
            values.append(loss[0] - loss[1])
        runs = split_runs(100 * np.array(values))
        (lead,) = leads(runs, ["a", "b"], LOCAL, devices(np.zeros(2), [12, 12]).assign(examples=48))[2]
        found.append(100 * np.mean(values))
        said.append(lead.split_error)
    assert np.sqrt(np.mean(np.square(said))) == pytest.approx(np.std(found), rel=0.3)


def test_advice_over_splits_is_about_all_examples_that_were_tested(small, tiny_model):
    """An example counts once, with the mean over the runs that were tested on it."""
    from fedbc.data import measured_examples
    from fedbc.personalization.evidence import bootstrapped, paired

    runs = [fedbc.simulate(fedbc.FedBC(lr=0.05), tiny_model, small, rounds=1, resplit=k) for k in (0, 1)]
    comparison = fedbc.compare({"fedbc": runs}, federation=small, model=tiny_model).personalized()
    advice, people = comparison.advice, comparison.personal["fedbc"]
    each = [p.right["personal"].astype(float) - p.right["global"] for p in people]
    which = [measured_examples(small, {"resplit": k}) for k in (0, 1)]
    device = 3
    rows = slice(small.test.offsets[device], small.test.offsets[device + 1])
    values = {}
    for own, numbers in zip(each, which, strict=True):
        for value, number in zip(own[rows], numbers[rows], strict=True):
            values.setdefault(int(number), []).append(value)
    means = [np.mean(v) for _, v in sorted(values.items())]
    assert 6 < len(means) <= 12
    inner, outer = bootstrapped(np.array(means)), np.std([own[rows].mean() for own in each], ddof=1)
    row = advice.iloc[device]
    assert row["difference"] == pytest.approx(np.mean([own[rows].mean() for own in each]))
    wide = np.hypot(inner.high - inner.mean, 1.96 * outer / np.sqrt(2))
    assert row["high"] == pytest.approx(row["difference"] + wide)
    if row["verdict"] == "cannot tell":
        assert row["advice"] == f"cannot tell: {len(means)} test examples"
    # Seeds that disagree widen the interval: the same examples, once all right, once all wrong.
    both = paired([np.ones(50), np.zeros(50)], [np.zeros(50)] * 2)
    assert both.low < 0 < both.mean == 0.5
