"""Judges of what the paper's text names, on made-up results."""

import pytest
from given import Given

from fedbc.paper import theory as numbers
from fedbc.paper.claims import named, theory
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, is_clear


@pytest.mark.parametrize("margin", named.MARGINS, ids=lambda m: f"{m.points:g}")
def test_the_margins_are_those_of_the_papers_own_tables(margin):
    printed = named.in_papers_table(margin)
    assert printed == pytest.approx(margin.points, abs=0.5)  # 3 % of the text is rounded


def with_margins(share):
    """Every margin, but for the share of it that ours has; two seeds."""
    found = Given()
    for margin in named.MARGINS:
        for seed in (1, 2):
            lead = share * margin.points / 100
            if margin.over:
                experiment = f"{margin.data}-e{margin.epochs}"
                found.add(experiment, "fedbc", margin.setting, seed=seed, global_accuracy=0.5 + lead)
                for key in margin.over:
                    found.add(experiment, key, margin.setting, seed=seed, global_accuracy=0.5)
            else:
                columns = {"finetuned_accuracy": 0.5 + lead, "local_accuracy": 0.5}
                found.add("cifar10-local-e5", "fedbc", margin.setting, seed=seed, **columns)
    return found


@pytest.mark.parametrize(("share", "verdict"), [(1.1, CONFIRMED), (0.6, CONFIRMED), (0.3, NOT)])
def test_margins(share, verdict):
    judged = named.margins_named(with_margins(share))
    assert judged.verdict == verdict
    assert not judged.so_far
    assert f"FedBC over FedAvg 7.89 (CIFAR-10, E = 5, C = 3, exponent = 1.5): {7.89 * share:+.1f} ± 0.0 (2 seeds)." in (
        judged.evidence
    )


def test_margins_that_were_not_run_are_named():
    found = Given()

    def add(seed):
        for key, value in (("fedbc", 0.58), ("fedavg", 0.5)):
            setting = {"classes": 1, "exponent": 1.2}
            found.add("cifar10-e5", key, setting, seed=seed, global_accuracy=value + seed / 1000)

    add(1)
    judged = named.margins_named(found)
    assert judged.verdict == NOT_RUN  # one seed shows a number, and proves nothing
    assert "exponent = 1.2): +8.0 (1 seed)." in judged.evidence
    add(2)
    judged = named.margins_named(found)
    assert (judged.verdict, judged.so_far) == (CONFIRMED, True)
    assert "exponent = 1.4): not run." in judged.evidence
    assert named.margins_named(Given()).verdict == NOT_RUN


@pytest.mark.parametrize(
    ("multipliers", "verdict"),
    [([1] * 8, CONFIRMED), ([1, 1, 1, 1, 2, 1, 1, 1], PARTLY), ([1, 1, 2, 2, 50, 60, 400, 400], NOT)],
)
def test_the_crossing(multipliers, verdict):
    found = Given()
    line = {"curves": {}, "sizes": [80, 120, 160, 200, 1200, 1400, 2400, 2400], "multipliers": multipliers}
    found.add("synthetic", "fedbc", {"epochs": 5}, more=line)
    assert named.crossing(found).verdict == verdict
    assert named.crossing(Given()).verdict == NOT_RUN


@pytest.mark.parametrize(("scaffold", "late", "verdict"), [(1, 7, CONFIRMED), (9, 7, PARTLY), (9, 11, PARTLY)])
def test_the_ranking_by_variance_on_text(scaffold, late, verdict):
    found = Given()
    for epochs, own in ((1, 2), (5, late)):
        for key, value in (("fedbc", own), ("scaffold", scaffold), ("fedavg", 8), ("qfedavg", 6), ("fedprox", 5)):
            found.add("shakespeare", key, {"epochs": epochs}, accuracy_variance=value / 1e4)
    judged = named.variance_on_text(found)
    assert judged.verdict == verdict
    assert "From 1 seed" in judged.evidence


def test_a_paired_test_asks_for_more_than_two_errors_of_few_seeds():
    assert is_clear([1.0, 1.1, 0.9])
    assert not is_clear([1.0, 2.0, 0.2])  # two standard errors off 0, and luck in one case of six
    assert not is_clear([1.0])
    assert is_clear([-1.0, -1.1, -0.9])


def study(ratio=1e-3, apart=2.0):
    """The theory's study as if the theorem and the corollary held, or not."""
    lines = []
    for _, case in numbers.cases():
        plateau = 1e-3 * max(case.apart, 0.01) ** apart
        delta = 10.0
        mean = ratio * (delta**2 + case.alpha)
        lines.append(
            {
                "hash": case.key,
                "case": {"alpha": case.alpha, "gamma": case.gamma, "rounds": case.rounds, "bounds": case.bounds},
                "mean": [mean, mean],
                "plateau": plateau,
                "delta": delta,
                "epsilon": 0.0,
                "indicators": [round(100 - 100 * case.gamma)] * 10,
                "local_sqnorm": [2.0 - case.gamma] * 10,
            }
        )
    found = Given()
    found.studies["theory"] = lines
    return found


def test_the_theorem_can_fail():
    held = theory.theorem_holds(study())
    assert held.verdict == CONFIRMED
    assert "to the power quadratic +2.00" in held.evidence
    assert theory.theorem_holds(study(ratio=5.0)).verdict == NOT  # above its own terms
    assert theory.theorem_holds(study(apart=0.2)).verdict == PARTLY  # nothing of delta shows


def test_the_corollary_device_by_device():
    assert theory.corollary(study()).verdict == CONFIRMED
    other = study()
    for line in other.studies["theory"]:
        line["local_sqnorm"] = [3.0 - x for x in line["local_sqnorm"]]
    assert theory.corollary(other).verdict == PARTLY  # the bracket as it says, the stationarity the other way round
