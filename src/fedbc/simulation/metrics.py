"""One row of history: the words of evaluation, defined once.

| column | which model, on which examples |
| --- | --- |
| global_accuracy | z on the union of all devices' test sets |
| global_loss | z on the union of all devices' training sets, mean over examples |
| global_test_loss | z on the union of all devices' test sets, mean over examples |
| local_accuracy | each device's own x_i on its own test set, mean over devices |
| local_accuracy_weighted | the same, weighted by test examples |
| local_test_loss | each device's own x_i on its own test set, mean over all devices' examples, as global_test_loss |
| accuracy_mean, accuracy_variance | z on each device's own test set: mean and variance over devices |
| worst_accuracy, worst_decile_accuracy, best_accuracy | the same: worst device, mean of the worst tenth, best |
| min_user_accuracy, max_user_accuracy | z on the test set of the device with the fewest, the most training examples |
| finetuned_accuracy | each device's model after fine-tuning on its own *training* data, on its own test set |
| finetuned_on_test_accuracy | the same after fine-tuning on *test* data, which leaks: for the reference protocol only |
| unseen_accuracy, unseen_loss | z on the union of the test sets of the devices kept out of training |
| unseen_accuracy_mean | z on each of these devices' test sets, mean over them |
| gradient_sqnorm, gradient_sqnorm_mean | ‖∇f(z)‖², f the mean of the devices' training losses; its mean so far |
| local_train_loss, lagrangian | mean over devices of f_i(x_i), and of f_i(x_i) + lambda_i (‖x_i - z‖² - gamma_i) |
| drift_all, violation_mean, violation_max | ‖x_i - z‖² and max(0, ‖x_i - z‖² - gamma_i), over all devices |
| drift, local_loss | mean over the round's devices of ‖x_i - z‖² after their steps, and of their loss along the steps |

Accuracies are shares of 1, and so the variance is that of shares (the paper's is in percent squared: 10⁴ times ours).
A device that never took part counts with the current z; one without test examples is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

from fedbc.algorithms.base import Duals
from fedbc.simulation.scoring import Sums

Array = np.ndarray
Row = dict[str, float]


@dataclass(frozen=True)
class Measured:
    """What a row is made of, device by device; None for what was not measured."""

    test: Sums
    """z on the test sets"""
    train_sizes: Array
    """training examples of the devices of `test`"""
    train: Sums | None = None
    """z on the training sets"""
    gradient: Row = field(default_factory=dict)
    """the columns about ∇f(z)"""
    local: Sums | None = None
    """each x_i on its own test set"""
    tuned: Sums | None = None
    """each fine-tuned model on its own test set"""
    local_train_loss: Array | None = None
    """f_i(x_i)"""
    drift: Array | None = None
    """‖x_i - z‖²"""
    duals: Duals | None = None


def make_row(measured: Measured, *, devices: bool, tuned: str, accuracy: bool) -> Row:
    """The columns of history.

    devices: whether z is judged device by device, too, and not by its loss on all test sets alone.
    tuned: the column of the fine-tuned models.
    accuracy: whether the model's answers are right or wrong; if not, accuracies are not a number.
    """
    m = measured
    row: Row = {}
    tested = bool(m.test.examples.any())  # if nobody has test data, there is nothing to say of them
    if tested:
        row |= global_row(m.test, m.train_sizes) if devices else {"global_test_loss": _mean_loss(m.test)}
    if m.train is not None:
        row["global_loss"] = _mean_loss(m.train)
    row |= m.gradient
    if tested and m.local is not None:
        row |= _accuracy_row(m.local, "local_accuracy")
        row["local_test_loss"] = _mean_loss(m.local)
    if tested and m.tuned is not None:
        row |= _accuracy_row(m.tuned, tuned)
    if m.local_train_loss is not None and m.drift is not None:
        row |= lagrangian_row(m.local_train_loss, m.drift, m.duals)
    return {k: float("nan") if "accuracy" in k and not accuracy else float(v) for k, v in row.items()}


def global_row(test: Sums, train_sizes: Array) -> Row:
    """Columns about z on the test sets."""
    accuracy = test.accuracy
    known = accuracy[~np.isnan(accuracy)]
    decile = np.sort(known)[: max(1, len(known) // 10)]
    return {
        "global_accuracy": test.correct.sum() / test.examples.sum(),
        "global_test_loss": _mean_loss(test),
        "accuracy_mean": known.mean(),
        "accuracy_variance": known.var(),
        "worst_accuracy": known.min(),
        "worst_decile_accuracy": decile.mean(),
        "best_accuracy": known.max(),
        "min_user_accuracy": accuracy[np.argmin(train_sizes)],
        "max_user_accuracy": accuracy[np.argmax(train_sizes)],
    }


def unseen_row(test: Sums, *, accuracy: bool) -> Row:
    """Columns about z on the devices that were kept out of training."""
    if not test.examples.any():
        return {}
    row: Row = {"unseen_loss": float(_mean_loss(test))}
    if accuracy:
        overall = float(test.correct.sum() / test.examples.sum())
        row |= {"unseen_accuracy": overall, "unseen_accuracy_mean": float(np.nanmean(test.accuracy))}
    return row


def _mean_loss(sums: Sums) -> float:
    """The mean over the examples of all devices."""
    return sums.loss.sum() / sums.examples.sum()


def _accuracy_row(own: Sums, column: str) -> Row:
    """Columns about each device's own model on its own test set."""
    return {column: float(np.nanmean(own.accuracy)), f"{column}_weighted": own.correct.sum() / own.examples.sum()}


def lagrangian_row(own_loss: Array, drift: Array, duals: Duals | None) -> Row:
    """Columns about the constrained problem, with the current z; those with duals for methods that have them."""
    row = {"local_train_loss": own_loss.mean(), "drift_all": drift.mean()}
    if duals is not None:
        multiplier, tolerance = duals
        # An infinite tolerance has multiplier 0 and adds nothing.
        slack = np.where(np.isinf(tolerance), 0, drift - tolerance)
        row["lagrangian"] = (own_loss + multiplier * slack).mean()
        row["violation_mean"] = np.maximum(slack, 0).mean()
        row["violation_max"] = np.maximum(slack, 0).max()
    return row


TEST_LOSSES = ("global_test_loss", "local_test_loss")
"""Shown where there are no accuracies, as in regression."""


def has_accuracy(frame: pd.DataFrame) -> bool:
    """Whether answers were counted as right or wrong."""
    return any(c in frame and frame[c].notna().any() for c in ("global_accuracy", "local_accuracy"))
