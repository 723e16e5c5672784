"""fedbc.sklearn: scikit-learn's own checks, and what groups do."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

import fedbc
from fedbc.sklearn import FederatedClassifier


def test_scikit_learn_s_own_checks() -> None:
    check_estimator(FederatedClassifier(rounds=10), on_skip=None)  # the array API, for which there is no library here


def rows(count: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=(count, 2)), np.resize(["north", "south"], count)
    return x, np.where((x[:, 0] > 0) ^ (groups == "south"), "ill", "well"), groups


def test_each_group_has_its_own_model() -> None:
    x, y, groups = rows()
    made = FederatedClassifier(fedbc.FedBC(lr=0.3, start="local", tolerance=100.0)).fit(x, y, groups=groups)
    assert made.groups_.tolist() == ["north", "south"]
    assert (made.predict(x, groups=groups) == y).mean() > 0.9
    assert (made.predict(x) == y).mean() < 0.7
    unseen = made.predict(x, groups=["east"] * len(x))
    assert (unseen == made.predict(x)).all()
    same = FederatedClassifier(fedbc.FedBC(lr=0.3, start="local", tolerance=100.0)).fit(x, y, groups=groups)
    np.testing.assert_array_equal(made.predict_proba(x), same.predict_proba(x))


def test_it_takes_part_in_a_search() -> None:
    x, y, _ = rows(60)
    found = GridSearchCV(
        FederatedClassifier(model=lambda f, c: fedbc.models.mlp(f, 4, c), rounds=2), {"epochs": [1, 2]}, cv=2
    ).fit(x, y)
    assert found.best_params_["epochs"] in (1, 2)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedClassifier().fit(x, y, groups=["a"])
