"""Metrics that people decide by, with scikit-learn's definitions, for one device's examples or for all.

| name | of | definition |
| --- | --- | --- |
| accuracy | classes | the share of right answers |
| balanced_accuracy | classes | the mean over the classes that occur of the share of their examples answered rightly |
| f1 | classes | 2 TP / (2 TP + FP + FN), its mean over the classes that occur or are answered (macro) |
| auc | probabilities | area under the ROC curve; of several classes each against the rest, mean over those that occur |
| calibration_error | probabilities | ten bins of confidence: how far confidence and accuracy differ, weighted |
| rmse, mae | quantities | the root of the mean squared error, the mean absolute error |
| r2 | quantities | 1 - the squared error as a share of the truth's variance |

What cannot be said, such as the AUC of examples of a single class, is NaN. A function of one's own takes the truth and
the predictions, as scikit-learn's do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbc.errors import InputError, unknown

__all__ = [
    "METRICS",
    "Metric",
    "accuracy",
    "auc",
    "balanced_accuracy",
    "calibration_error",
    "chosen",
    "f1",
    "mae",
    "r2",
    "rmse",
    "scores",
]

Array = np.ndarray
BINS = 10
"""Of the calibration error."""


def accuracy(truth: Array, predicted: Array) -> float:
    """The share of right answers."""
    return float(np.mean(truth == predicted)) if len(truth) else np.nan


def balanced_accuracy(truth: Array, predicted: Array) -> float:
    """The mean over the classes that occur of the share of their examples that are answered rightly."""
    recalls = [np.mean(predicted[truth == c] == c) for c in np.unique(truth)]
    return float(np.mean(recalls)) if recalls else np.nan


def f1(truth: Array, predicted: Array) -> float:
    """F1 of each class that occurs or is answered, and their mean."""
    found = []
    for c in np.union1d(truth, predicted):
        right = np.sum((truth == c) & (predicted == c))
        found.append(2 * right / (np.sum(truth == c) + np.sum(predicted == c)))
    return float(np.mean(found)) if found else np.nan


def auc(truth: Array, probabilities: Array) -> float:
    """The area under the ROC curve; (examples, classes) probabilities."""
    classes = probabilities.shape[-1]
    if classes == 2:
        return _area(truth == 1, probabilities[:, 1])
    areas = [_area(truth == c, probabilities[:, c]) for c in range(classes) if np.any(truth == c)]
    return float(np.mean(areas)) if areas else np.nan


def _area(positive: Array, score: Array) -> float:
    """The share of pairs, one positive, one negative, in which the positive example scores higher; ties are halves."""
    many, rest = int(positive.sum()), int((~positive).sum())
    if not many or not rest:
        return np.nan
    _, group, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2  # the mean rank of equal scores
    return float((rank[group][positive].sum() - many * (many + 1) / 2) / (many * rest))


def calibration_error(truth: Array, probabilities: Array) -> float:
    """How far the largest probability and the share of right answers differ, over bins of that probability."""
    if not len(truth):
        return np.nan
    confidence, right = probabilities.max(-1), probabilities.argmax(-1) == truth
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence)
    gap = np.bincount(place, right - confidence, BINS)
    return float(np.abs(gap).sum() / len(truth))


def rmse(truth: Array, predicted: Array) -> float:
    """The root of the mean squared error."""
    return float(np.sqrt(np.mean((truth - predicted) ** 2))) if len(truth) else np.nan


def mae(truth: Array, predicted: Array) -> float:
    """The mean absolute error."""
    return float(np.mean(np.abs(truth - predicted))) if len(truth) else np.nan


def r2(truth: Array, predicted: Array) -> float:
    """1 minus the squared error as a share of the truth's variance."""
    if len(truth) < 2:
        return np.nan
    error, spread = np.sum((truth - predicted) ** 2), np.sum((truth - np.mean(truth)) ** 2)
    if spread == 0:
        return 1.0 if error == 0 else 0.0
    return float(1 - error / spread)


@dataclass(frozen=True)
class Metric:
    """A metric, and what it takes."""

    function: Callable[[Array, Array], float]
    of_classes: bool
    """or of quantities"""
    of_probabilities: bool = False
    """or of the chosen classes"""
    higher_is_better: bool | None = True
    """None for a function of one's own, of which nobody knows"""


METRICS = {
    "accuracy": Metric(accuracy, of_classes=True),
    "balanced_accuracy": Metric(balanced_accuracy, of_classes=True),
    "f1": Metric(f1, of_classes=True),
    "auc": Metric(auc, of_classes=True, of_probabilities=True),
    "calibration_error": Metric(calibration_error, of_classes=True, of_probabilities=True, higher_is_better=False),
    "rmse": Metric(rmse, of_classes=False, higher_is_better=False),
    "mae": Metric(mae, of_classes=False, higher_is_better=False),
    "r2": Metric(r2, of_classes=False),
}
"""All of them by their names."""

Wanted = Sequence[str] | Mapping[str, Callable[[Array, Array], float]]


def chosen(wanted: Wanted | None, *, classes: bool) -> dict[str, Metric]:
    """Metrics by names, or functions of one's own; all that suit the answers if None is given."""
    if wanted is None:
        return {name: metric for name, metric in METRICS.items() if metric.of_classes == classes}
    if isinstance(wanted, Mapping):
        return {
            str(name): Metric(function, of_classes=classes, higher_is_better=None) for name, function in wanted.items()
        }
    for name in wanted:
        if name not in METRICS:
            raise unknown("metrics", name, METRICS)
        if METRICS[name].of_classes != classes:
            raise InputError(
                f"metrics={name!r} is not accepted: the model predicts {'classes' if classes else 'quantities'}"
            )
    return {name: METRICS[name] for name in wanted}


def scores(metrics: Mapping[str, Metric], truth: Array, outputs: Any, *, classes: bool) -> dict[str, float]:
    """The metrics of a model's outputs: logits (examples, classes), or quantities."""
    outputs = np.asarray(outputs, float)
    truth = np.asarray(truth)
    if not len(truth):
        return dict.fromkeys(metrics, float("nan"))
    if not classes:
        outputs = outputs.reshape(truth.shape)
        return {name: float(metric.function(truth, outputs)) for name, metric in metrics.items()}
    scaled = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    probabilities, predicted = scaled / scaled.sum(axis=-1, keepdims=True), outputs.argmax(axis=-1)
    return {
        name: float(metric.function(truth, probabilities if metric.of_probabilities else predicted))
        for name, metric in metrics.items()
    }
