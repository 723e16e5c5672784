"""Judges of the global model's accuracy and loss, on made-up results."""

import pytest
from given import SKEWED, Given, by_epochs, constrained

from fedbc.paper.catalogue import EPOCHS
from fedbc.paper.claims import accuracy
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY


def test_best_everywhere_on_the_synthetic_data():
    verdict = accuracy.synthetic_best(by_epochs(fedbc=87, fedavg=83, scaffold=84, fedavg_uniform=86))
    assert verdict.verdict == CONFIRMED
    assert "in 5 of 5 settings (+3.0 to +3.0 points)" in verdict.evidence
    assert "ahead in 5 of 5 settings, by +1.0 points" in verdict.evidence


def test_best_somewhere_names_where_it_loses_and_to_whom():
    found = by_epochs(fedbc=[84, 87, 87, 87, 87], fedavg=83, qfedavg=[84.8, 86, 86, 86, 86])
    verdict = accuracy.synthetic_best(found)
    assert verdict.verdict == PARTLY
    assert "in 4 of 5 settings" in verdict.evidence
    assert "It loses most at E = 1: q-FedAvg is ahead by 0.8 points" in verdict.evidence


def test_a_control_is_no_rival():
    """The paper does not have uniform weights, so they do not decide whether FedBC is best of its methods."""
    verdict = accuracy.synthetic_best(by_epochs(fedbc=87, fedavg=83, fedavg_uniform=88))
    assert verdict.verdict == CONFIRMED
    assert "ahead in 0 of 5 settings, by -1.0 points" in verdict.evidence


@pytest.mark.parametrize(("seeds", "verdict"), [((80, 80.2), NOT), ((79, 84), PARTLY)])
def test_best_in_one_setting_but_behind_on_the_whole(seeds, verdict):
    """Behind by more than two standard errors of the mean, or by what seeds may make of it."""
    found = Given()
    for seed, fedbc in enumerate(seeds, 1):
        for epochs in EPOCHS:
            others = {"fedavg": 82, "qfedavg": 80, "fedprox": 80, "scaffold": 80, "fedavg_uniform": 81}
            own = 82.5 if epochs == 1 else fedbc
            found.accuracies("synthetic", {"epochs": epochs}, seed, fedbc=own, fedprox_uniform=81, **others)
    judged = accuracy.synthetic_best(found)
    assert "in 1 of 5 settings" in judged.evidence
    assert judged.verdict == verdict


def test_best_nowhere():
    assert accuracy.synthetic_best(by_epochs(fedbc=80, fedavg=83)).verdict == NOT


def test_a_contest_needs_all_rivals():
    found = Given().accuracies("synthetic", {"epochs": 5}, fedbc=87, fedavg=83, qfedavg=86, fedprox=84)
    assert accuracy.synthetic_best(found).verdict == NOT_RUN
    found.add("synthetic", "scaffold", {"epochs": 5}, diverged=True)  # it took part, and lost
    assert accuracy.synthetic_best(found).verdict == CONFIRMED
    assert "1 of 5 settings were run" in accuracy.synthetic_best(found).evidence
    assert accuracy.synthetic_best(found).shown == f"{CONFIRMED} so far"


def test_a_difference_of_nothing_has_no_minus():
    verdict = accuracy.synthetic_best(by_epochs(fedbc=86.96, fedavg=83, fedavg_uniform=87))
    assert "by +0.0 points in the mean" in verdict.evidence


def test_more_devices():
    def found(fedbc, uniform):
        given = Given()
        for devices, own in zip((30, 70, 100), fedbc, strict=True):
            others = dict.fromkeys(("fedavg", "qfedavg", "fedprox", "qfedavg_reference", "scaffold_reference"), 80)
            others |= {"scaffold": 84, "fedavg_uniform": uniform, "fedprox_uniform": 80}
            given.accuracies("synthetic-devices", {"epochs": 5, "devices": devices}, fedbc=own, **others)
        return given

    assert accuracy.more_devices(found((87, 87, 84.5), 82)).verdict == CONFIRMED
    partly = accuracy.more_devices(found((87, 83, 84.5), 88))
    assert partly.verdict == PARTLY
    assert "not weighting by size gains as much" in partly.evidence
    assert accuracy.more_devices(found((83, 83, 87), 82)).verdict == NOT
    assert accuracy.more_devices(by_epochs(fedbc=1)).verdict == NOT_RUN


