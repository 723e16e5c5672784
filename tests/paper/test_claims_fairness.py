"""Judges of how evenly devices are served, on made-up results."""

import pytest
from given import SKEWED, Given

from fedbc.paper.catalogue import EPOCHS
from fedbc.paper.claims import fairness
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY


@pytest.mark.parametrize(
    ("ours", "verdict", "smallest"),
    [([5] * 5, CONFIRMED, 5), ([5, 5, 5, 7, 11], PARTLY, 3), ([7] * 5, PARTLY, 0), ([5, 7, 7, 7, 11], NOT, 1)],
)
def test_variance(ours, verdict, smallest):
    """Of all methods, not of FedAvg alone: q-FedAvg has 6."""
    found = Given()
    for own, epochs in zip(ours, EPOCHS, strict=True):
        for method, variance in (("fedbc", own), ("fedavg", 10), ("qfedavg", 6), ("fedavg-uniform", 5)):
            found.add("synthetic", method, {"epochs": epochs}, accuracy_variance=variance)
    judged = fairness.smaller_variance(found)
    assert judged.verdict == verdict
    assert "most of it is the weights" in judged.evidence
    assert f"in {smallest} of 5 settings (synthetic data {smallest} of 5)" in judged.evidence


def with_coefficients(**by_method):
    found = Given()
    for method, coefficients in by_method.items():
        for epochs in EPOCHS:
            found.add("synthetic", method, {"epochs": epochs}, more={"curves": {}, "coefficients": coefficients})
    return found


@pytest.mark.parametrize(("ours", "verdict"), [(0.84, CONFIRMED), (0.70, PARTLY), (0.40, NOT)])
def test_users_meet(ours, verdict):
    def users(smallest):
        return {"min": [0.1] * 10, "min_accuracy": [smallest] * 10, "max_accuracy": [0.85] * 10}

    found = with_coefficients(fedbc=users(ours), fedavg=users(0.55))
    assert fairness.users_meet(found).verdict == verdict


@pytest.mark.parametrize(("late", "verdict"), [(0.11, CONFIRMED), (0.20, PARTLY), (0.50, NOT)])
def test_coefficients_converge(late, verdict):
    weights = {"min": [0.1] * 9, "max": [0.3] * 6 + [late] * 3, "min_by_size": [0.05] * 9, "max_by_size": [0.5] * 9}
    judged = fairness.coefficients_converge(with_coefficients(fedbc=weights))
    assert judged.verdict == verdict
    assert f"E = 5: 3.0, {10 * late:.1f}, 10;" in judged.evidence


def test_coefficients_on_images():
    def judged(late):
        weights = {"min": [0.1] * 9, "max": [0.3] * 6 + [late] * 3, "min_by_size": [0.05] * 9, "max_by_size": [0.5] * 9}
        found = Given()
        more = {"sizes": [100, 400, 900, 50], "multipliers": [1.0, 2.0, 3.0, 0.0]}  # √n_i; the last was never sampled
        found.add("cifar10-coefficients", "fedbc", SKEWED, more={"curves": {}, "coefficients": weights, **more})
        return fairness.coefficients_on_images(found)

    assert judged(0.11).verdict == CONFIRMED
    assert "C = 1: 3.0, 1.1, 10." in judged(0.11).evidence
    assert "n_i^k, k = 0.5 (0: uniform weights, 1: by size). A device with more" in judged(0.11).evidence
    assert judged(0.5).verdict == NOT
    assert fairness.coefficients_on_images(Given()).verdict == NOT_RUN


@pytest.mark.parametrize(
    ("by_50", "large", "verdict"), [(0.9, 1.0, CONFIRMED), (0.3, 1.0, PARTLY), (0.9, 5.0, PARTLY), (0.3, 5.0, NOT)]
)
def test_multipliers_settle(by_50, large, verdict):
    ends = [1.0, 1.0, large, large]
    way = {"1": [0.0] * 4, "50": [by_50 * e for e in ends], "100": ends, "200": ends}
    found = Given()
    more = {"curves": {}, "snapshots": way, "sizes": [10, 20, 300, 400]}
    found.add("synthetic", "fedbc", {"epochs": 5}, more=more)
    judged = fairness.multipliers_settle(found)
    assert judged.verdict == verdict
    assert f"{by_50:.0%} (E = 5)" in judged.evidence
    assert f"{1 / large:.2f}, {1 / large:.2f} (E = 5)" in judged.evidence
    assert fairness.multipliers_settle(Given()).verdict == NOT_RUN
