"""Metrics, held equal to scikit-learn's."""

import numpy as np
import pytest
import sklearn.metrics as reference

from fedbc import InputError, metrics

SEEDS = range(5)


def classification(seed, classes, examples=60):
    rng = np.random.default_rng(seed)
    truth = np.concatenate([np.arange(classes), rng.integers(0, classes, examples - classes)])
    logits = rng.normal(size=(examples, classes)) + np.eye(classes)[truth]
    odds = np.exp(logits)
    return truth, logits, odds / odds.sum(1, keepdims=True)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_classification(seed, classes):
    truth, logits, p = classification(seed, classes)
    own = metrics.scores(metrics.chosen(None, classes=True), truth, logits, classes=True)
    predicted = logits.argmax(1)
    assert own["accuracy"] == pytest.approx(reference.accuracy_score(truth, predicted))
    assert own["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(truth, predicted))
    assert own["f1"] == pytest.approx(reference.f1_score(truth, predicted, average="macro"))
    score = p[:, 1] if classes == 2 else p
    assert own["auc"] == pytest.approx(reference.roc_auc_score(truth, score, multi_class="ovr"))


@pytest.mark.parametrize("seed", SEEDS)
def test_calibration_error(seed):
    """scikit-learn's calibration curve, weighted by the examples of each bin."""
    from sklearn.calibration import calibration_curve

    truth, _, p = classification(seed, 4, 200)
    confidence, right = p.max(1), p.argmax(1) == truth
    accuracy, mean = calibration_curve(right, confidence, n_bins=10)
    bins = np.searchsorted(np.linspace(0, 1, 11)[1:-1], confidence)
    counts = np.bincount(bins)[np.bincount(bins) > 0]
    expected = np.sum(counts * np.abs(accuracy - mean)) / len(truth)
    assert metrics.calibration_error(truth, p) == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_regression(seed):
    rng = np.random.default_rng(seed)
    truth, predicted = rng.normal(size=30), rng.normal(size=30)
    own = metrics.scores(metrics.chosen(None, classes=False), truth, predicted[:, None], classes=False)
    assert own["rmse"] == pytest.approx(reference.root_mean_squared_error(truth, predicted))
    assert own["mae"] == pytest.approx(reference.mean_absolute_error(truth, predicted))
    assert own["r2"] == pytest.approx(reference.r2_score(truth, predicted))
    for constant in (truth * 0 + 2, predicted):
        assert metrics.r2(truth * 0 + 2, constant) == reference.r2_score(truth * 0 + 2, constant)


def test_equal_scores_count_half_in_the_roc_curve():
    rng = np.random.default_rng(0)
    truth, score = rng.integers(0, 2, 50), rng.integers(0, 6, 50) / 8
    both = np.stack([1 - score, score], axis=1)
    assert metrics.auc(truth, both) == pytest.approx(reference.roc_auc_score(truth, score))


def test_what_occurs_in_part_or_not_at_all():
    """A class without examples does not count; a single class has no ROC curve; no examples, no metric."""
    truth, predicted = np.array([0, 0, 2]), np.array([0, 1, 2])
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        assert metrics.balanced_accuracy(truth, predicted) == reference.balanced_accuracy_score(truth, predicted)
    assert metrics.f1(truth, predicted) == pytest.approx(reference.f1_score(truth, predicted, average="macro"))
    assert np.isnan(metrics.auc(np.zeros(3, int), np.full((3, 2), 0.5)))
    nothing = metrics.scores(metrics.chosen(None, classes=True), np.zeros(0, int), np.zeros((0, 3)), classes=True)
    assert all(np.isnan(v) for v in nothing.values())


def test_a_function_of_one_s_own_and_what_is_refused():
    truth, logits, _ = classification(0, 3)
    own = metrics.chosen({"kappa": reference.cohen_kappa_score}, classes=True)
    kappa = reference.cohen_kappa_score(truth, logits.argmax(1))
    assert metrics.scores(own, truth, logits, classes=True) == {"kappa": pytest.approx(kappa)}
    with pytest.raises(InputError, match="metrics='f2' is unknown"):
        metrics.chosen(["f2"], classes=True)
    with pytest.raises(InputError, match="predicts classes"):
        metrics.chosen(["rmse"], classes=True)


def test_a_result_is_measured_device_by_device(small, tiny_model):
    import fedbc

    result = fedbc.simulate(fedbc.FedBC(lr=0.05), tiny_model, small, rounds=2)
    table = result.evaluate(metrics=["balanced_accuracy", "auc", "calibration_error"])
    x, y = small.test.of(3)
    logits = np.asarray(tiny_model.apply({name: leaf[3] for name, leaf in result.local_models.items()}, x))
    wanted = metrics.chosen(["balanced_accuracy", "auc", "calibration_error"], classes=True)
    for name, value in metrics.scores(wanted, y, logits, classes=True).items():
        assert table[f"local_{name}"][3] == pytest.approx(value, nan_ok=True)
    with pytest.raises(InputError, match="predicts classes"):
        result.evaluate(metrics=["rmse"])


def test_all_devices_together_are_the_union_of_their_examples(small, tiny_model):
    import fedbc

    result = fedbc.simulate(fedbc.FedBC(lr=0.05), tiny_model, small, rounds=2)
    table = result.evaluate(metrics=["auc", "f1"], together=True)
    assert table["device"].tolist() == [*range(5), "all devices"]
    z = np.asarray(tiny_model.apply(result.global_model, small.test.x))
    parts = [{name: leaf[i] for name, leaf in result.local_models.items()} for i in range(small.devices)]
    own = np.concatenate([np.asarray(tiny_model.apply(p, small.test.of(i)[0])) for i, p in enumerate(parts)])
    for whose, logits in (("global", z), ("local", own)):
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        assert table[f"{whose}_auc"].iloc[-1] == pytest.approx(
            reference.roc_auc_score(small.test.y, p, multi_class="ovr")
        )
        f1 = reference.f1_score(small.test.y, logits.argmax(1), average="macro")
        assert table[f"{whose}_f1"].iloc[-1] == pytest.approx(f1)
        assert table[f"{whose}_accuracy"].iloc[-1] == pytest.approx(np.mean(logits.argmax(1) == small.test.y))
