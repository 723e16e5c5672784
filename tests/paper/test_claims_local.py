"""Judges of local models and tolerances, on made-up results."""

import pytest
from given import OTHER, SKEWED, Given

from fedbc.paper.catalogue import TOLERANCES
from fedbc.paper.claims import local
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY


@pytest.mark.parametrize(
    ("of_z", "of_devices", "verdict"),
    [
        (lambda t: 85 + 2 * (0 < t <= 0.05) - 3 * (t > 1), lambda t: 80 + (t > 0) + (t > 1), CONFIRMED),
        (lambda t: 85 + 2 * (0 < t <= 0.05), lambda t: 80 + (t > 0), PARTLY),
        (lambda t: 85 + 0.5 * (t == 0.05), lambda t: 80.0, PARTLY),  # global accuracy alone
        (lambda t: 85 - t, lambda t: 80 - t, NOT),
    ],
)
def test_raising_the_tolerance(of_z, of_devices, verdict):
    found = Given()
    for t in TOLERANCES:
        for seed in (1, 2):
            wobble = 0.002 * seed
            values = {"global_accuracy": of_z(t) / 100 + wobble, "local_accuracy": of_devices(t) / 100 + wobble}
            found.add("synthetic-gamma", "fedbc", {"tolerance": t}, seed=seed, **values)
    assert local.tolerance_trade(found).verdict == verdict


def test_what_seeds_may_make_of_a_tolerance_is_no_gain():
    """The best of twelve is above gamma = 0, and differs by seed as much as that."""
    found = Given()
    for t in TOLERANCES:
        for seed, luck in ((1, 1.5), (2, -0.5)):
            values = dict.fromkeys(("global_accuracy", "local_accuracy"), 0.8 + luck / 100 * (t == 0.05))
            found.add("synthetic-gamma", "fedbc", {"tolerance": t}, seed=seed, **values)
    judged = local.tolerance_trade(found)
    assert judged.verdict == NOT
    assert "+0.5 ± 1.0 (not clear) and +0.5 ± 1.0 (not clear) on gamma = 0." in judged.evidence
    assert "raises neither clearly" in judged.evidence


@pytest.mark.parametrize(("with_a_say", "told"), [(1, True), (0, False), (3, False)])
def test_a_tolerance_that_only_some_devices_reach_is_told(with_a_say, told):
    found = Given()
    for t in TOLERANCES:
        multipliers = {"multipliers": [0.5] * with_a_say + [0.0] * (3 - with_a_say)}
        values = {"global_accuracy": 0.80 if t == 0.1 else 0.85, "local_accuracy": 0.8}
        for seed in (1, 2):
            found.add("synthetic-gamma", "fedbc", {"tolerance": t}, seed=seed, more=multipliers, **values)
    evidence = local.tolerance_trade(found).evidence
    assert ("At gamma = 0.1 global accuracy falls to 80.0 %: only 33 % of the devices" in evidence) == told


def local_table(experiment="cifar10-local-e5", **columns):
    found = Given()
    for setting in (SKEWED, OTHER):
        for method, values in columns.items():
            found.add(experiment, method, setting, **values)
    return found


@pytest.mark.parametrize(
    ("pfedme", "perfedavg", "verdict"),
    [(0.7, 0.9, CONFIRMED), (0.7, 0.75, PARTLY), (0.9, 0.9, PARTLY), (0.9, 0.7, NOT)],
)
def test_between_the_personal_methods(pfedme, perfedavg, verdict):
    """FedBC has 80 % under both protocols."""
    found = local_table(fedbc={"local_accuracy": 0.8})
    assert local.between_personal_methods(found).verdict == NOT_RUN
    found.add("cifar10-local-e5", "pfedme", SKEWED, local_accuracy=pfedme)
    partial = local.between_personal_methods(found)
    assert partial.verdict == (PARTLY if pfedme < 0.8 else NOT)
    assert "Per-FedAvg not run." in partial.evidence
    found.add("cifar10-local-e5", "perfedavg", SKEWED, finetuned_accuracy=perfedavg)
    found.add("cifar10-local-e5-reference", "fedbc-reference", SKEWED, local_accuracy_weighted=0.8)
    adapted = {"finetuned_on_test_accuracy_weighted": 0.9}
    found.add("cifar10-local-e5-reference", "perfedavg-reference", SKEWED, **adapted)
    judged = local.between_personal_methods(found)
    assert judged.verdict == verdict
    assert f"less pFedMe: {80 - 100 * pfedme:+.1f} points" in judged.evidence
    assert ("have seen test data" in judged.evidence) == (perfedavg < 0.8)
    found.add("cifar10-local-e5", "fedbc", SKEWED, seed=2, local_accuracy=0.1)  # the others have no such seed
    assert local.between_personal_methods(found) == judged


@pytest.mark.parametrize(("tuned", "verdict"), [(0.84, CONFIRMED), (0.80, NOT)])
def test_fine_tuning(tuned, verdict):
    found = local_table(fedbc={"local_accuracy": 0.8, "finetuned_accuracy": tuned})
    assert local.fine_tuning(found).verdict == verdict


