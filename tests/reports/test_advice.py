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
    assert (tmp_path / "page" / "figures" / "advice-fedbc.png").exists()
