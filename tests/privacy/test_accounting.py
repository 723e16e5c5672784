"""Epsilon: the closed form of the Gaussian mechanism, dp-accounting's other accountants, and known figures."""

import math

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from scipy.stats import norm

import fedbc
from fedbc.privacy import epsilon, noise_multiplier

RUNS = [(1.0, 1, 1e-5), (2.0, 10, 1e-6), (0.8, 3, 1e-4), (20.0, 200, 1e-5)]


@pytest.mark.parametrize(("m", "rounds", "delta"), RUNS)
def test_the_closed_form_holds(m, rounds, delta):
    eps, s = epsilon(m, rounds=rounds, delta=delta), m / math.sqrt(rounds)
    left = norm.cdf(1 / (2 * s) - eps * s) - math.exp(eps) * norm.cdf(-1 / (2 * s) - eps * s)
    assert left == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("m", "rounds", "delta"), RUNS)
def test_against_the_librarys_other_accountants(m, rounds, delta):
    """Privacy loss distributions agree; Rényi divergences bound from above, and not by much."""
    event = dp_accounting.GaussianDpEvent(m)
    ours = epsilon(m, rounds=rounds, delta=delta)
    assert ours == pytest.approx(pld.PLDAccountant().compose(event, rounds).get_epsilon(delta), rel=1e-3)
    bound = rdp.RdpAccountant().compose(event, rounds).get_epsilon(delta)
    assert ours <= bound <= 1.2 * ours


def test_known_figures():
    assert epsilon(1.0, rounds=1, delta=1e-5) == pytest.approx(4.3772, abs=1e-4)
    assert epsilon(10.0, rounds=100, delta=1e-5) == pytest.approx(4.3772, abs=1e-4)
    assert epsilon(0.0, rounds=1, delta=1e-5) == math.inf


def test_noise_of_several_devices_adds_up():
    assert epsilon(0.5, rounds=7, delta=1e-5, devices=16) == epsilon(2.0, rounds=7, delta=1e-5)


def test_secret_draws_against_the_librarys_figures():
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, dp_accounting.GaussianDpEvent(2.0))
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    wanted = accountant.compose(event, 50).get_epsilon(1e-6)
    ours = epsilon(2.0 / math.sqrt(10), rounds=50, delta=1e-6, devices=10, population=1000)
    assert ours == pytest.approx(wanted, rel=1e-12)
    assert ours < 0.2 * epsilon(2.0 / math.sqrt(10), rounds=50, delta=1e-6, devices=10)


def test_the_librarys_multiplier_is_ours_under_this_relation():
    """It must be noise over *sensitivity*: with everyone drawn, the sampled mechanism is the Gaussian one."""
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    event = dp_accounting.GaussianDpEvent(1.5)
    drawn = dp_accounting.SampledWithoutReplacementDpEvent(10, 10, event)
    plain, sampled = (
        rdp.RdpAccountant(neighboring_relation=relation).compose(e, 5).get_epsilon(1e-5) for e in (event, drawn)
    )
    assert sampled == pytest.approx(plain, rel=1e-9)
    assert epsilon(1.5, rounds=5, delta=1e-5) < plain < 1.2 * epsilon(1.5, rounds=5, delta=1e-5)


def test_claiming_a_draw_never_costs():
    for devices, population in ((1, 1), (9, 10), (10, 10), (1, 3)):
        with_draw = epsilon(1.0, rounds=20, delta=1e-5, devices=devices, population=population)
        assert with_draw <= epsilon(1.0, rounds=20, delta=1e-5, devices=devices)


@pytest.mark.parametrize("devices", [1, 12])
def test_noise_for_a_wanted_epsilon(devices):
    m = noise_multiplier(3.0, rounds=40, delta=1e-5, devices=devices)
    assert 2.998 < epsilon(m, rounds=40, delta=1e-5, devices=devices) <= 3.0


@pytest.mark.parametrize(
    "change", [{"rounds": 0}, {"delta": 0.0}, {"delta": 1.0}, {"devices": 0}, {"population": 3, "devices": 4}]
)
def test_bad_arguments(change):
    with pytest.raises(fedbc.InputError, match=next(iter(change))):
        epsilon(1.0, **{"rounds": 1, "delta": 1e-5, **change})
