"""The judges on made-up results, each with a case that confirms its claim and cases that do not."""

import pytest

from fedbc.paper import claims, claims_local
from fedbc.paper.catalogue import EPOCHS, TOLERANCES, Run
from fedbc.paper.tables import Found
from fedbc.paper.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY

SKEWED = {"classes": 1, "exponent": 1.2}
OTHER = {"classes": 3, "exponent": 1.4}


class Given(Found):
    """Results as they would be found, without a folder."""

    def __init__(self):
        self.runs, self.studies = {}, {}

    def add(self, experiment, method, setting, *, seed=1, diverged=False, more=None, **summary):
        line = {"diverged": 3} if diverged else {"summary": summary} | (more or {})
        self.runs.setdefault(experiment, []).append((Run(method, "paper", setting, seed, None), line))

    def accuracies(self, experiment, setting, **methods):
        for method, accuracy in methods.items():
            self.add(experiment, method.replace("_", "-"), setting, global_accuracy=accuracy / 100)
        return self


def by_epochs(**at_each):
    """The synthetic table: a value for every E, or one for all; the paper's other methods have 80 if not given."""
    found = Given()
    at_each = {"fedavg": 80, "qfedavg": 80, "fedprox": 80, "scaffold": 80} | at_each
    for place, epochs in enumerate(EPOCHS):
        row = {m: v[place] if isinstance(v, list) else v for m, v in at_each.items()}
        found.accuracies("synthetic", {"epochs": epochs}, **row)
    return found


def test_best_everywhere_on_the_synthetic_data():
    verdict = claims.synthetic_best(by_epochs(fedbc=87, fedavg=83, scaffold=84, fedavg_uniform=86))
    assert verdict.verdict == CONFIRMED
    assert "in 5 of 5 settings (+3.0 to +3.0 points)" in verdict.evidence
    assert "ahead in 5 of 5 settings, by +1.0 points" in verdict.evidence


def test_best_somewhere_names_where_it_loses_and_to_whom():
    found = by_epochs(fedbc=[84, 87, 87, 87, 87], fedavg=83, qfedavg=[84.8, 86, 86, 86, 86])
    verdict = claims.synthetic_best(found)
    assert verdict.verdict == PARTLY
    assert "in 4 of 5 settings" in verdict.evidence
    assert "It loses most at E = 1: q-FedAvg is ahead by 0.8 points" in verdict.evidence


def test_a_control_is_no_rival():
    """The paper does not have uniform weights, so they do not decide whether FedBC is best of its methods."""
    verdict = claims.synthetic_best(by_epochs(fedbc=87, fedavg=83, fedavg_uniform=88))
    assert verdict.verdict == CONFIRMED
    assert "ahead in 0 of 5 settings, by -1.0 points" in verdict.evidence


def test_best_nowhere():
    assert claims.synthetic_best(by_epochs(fedbc=80, fedavg=83)).verdict == NOT


def test_a_contest_needs_all_rivals():
    found = Given().accuracies("synthetic", {"epochs": 5}, fedbc=87, fedavg=83, qfedavg=86, fedprox=84)
    assert claims.synthetic_best(found).verdict == NOT_RUN
    found.add("synthetic", "scaffold", {"epochs": 5}, diverged=True)  # it took part, and lost
    assert claims.synthetic_best(found).verdict == CONFIRMED
    assert "1 of 5 settings were run" in claims.synthetic_best(found).evidence


def test_a_difference_of_nothing_has_no_minus():
    verdict = claims.synthetic_best(by_epochs(fedbc=86.96, fedavg=83, fedavg_uniform=87))
    assert "by +0.0 points in the mean" in verdict.evidence


def test_more_devices():
    def found(fedbc, uniform):
        given = Given()
        for devices, own in zip((30, 70, 100), fedbc, strict=True):
            others = dict.fromkeys(("fedavg", "qfedavg", "fedprox", "qfedavg_reference", "scaffold_reference"), 80)
            others |= {"scaffold": 84, "fedavg_uniform": uniform, "fedprox_uniform": 80}
            given.accuracies("synthetic-devices", {"epochs": 5, "devices": devices}, fedbc=own, **others)
        return given

    assert claims.more_devices(found((87, 87, 84.5), 82)).verdict == CONFIRMED
    partly = claims.more_devices(found((87, 83, 84.5), 88))
    assert partly.verdict == PARTLY
    assert "not weighting by size gains as much" in partly.evidence
    assert claims.more_devices(found((83, 83, 87), 82)).verdict == NOT
    assert claims.more_devices(by_epochs(fedbc=1)).verdict == NOT_RUN


