"""A classifier in scikit-learn's manner, whose rows belong to devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from fedbc import data, models
from fedbc.algorithms import Algorithm, FedBC
from fedbc.data.encoding import Encoding, fit
from fedbc.errors import InputError
from fedbc.models import Model
from fedbc.simulation import simulate

Array = np.ndarray
LARGEST_SEED = 2**31 - 1


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Federated training behind `fit(X, y, groups=...)` and `predict(X, groups=...)`.

    method: the method; `fedbc.FedBC(lr=0.1, start="local")` if not given.
    model: a function of the numbers of features and classes that gives a model; `fedbc.models.logistic` if not given.
    rounds, epochs, batch_size, sample: as in `fedbc.simulate`.
    standardize: standardise the columns by sums that the groups add.
    random_state: a seed, or a generator that draws one.

    After `fit`: `classes_`, `groups_` (the names of the devices) and `result_`, the run's `Result`.
    """

    def __init__(
        self,
        method: Algorithm | None = None,
        model: Callable[[int, int], Model] | None = None,
        *,
        rounds: int = 20,
        epochs: int = 5,
        batch_size: int | None = 20,
        sample: int | None = None,
        standardize: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.method, self.model = method, model
        self.rounds, self.epochs, self.batch_size, self.sample = rounds, epochs, batch_size, sample
        self.standardize, self.random_state = standardize, random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedClassifier:
        """Train. `groups` says whose row each is; without it there is one device, and nothing federated."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError("y has 1 class: a classifier needs at least two classes")
        owners = np.zeros(len(X), int) if groups is None else np.asarray(groups)
        check_consistent_length(X, owners)
        parts = data.partition.by_id(owners)
        self.groups_ = np.asarray([owners[part[0]] for part in parts])
        self._encoding = self._fit_encoding([X[part] for part in parts])
        pairs = [(self._encoded(X[part]), labels[part].astype(np.int32)) for part in parts]
        federation = data.federation(pairs, [(x[:1], y[:1]) for x, y in pairs], classes=len(self.classes_))
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(LARGEST_SEED)
        result = simulate(
            self.method if self.method is not None else FedBC(lr=0.1, start="local"),
            self._model(),
            federation,
            rounds=self.rounds,
            epochs=self.epochs,
            batch_size=self.batch_size,
            sample=self.sample,
            seed=int(seed),
            evaluate=(),  # what the rows above are there for is nothing: scikit-learn splits by itself
            evaluate_every=self.rounds,
        )
        self.result_ = replace(result, source=None)  # a model's functions cannot be pickled; they are made anew
        return self

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """The probability of each class, by the global model, or by each row's own device's if `groups` says whose."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        x, whose = self._encoded(X), None
        if groups is not None:
            check_consistent_length(X, groups)
            number = {group: i for i, group in enumerate(self.groups_.tolist())}
            whose = [number.get(group) for group in np.asarray(groups).tolist()]  # a new device has the global model
        return replace(self.result_, source=self._part).predict(x, whose, probabilities=True)

    def predict(self, X: Any, groups: Any = None) -> Array:
        """The classes, as `predict_proba`."""
        best = self.predict_proba(X, groups).argmax(axis=1)
        return self.classes_[best]

    def _model(self) -> Model:
        make = self.model if self.model is not None else models.logistic
        return make(self.n_features_in_, len(self.classes_))

    def _part(self, which: str) -> Any:
        if which == "model":
            return self._model()
        raise InputError("an estimator does not keep its data")

    def _fit_encoding(self, parts: list[Array]) -> Encoding | None:
        if not self.standardize:
            return None
        return fit([{str(i): x[:, i] for i in range(x.shape[1])} for x in parts], "y", "groups")

    def _encoded(self, X: Array) -> Array:
        if self._encoding is None:
            return X.astype(np.float32)
        return self._encoding.encode({str(i): X[:, i] for i in range(X.shape[1])}).astype(np.float32)