def test_fine_tuning_on_test_data_is_told_apart():
    found = local_table(fedbc={"local_accuracy": 0.8, "finetuned_accuracy": 0.8})
    leaky = {"local_accuracy_weighted": 0.7, "finetuned_on_test_accuracy_weighted": 0.78}
    found.add("cifar10-local-e5-reference", "fedbc-reference", SKEWED, **leaky)
    judged = local.fine_tuning(found)
    assert judged.verdict == NOT
    assert "by showing the model test data" in judged.evidence
    assert "as in the reference: +8.0 points" in judged.evidence


@pytest.mark.parametrize(("ours", "verdict"), [(0.795, CONFIRMED), (0.9, NOT), (0.7, NOT)])
def test_per_fedbc(ours, verdict):
    """A device's own model is not compared with the global one; under the reference protocol both are the device's."""
    found = local_table(perfedbc={"finetuned_accuracy": 0.95}, perfedavg={"finetuned_accuracy": 0.8})
    assert local.per_fedbc(found).verdict == NOT_RUN
    column, name = "finetuned_on_test_accuracy_weighted", "cifar10-local-e5-reference"
    found.add(name, "perfedbc-reference", SKEWED, **{column: ours})
    found.add(name, "perfedavg-reference", SKEWED, **{column: 0.8})
    judged = local.per_fedbc(found)
    assert judged.verdict == verdict
    assert "compares unlike models" in judged.evidence
    assert ("Per-FedBC is ahead." in judged.evidence) == (ours == 0.9)


@pytest.mark.parametrize(("tuned", "verdict"), [(0.7, CONFIRMED), (0.9, NOT)])
def test_per_fedbc_is_best(tuned, verdict):
    found = Given()
    found.add("cifar10-local-e5", "perfedbc", OTHER, finetuned_accuracy=0.8)
    assert local.per_fedbc_best(found).verdict == NOT_RUN  # nothing to compare with
    found.add("cifar10-local-e5", "fedbc", OTHER, local_accuracy=0.6, finetuned_accuracy=tuned)
    found.add("cifar10-local-e5", "perfedavg", OTHER, finetuned_accuracy=0.65)
    found.add("cifar10-rates", "perfedbc-stated", OTHER, finetuned_accuracy=0.95)  # no rival
    judged = local.per_fedbc_best(found)
    assert judged.verdict == verdict
    assert f"C = 3, exponent 1.4: {80 - 100 * tuned:+.1f} (FedBC-FineTune)." in judged.evidence
    assert ("serve devices better" in judged.evidence) == (verdict == NOT)
    found.add("cifar10-local-e5", "perfedbc", SKEWED, finetuned_accuracy=0.1)  # C = 1 is not claimed
    assert local.per_fedbc_best(found) == judged


def test_per_fedbc_is_compared_over_the_seeds_that_both_have():
    found = Given()
    for seed, share in ((1, 0.8), (2, 0.6)):
        found.add("cifar10-local-e5", "perfedbc", OTHER, seed=seed, finetuned_accuracy=share)
    found.add("cifar10-local-e5", "pfedme", OTHER, seed=1, local_accuracy=0.75)
    judged = local.per_fedbc_best(found)
    assert judged.verdict == CONFIRMED
    assert "+5.0 (pFedMe)" in judged.evidence


def at_rates(stated, tuned, rate=0.01):
    """Global and local accuracy of Per-FedAvg at the stated outer rate and at the tuned one; the paper's is 85.6 %."""
    found, columns = Given(), ("global_accuracy", "finetuned_accuracy")
    found.add("cifar10-rates", "perfedavg-stated", SKEWED, **dict(zip(columns, stated, strict=True)))
    algorithm = {"spec": {"algorithm": {"lr": rate}}}
    found.add("cifar10-local-e5", "perfedavg", SKEWED, more=algorithm, **dict(zip(columns, tuned, strict=True)))
    return local.stated_rate(found)


def test_the_stated_outer_rate():
    judged = at_rates((0.1, 0.6), (0.4, 0.8))
    assert judged.verdict == CONFIRMED
    assert "at 0.001 and at the tuned 0.01 (1 settings): global accuracy 10.0 and 40.0 %" in judged.evidence
    assert "local 60.0 and 80.0 %, which is 25.6 and 5.6 points off the paper's." in judged.evidence
    assert at_rates((0.1, 0.8), (0.4, 0.6)).verdict == PARTLY  # it does not train, but is nearer
    assert at_rates((0.4, 0.8), (0.4, 0.8), rate=0.001).verdict == NOT
    assert local.stated_rate(Given()).verdict == NOT_RUN


def test_local_claims_say_how_plain_fedavg_fares():
    found = local_table(
        fedbc={"local_accuracy": 0.8}, pfedme={"local_accuracy": 0.7}, perfedavg={"finetuned_accuracy": 0.9}
    )
    assert "controls" not in local.between_personal_methods(found).evidence
    found.add("cifar10-local-controls", "fedavg", SKEWED, local_accuracy=0.79, finetuned_accuracy=0.82)
    found.add("cifar10-local-controls", "localonly", SKEWED, local_accuracy=0.75)
    found.add("cifar10-local-controls", "ditto", OTHER, seed=2, local_accuracy=0.1)  # FedBC has no such seed
    said = local.between_personal_methods(found).evidence
    assert "FedBC's own x_i less FedAvg's own x_i: +1.0 points" in said
    assert "less FedAvg-FineTune: -2.0 points" in said
    assert "less Local only: +5.0 points" in said
    assert "pFedMe less FedAvg's own x_i: -9.0 points" in said
    assert "Ditto" not in said