def test_how_much_is_the_weights():
    def found(uniform, multiplier):
        given = by_epochs(fedavg=83, fedavg_uniform=uniform, fedprox_uniform=uniform)
        more = {"multipliers": [multiplier], "tolerances": [0.1], "spec": {"algorithm": {"lr": 0.01}}}
        for epochs in EPOCHS:
            given.add("synthetic", "fedbc", {"epochs": epochs}, global_accuracy=0.87, more=more)
        return given

    own = claims.weights_or_duals(found(83.5, 1.0))
    assert own.verdict == CONFIRMED
    assert "uniform weights alone gain +0.5 of FedBC's +4.0 points" in own.evidence
    weights = claims.weights_or_duals(found(86.5, 1.0))
    assert weights.verdict == PARTLY  # most of the gain is the weights
    off = claims.weights_or_duals(found(83.5, 0.001))
    assert off.verdict == PARTLY  # no constraint is left to thank
    assert "all but switches the constraint off" in off.evidence
    assert claims.weights_or_duals(found(88, 1.0)).verdict == NOT


@pytest.mark.parametrize(
    ("ours", "verdict"), [([5, 5, 5, 5, 5], CONFIRMED), ([5, 5, 5, 5, 11], PARTLY), ([11] * 5, NOT)]
)
def test_variance(ours, verdict):
    found = Given()
    for own, epochs in zip(ours, EPOCHS, strict=True):
        for method, variance in (("fedbc", own), ("fedavg", 10), ("fedavg-uniform", 5)):
            found.add("synthetic", method, {"epochs": epochs}, accuracy_variance=variance)
    judged = claims.smaller_variance(found)
    assert judged.verdict == verdict
    assert "most of it is the weights" in judged.evidence
    assert ("It is larger most at synthetic E = 50 (110%)" in judged.evidence) == (verdict == PARTLY)


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
    assert claims.users_meet(found).verdict == verdict


@pytest.mark.parametrize(("late", "verdict"), [(0.11, CONFIRMED), (0.20, PARTLY), (0.50, NOT)])
def test_coefficients_converge(late, verdict):
    weights = {"min": [0.1] * 9, "max": [0.3] * 6 + [late] * 3, "min_by_size": [0.05] * 9, "max_by_size": [0.5] * 9}
    judged = claims.coefficients_converge(with_coefficients(fedbc=weights))
    assert judged.verdict == verdict
    assert f"3.0, {10 * late:.1f}, 10" in judged.evidence


@pytest.mark.parametrize(
    ("accuracy", "local", "verdict"),
    [
        (lambda t: 85 + 2 * (0 < t <= 0.05) - 3 * (t > 1), lambda t: 80 + (t > 0) + (t > 1), CONFIRMED),
        (lambda t: 85 + 2 * (0 < t <= 0.05), lambda t: 80 + (t > 0), PARTLY),
        (lambda t: 85 - t, lambda t: 80 - t, NOT),
    ],
)
def test_raising_the_tolerance(accuracy, local, verdict):
    found = Given()
    for t in TOLERANCES:
        for seed in (1, 2):
            wobble = 0.002 * seed
            values = {"global_accuracy": accuracy(t) / 100 + wobble, "local_accuracy": local(t) / 100 + wobble}
            found.add("synthetic-gamma", "fedbc", {"tolerance": t}, seed=seed, **values)
    assert claims.tolerance_trade(found).verdict == verdict


def local_table(experiment="cifar10-local-e5", **columns):
    found = Given()
    for setting in (SKEWED, OTHER):
        for method, values in columns.items():
            found.add(experiment, method, setting, **values)
    return found


