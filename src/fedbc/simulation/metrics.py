"""One row of history: the words of evaluation, defined once.

| column | which model, on which examples |
| --- | --- |
| global_accuracy | z on the union of all devices' test sets |
| global_loss | z on the union of all devices' training sets, mean over examples |
| global_test_loss | z on the union of all devices' test sets, mean over examples |
| local_accuracy | each device's own x_i on its own test set, mean over devices |
| local_accuracy_weighted | the same, weighted by test examples |
| accuracy_mean, accuracy_variance, worst_accuracy, worst_decile_accuracy, best_accuracy | z on each device's own test set, over devices |
| min_user_accuracy, max_user_accuracy | z on the test set of the device with the fewest, the most training examples |

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


def without_accuracy(row: dict[str, Any]) -> dict[str, Any]:
    """For models whose answers are neither right nor wrong: accuracy is not a number."""
    return {k: float("nan") if "accuracy" in k else v for k, v in row.items()}
