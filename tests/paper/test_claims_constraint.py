"""Judges of what FedBC's constraint does, on made-up results."""

import math

import pytest
from given import OTHER, SKEWED, Given, constrained

from fedbc.paper.claims import constraint
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY


def test_what_a_pull_takes_back():
    """After a first step of 1 and nothing but the pull, what is left after 5 epochs of 5 steps is e^(-25 * 0.04)."""
    line = constrained(multiplier=1.0, epochs=5) | {"summary": {"drift": 0.4}}
    assert constraint.acting(line).pull == pytest.approx(1 - math.exp(-1))
    assert constraint.acting(line).room == pytest.approx(0.25)
    assert constraint.acting(line | {"multipliers": [0.0]}).pull == 0


@pytest.mark.parametrize(("alone", "costs"), [(91.0, True), (90.0, False)])
def test_what_weights_gain_without_their_pull(alone, costs):
    found = Given()
    assert constraint.without_pull(found, (SKEWED, OTHER)) == ""
    for seed, luck in ((1, 0.0), (2, 0.1), (3, 5.0)):  # a seed that only one of them has does not count
        found.accuracies("mnist-e5", SKEWED, seed=seed, fedbc=90 + luck)
        if seed < 3:
            found.accuracies("mnist-weights", SKEWED, seed=seed, fedbc_weights=alone + 2 * luck)
    text = constraint.without_pull(found, (SKEWED, OTHER))
    assert f"{alone - 90 + 0.05:+.1f} ± 0.1 points" in text
    assert "in 1 of 1 settings" in text
    assert ("the pull is what costs" in text) == costs


@pytest.mark.parametrize(("room", "of_images", "verdict"), [(0.01, 0.02, CONFIRMED), (0.01, 2.0, PARTLY), (1, 2, NOT)])
def test_room_beside_drift(room, of_images, verdict):
    found = Given()
    assert constraint.hardly_any_room(found).verdict == NOT_RUN
    found.add("synthetic", "fedbc", {"epochs": 5}, drift=1.0, more=constrained(0.001, tolerance=room))
    found.add("mnist-e5", "fedbc", SKEWED, drift=2.0, more=constrained(10.0, tolerance=2 * of_images))
    judged = constraint.hardly_any_room(found)
    assert judged.verdict == verdict
    assert f"synthetic data {room:.1g}; MNIST, E = 5 {of_images:.1g}." in judged.evidence
    assert "synthetic data 0 %; MNIST, E = 5 86 %." in judged.evidence
    assert "a mean weighted by these sums (synthetic data)" in judged.evidence
    roomy = [where for where, share in (("synthetic data", room), ("MNIST, E = 5", of_images)) if share > 0.1]
    assert ("more than 10% of it on " + "; ".join(roomy) in judged.evidence) == bool(roomy)


def test_what_room_changes_stands_beside_it():
    found = Given()
    for seed, gap in ((1, 0.02), (2, -0.04)):
        found.accuracies("synthetic", {"epochs": 5}, seed, fedbc=80 + gap)
        found.accuracies("synthetic-consensus", {"epochs": 5}, seed, fedbc_consensus=80)
    found.add("synthetic", "fedbc", {"epochs": 5}, drift=1.0, more=constrained(0.001, tolerance=4.0))
    assert (
        "gamma = 0 at the same rates changes global accuracy by +0.01 points in the mean, and by at most 0.04 in a run."
        in constraint.hardly_any_room(found).evidence
    )