@pytest.mark.parametrize(("tuned", "verdict"), [(0.84, CONFIRMED), (0.80, NOT)])
def test_fine_tuning(tuned, verdict):
    found = local_table(fedbc={"local_accuracy": 0.8, "finetuned_accuracy": tuned})
    assert claims_local.fine_tuning(found).verdict == verdict


def test_fine_tuning_on_test_data_is_told_apart():
    found = local_table(fedbc={"local_accuracy": 0.8, "finetuned_accuracy": 0.8})
    leaky = {"local_accuracy_weighted": 0.7, "finetuned_on_test_accuracy_weighted": 0.78}
    found.add("cifar10-local-e5-reference", "fedbc-reference", SKEWED, **leaky)
    judged = claims_local.fine_tuning(found)
    assert judged.verdict == NOT
    assert "by showing the model test data" in judged.evidence
    assert "as in the reference: +8.0 points" in judged.evidence


@pytest.mark.parametrize(("ours", "verdict"), [(0.795, CONFIRMED), (0.9, CONFIRMED), (0.7, NOT)])
def test_per_fedbc(ours, verdict):
    found = local_table(perfedbc={"finetuned_accuracy": ours}, perfedavg={"finetuned_accuracy": 0.8})
    judged = claims_local.per_fedbc(found)
    assert judged.verdict == verdict
    assert ("not evaluated alike" in judged.evidence) == (ours == 0.9)


def test_scaffold_collapses_by_itself():
    found = Given().accuracies("cifar10-e1", SKEWED, fedavg=40, scaffold=20)
    found.add("cifar10-e1", "fedavg", OTHER, global_accuracy=0.4, drift=1.0)
    found.add("cifar10-e1", "scaffold", OTHER, global_accuracy=0.25, drift=4.0)
    judged = claims_local.scaffold_collapse(found)
    assert judged.verdict == CONFIRMED
    assert "SCAFFOLD: -17.5 points to FedAvg (-20.0 to -15.0, 2 settings)." in judged.evidence
    assert "4.0 times as far from z" in judged.evidence


def test_scaffold_collapses_in_the_reference_only():
    found = Given().accuracies("cifar10-e1", SKEWED, fedavg=40, scaffold=38)
    found.accuracies("cifar10-e1-reference", SKEWED, fedavg=40, scaffold_reference=11)
    judged = claims_local.scaffold_collapse(found)
    assert judged.verdict == PARTLY
    assert "not to SCAFFOLD" in judged.evidence


def test_to_diverge_is_to_collapse():
    found = Given().accuracies("cifar10-e1", SKEWED, fedavg=40)
    found.add("cifar10-e1", "scaffold", SKEWED, diverged=True)
    judged = claims_local.scaffold_collapse(found)
    assert judged.verdict == CONFIRMED
    assert "SCAFFOLD diverges in 1 setting." in judged.evidence


def test_scaffold_does_not_collapse():
    found = Given().accuracies("cifar10-e5", SKEWED, fedavg=40, scaffold=38)
    assert claims_local.scaffold_collapse(found).verdict == NOT
    assert claims_local.scaffold_collapse(Given()).verdict == NOT_RUN


@pytest.mark.parametrize(("reference", "verdict"), [(88, CONFIRMED), ([88, 86, 86, 86, 86], PARTLY), (86, NOT)])
def test_q_normalisation(reference, verdict):
    found = by_epochs(qfedavg=86, qfedavg_reference=reference)
    assert claims_local.q_normalisation(found).verdict == verdict


@pytest.mark.parametrize(("last", "best", "verdict"), [(36, 47, CONFIRMED), (36, 40, PARTLY), (47, 55, NOT)])
def test_best_rounds(last, best, verdict):
    """The paper has 47.4 % for FedAvg here."""
    found = Given()
    curves = {"curves": {"global_accuracy": [best / 100, last / 100]}}
    found.add("cifar10-e1", "fedavg", SKEWED, global_accuracy=last / 100, more=curves)
    judged = claims_local.best_rounds(found)
    assert judged.verdict == verdict
    assert f"CIFAR-10 E = 1, C = 1: {last - 47.4:+z.1f}, {best - 47.4:+z.1f}." in judged.evidence
    assert ("something else differs too" in judged.evidence) == (verdict == PARTLY)