def test_how_much_is_the_weights():
    def found(uniform, by_gamma, **root):
        """FedBC has 87 %, and by_gamma points of it are gamma's; five seeds, with noise that both share."""
        given = by_epochs(fedavg=83, fedavg_uniform=uniform, fedprox_uniform=uniform, **root)
        for epochs in EPOCHS:
            for seed in range(1, 6):
                own, noise = constrained(multiplier=1.0, epochs=epochs), seed / 1e3
                at = {"epochs": epochs}
                given.add("synthetic", "fedbc", at, seed=seed, global_accuracy=0.87, drift=1.0, more=own)
                none = 0.87 - by_gamma / 100 + noise / 100
                given.add("synthetic-consensus", "fedbc-consensus", at, seed=seed, global_accuracy=none)
        return given

    own = accuracy.weights_or_duals(found(83.5, 2.0))
    assert own.verdict == CONFIRMED
    assert "uniform weights alone gain +0.5 of FedBC's +4.0 points" in own.evidence
    assert "+2.00 (E = 5)" in own.evidence
    between = accuracy.weights_or_duals(found(83.5, 2.0, fedavg_root=86.5))
    assert between.verdict == PARTLY  # weights between uniform and by size have most of it
    assert "weights √n_i gain +3.5; over these FedBC is ahead by +0.5 points (+0.5 to +0.5)." in between.evidence
    assert accuracy.weights_or_duals(found(86.5, 2.0)).verdict == PARTLY  # most of the gain is the weights
    # The whole lead over other methods is no merit of gamma if gamma = 0 has it, too.
    assert accuracy.weights_or_duals(found(83.5, 0.0)).verdict == NOT
    assert accuracy.weights_or_duals(found(83.5, -1.0)).verdict == NOT
    without = by_epochs(fedbc=87, fedavg=83, fedavg_uniform=84, fedprox_uniform=84)
    assert accuracy.weights_or_duals(without).verdict == NOT_RUN


def test_many_draws_have_an_error_of_their_own():
    given = Given()
    for draw, gain in ((1, 0.2), (2, 1.0), (3, 0.6)):
        given.accuracies("synthetic-many-draws", {"epochs": 5, "draw": draw}, fedbc=80 + gain, fedavg_root=80)
    said = accuracy.over_many_draws(given)
    assert "on 3 draws" in said
    assert "ahead by +0.6 ± 0.2 points (+0.2 to +1.0), in the median by +0.6, in 3 of them" in said
    assert said.endswith("not clear in the mean.")  # by a t-test with three draws
    for draw, gain in ((4, 0.6), (5, 0.7), (6, 0.5)):
        given.accuracies("synthetic-many-draws", {"epochs": 5, "draw": draw}, fedbc=80 + gain, fedavg_root=80)
    assert accuracy.over_many_draws(given).endswith("a small gain of its own, of weights and pull.")


def with_losses(scaffold_end=0.3, **at_each):
    found = Given()
    for place, epochs in enumerate(EPOCHS):
        for method, losses in ({"fedavg": [0.4] * 5, "qfedavg": [0.4] * 5, "fedprox": [0.4] * 5} | at_each).items():
            found.add("synthetic", method.replace("_", "-"), {"epochs": epochs}, global_loss=losses[place])
        curve = {"curves": {"global_loss": [2.0] + [0.3] * 50 + [scaffold_end] * 9}}
        found.add("synthetic", "scaffold", {"epochs": epochs}, global_loss=scaffold_end, more=curve)
    return found


def test_lowest_loss():
    whole = accuracy.lowest_loss(with_losses(scaffold_end=0.9, fedbc=[0.2] * 5))
    assert whole.verdict == CONFIRMED
    assert "SCAFFOLD's loss rises again for E = 25, 50." in whole.evidence
    partly = accuracy.lowest_loss(with_losses(fedbc=[0.2] * 4 + [0.35]))
    assert partly.verdict == PARTLY
    assert "E = 50: SCAFFOLD 0.300; FedBC 0.200, 0.200, 0.200, 0.200, 0.350." in partly.evidence
    assert "SCAFFOLD (with momentum 0.5, as all methods here) does not diverge." in partly.evidence
    assert accuracy.lowest_loss(with_losses(fedbc=[0.5] * 5)).verdict == NOT
    assert accuracy.lowest_loss(by_epochs(fedbc=87)).verdict == NOT_RUN


def test_lowest_loss_beside_the_controls():
    controls = {"fedavg_uniform": [0.3, 0.1, 0.3, 0.3, 0.3], "fedprox_uniform": [0.3] * 5}
    judged = accuracy.lowest_loss(with_losses(fedbc=[0.2] * 5, **controls))
    assert "uniform weights for 4 of 5 E" in judged.evidence


