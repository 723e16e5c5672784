"""Why our level is below the paper's: what the sentence below the table says of it."""

import pytest
from given import Given

from fedbc.paper.specifications import BELOW
from fedbc.paper.suspicions import Suspicion, noise, verdict

NONE = Suspicion("rate 0.5", 20.0, -20.0, 30.0)
SOME = Suspicion("200 rounds", 46.0, 6.0, 4.5)
ENOUGH = Suspicion("500 rounds", 49.0, 9.0, 1.5)
OPEN = Suspicion("no crops", None, None, None, "not run")


def test_nothing_run_says_nothing() -> None:
    assert verdict([OPEN]) == ""


def test_the_question_stays_open_while_nothing_comes_near() -> None:
    said = verdict([NONE, SOME, OPEN])
    assert said.startswith("What gives most: 200 rounds (+6.0), rate 0.5 (-20.0).")
    assert "the question stays open" in said
    assert said.endswith("1 of 3 were not run yet.")


def test_what_comes_near_is_named_without_claiming_that_the_paper_did_it() -> None:
    said = verdict([SOME, ENOUGH])
    assert "Within 2 points of the paper, or above: 500 rounds." in said
    assert "it does not show that the paper did it" in said
    assert "open" not in said


def test_what_seeds_alone_do_stands_beside() -> None:
    found = Given()
    assert noise(found) is None
    for seed, value in ((1, 0.40), (2, 0.36)):
        found.add("cifar10-e5", "fedavg", BELOW, seed=seed, global_accuracy=value)
    assert noise(found) == pytest.approx(100 * 0.04 / 2**0.5)
    assert "a standard deviation of 2.8 points: smaller effects tell nothing." in verdict([SOME], noise(found))
    assert "deviation" not in verdict([SOME])
