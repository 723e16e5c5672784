"""One row of history: the words of evaluation, defined once.

| column | which model, on which examples |
| --- | --- |
| global_accuracy | z on the union of all devices' test sets |
| global_loss | z on the union of all devices' training sets, mean over examples |
| global_test_loss | z on the union of all devices' test sets, mean over examples |
| local_accuracy | each device's own x_i on its own test set, mean over devices |
| local_accuracy_weighted | the same, weighted by test examples |
| accuracy_mean, accuracy_variance | z on each device's own test set: mean and variance over devices |
| worst_accuracy, worst_decile_accuracy, best_accuracy | the same: worst device, mean of the worst tenth, best |
| min_user_accuracy, max_user_accuracy | z on the test set of the device with the fewest, the most training examples |
| finetuned_accuracy | each device's model after fine-tuning on its own *training* data, on its own test set |
| finetuned_on_test_accuracy | the same after fine-tuning on *test* data, which leaks: for the reference protocol only |
| gradient_sqnorm, gradient_sqnorm_mean | ‖∇f(z)‖², f the mean of the devices' training losses; its mean so far |
| local_train_loss, lagrangian | mean over devices of f_i(x_i), and of f_i(x_i) + lambda_i (‖x_i - z‖² - gamma_i) |
| drift_all, violation_mean, violation_max | ‖x_i - z‖² and max(0, ‖x_i - z‖² - gamma_i), over all devices |
| drift, local_loss | mean over the round's devices of ‖x_i - z‖² after their steps, and of their loss along the steps |

Accuracies are shares of 1, and so the variance is that of shares (the paper's is in percent squared: 10⁴ times ours).
A device that never took part counts with the current z; one without test examples is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbc.simulation.scoring import Sums

Array = np.ndarray


def global_row(test: Sums, train_sizes: Array) -> dict[str, float]:
    """Columns about z on the test sets."""
    accuracy = test.accuracy
    known = accuracy[~np.isnan(accuracy)]
    decile = np.sort(known)[: max(1, len(known) // 10)]
    return {
        "global_accuracy": test.correct.sum() / test.examples.sum(),
        "global_test_loss": test.loss.sum() / test.examples.sum(),
        "accuracy_mean": known.mean(),
        "accuracy_variance": known.var(),
        "worst_accuracy": known.min(),
        "worst_decile_accuracy": decile.mean(),
        "best_accuracy": known.max(),
        "min_user_accuracy": accuracy[np.argmin(train_sizes)],
        "max_user_accuracy": accuracy[np.argmax(train_sizes)],
    }


def train_row(train: Sums) -> dict[str, float]:
    """Columns about z on the training sets."""
    return {"global_loss": train.loss.sum() / train.examples.sum()}


def local_row(own: Sums) -> dict[str, float]:
    """Columns about each x_i on its own test set."""
    return {
        "local_accuracy": float(np.nanmean(own.accuracy)),
        "local_accuracy_weighted": own.correct.sum() / own.examples.sum(),
    }


def tuned_row(own: Sums, column: str) -> dict[str, float]:
    """Columns about each device's fine-tuned model on its own test set."""
    return {column: float(np.nanmean(own.accuracy)), f"{column}_weighted": own.correct.sum() / own.examples.sum()}


def lagrangian_row(own_loss: Array, drift: Array, multiplier: Array, tolerance: Array) -> dict[str, float]:
    """Columns about the constrained problem, with the current z; the duals are NaN for methods without them."""
    row = {"local_train_loss": own_loss.mean(), "drift_all": drift.mean()}
    if not np.isnan(multiplier).any():
        # An infinite tolerance has multiplier 0 and adds nothing.
        slack = np.where(np.isinf(tolerance), 0, drift - tolerance)
        row["lagrangian"] = (own_loss + multiplier * slack).mean()
        row["violation_mean"] = np.maximum(slack, 0).mean()
        row["violation_max"] = np.maximum(slack, 0).max()
    return row


def without_accuracy(row: dict[str, Any]) -> dict[str, Any]:
    """For models whose answers are neither right nor wrong: accuracy is not a number."""
    return {k: float("nan") if "accuracy" in k else v for k, v in row.items()}