@pytest.mark.parametrize(
    ("fedbc", "scaffold", "verdict"), [(50.7, 32, CONFIRMED), (49, 32, PARTLY), (50.7, 50, PARTLY), (40, 50, NOT)]
)
def test_alike_on_text(fedbc, scaffold, verdict):
    found = Given()
    for epochs in (1, 5):
        others = {"fedavg": 49.2, "qfedavg": 50.4, "fedprox": 50.6}
        found.accuracies("shakespeare", {"epochs": epochs}, fedbc=fedbc, scaffold=scaffold, **others)
    judged = accuracy.alike_on_text(found)
    assert judged.verdict == verdict
    assert ("does not fall behind" in judged.evidence) == (scaffold == 50)
    assert "early in training" not in judged.evidence
    assert accuracy.alike_on_text(Given()).verdict == NOT_RUN


def test_weights_explain_what_is_not_alike_on_text():
    found = Given()
    given = {"fedbc": 34, "fedavg": 35, "qfedavg": 30, "fedprox": 35, "scaffold": 30, "fedavg_uniform": 30}
    found.accuracies("shakespeare", {"epochs": 1}, **given)
    judged = accuracy.alike_on_text(found)
    assert "Weights by size are 5.0 points (E = 1) ahead of uniform ones" in judged.evidence
    assert "E = 5 was not run." in judged.evidence
    assert judged.verdict == NOT
    alike = Given().accuracies("shakespeare", {"epochs": 1}, **dict.fromkeys(given, 52) | {"scaffold": 32})
    assert accuracy.alike_on_text(alike).verdict == PARTLY  # half of the claim is about E = 5


def test_the_variants_of_the_public_code_make_the_papers_picture_on_text():
    def judged(**variants):
        given = {"fedbc": 34.4, "fedavg": 34.8, "qfedavg": 30, "fedprox": 34.6, "scaffold": 30}
        return Given().accuracies("shakespeare", {"epochs": 1}, **given, **variants)

    found = judged(qfedavg_reference=34.9)
    assert "as in the paper:" not in accuracy.alike_on_text(found).evidence  # SCAFFOLD's variant was not run
    found.add("shakespeare", "scaffold-reference", {"epochs": 1}, diverged=True)
    said = "that q-FedAvg lie within 0.5 points (E = 1), and that SCAFFOLD collapses."
    assert said in accuracy.alike_on_text(found).evidence
    assert said in accuracy.alike_on_text(judged(qfedavg_reference=34.9, scaffold_reference=8)).evidence
    for variants in ({"qfedavg": 34.9, "scaffold": 33}, {"qfedavg": 30, "scaffold": 8}, {"scaffold": 8}):
        given = {f"{key}_reference": value for key, value in variants.items()}
        assert "as in the paper:" not in accuracy.alike_on_text(judged(**given)).evidence


def test_alike_early_in_training_is_no_confirmation():
    found = Given()
    for epochs in (1, 5):
        others = dict.fromkeys(("fedavg", "qfedavg", "fedprox"), 25)
        found.accuracies("shakespeare", {"epochs": epochs}, fedbc=25.5, scaffold=15, **others)
    judged = accuracy.alike_on_text(found)
    assert judged.verdict == PARTLY
    assert "are 27 points (E = 1), 25 points (E = 5) below the paper" in judged.evidence


def test_personal_methods_lose():
    def judged(**personal):
        found = Given().accuracies("cifar10-e5", SKEWED, fedavg=40, fedprox=39, fedbc=42, **personal)
        return accuracy.personal_methods_lose(found)

    assert judged(perfedavg=30, pfedme=35).verdict == CONFIRMED
    assert judged(perfedavg=30, pfedme=41).verdict == PARTLY
    assert judged(perfedavg=45, pfedme=41).verdict == NOT
    half = judged(perfedavg=30)
    assert half.verdict == CONFIRMED
    assert "Per-FedAvg -9.0 points" in half.evidence
    assert "pFedMe not run" in half.evidence
    assert "chance" not in half.evidence
    assert judged().verdict == NOT_RUN


def test_a_personal_method_that_did_not_learn_is_named():
    found = Given().accuracies("cifar10-e5", SKEWED, fedavg=40, fedprox=39, fedbc=42, perfedavg=10.2, pfedme=10.1)
    reference = {"fedavg": 40, "fedprox": 41, "fedbc_reference": 42, "perfedavg_reference": 38.5}
    found.accuracies("cifar10-e5-reference", SKEWED, **reference)
    evidence = accuracy.personal_methods_lose(found).evidence
    assert "Per-FedAvg's z stays at chance." in evidence
    assert "pFedMe's z stays at chance." in evidence
    assert "Under the reference protocol: Per-FedAvg, reference -1.5 points" in evidence


def test_a_contest_names_the_control_between():
    verdict = accuracy.synthetic_best(by_epochs(fedbc=87, fedavg=83, fedavg_root=86))
    assert "Against FedAvg with weights √n_i: 5 of 5, +1.0 points." in verdict.evidence
