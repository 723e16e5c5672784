"""What FedBC gains over what, on made-up results."""

import pytest
from given import OTHER, SKEWED, Given, by_epochs

from fedbc.paper.claims import accuracy, gains
from fedbc.paper.claims.verdict import spread


def test_a_contest_is_held_over_the_seeds_that_all_have():
    found = by_epochs(fedbc=87, fedavg=83)
    found.accuracies("synthetic", {"epochs": 5}, seed=2, fedavg=99, fedprox=99, fedavg_uniform=99)
    assert gains.contest(found, "synthetic", epochs=5) == pytest.approx(
        {"fedbc": 87, "fedavg": 83, "qfedavg": 80, "fedprox": 80, "scaffold": 80}
    )
    found.accuracies("synthetic", {"epochs": 5}, seed=2, qfedavg=80, fedbc=89)
    found.add("synthetic", "scaffold", {"epochs": 5}, seed=2, diverged=True)
    assert gains.contest(found, "synthetic", epochs=5)["fedavg"] == pytest.approx(91)
    assert gains.contest(found, "synthetic", epochs=5)["fedbc"] == pytest.approx(88)


def test_gains():
    found = Given()
    others = {
        "qfedavg": 40,
        "fedprox": 41,
        "scaffold": 20,
        "fedavg_uniform": 43,
        "fedprox_uniform": 42,
        "fedavg_root": 44,
    }
    found.accuracies("cifar10-e1", SKEWED, fedbc=46, fedavg=40, **others)
    found.accuracies("cifar10-e1", OTHER, fedbc=42, fedavg=44, **others)
    found.accuracies("cifar10-e5", OTHER, fedbc=42, fedavg=44)  # no contest: rivals are missing
    rows = {g.where: g for g in gains.summary(found)}
    assert set(rows["CIFAR-10, E = 1"].margins) == {
        gains.Margins(over_fedavg=6, by_weights=3, over_controls=3, over_rivals=5, over_root=2),
        gains.Margins(over_fedavg=-2, by_weights=-1, over_controls=-1, over_rivals=-2, over_root=-2),
    }
    assert rows["CIFAR-10, E = 1"].of == 15
    assert spread(rows["CIFAR-10, E = 1"].column("over_fedavg"), "") == "+2.0 (-2.0 to +6.0)"
    assert rows["CIFAR-10, E = 5"].margins == ()
    others.pop("fedavg_root")
    found.accuracies("mnist-e1", SKEWED, fedbc=46, fedavg=40, **others)
    without = next(g for g in gains.summary(found) if g.where == "MNIST, E = 1")
    assert without.column("over_fedavg").tolist() == [6]
    assert without.column("over_root").tolist() == []


def test_gains_have_an_error_over_seeds():
    """Seed by seed, so that what a seed does to all methods alike is no error."""
    found = Given()
    rivals = {"qfedavg": 40, "fedprox": 41, "scaffold": 20, "fedavg_uniform": 43, "fedprox_uniform": 42}
    for seed, shift, gained in ((1, 0, 2), (2, 30, 4)):
        for setting, more in ((SKEWED, 0), (OTHER, 1)):
            methods = {k: v + shift for k, v in (rivals | {"fedavg": 44, "fedbc": 44 + gained + more}).items()}
            found.accuracies("mnist-e1", setting, seed, **methods)
    row = gains.gain(found, "MNIST, E = 1")
    assert row.column("over_fedavg") == pytest.approx([3, 4])  # in the order of settings
    assert row.seeds == 2
    # 2.5 and 4.5 in the mean over settings: deviation √2, over the root of two seeds
    assert row.error("over_fedavg") == pytest.approx(1)
    assert row.error("over_rivals") == pytest.approx(1)
    assert row.error("by_weights") == pytest.approx(0)
    assert row.error("over_root") is None
    assert spread(row.column("over_fedavg"), "", row.error("over_fedavg")) == "+3.5 ± 1.0 (+3.0 to +4.0)"
    assert "points, mean +3.5 ± 1.0)" in accuracy.image_best("mnist", "MNIST", 1)(found).evidence
    found.accuracies("mnist-e1", {"classes": 2, "exponent": 1.3}, fedavg=44, fedbc=50, **rivals)  # one seed only
    row = gains.gain(found, "MNIST, E = 1")
    assert (row.seeds, row.error("over_fedavg")) == (1, None)
    assert gains.gain(found, "MNIST, E = 5").seeds == 0


def test_gains_under_the_reference_protocol():
    """There its variants of FedBC, q-FedAvg and SCAFFOLD take part, and only they."""
    found = Given().accuracies("mnist-e5-reference", SKEWED, fedavg=80, fedprox=85, fedavg_uniform=92)
    found.accuracies("mnist-e5-reference", SKEWED, fedprox_uniform=93, qfedavg=99, scaffold=99, fedbc=99)
    assert gains.gain(found, "MNIST, E = 5, reference protocol").margins == ()
    found.accuracies("mnist-e5-reference", SKEWED, qfedavg_reference=88, scaffold_reference=20, fedbc_reference=94)
    (own,) = gains.gain(found, "MNIST, E = 5, reference protocol").margins
    assert own[:4] == pytest.approx((14, 12, 1, 6))
    (seeds,) = gains.gain(found, "MNIST, E = 5, reference protocol").by_seed
    assert {name: values.get(1) for name, values in seeds.items()} == pytest.approx(
        {"over_fedavg": 14, "by_weights": 12, "over_controls": 1, "over_rivals": 6, "over_root": None}
    )
