"""Epsilon and delta of a run, by the library dp-accounting (`pip install "fedbc[privacy]"`).

Neighbouring inputs are two federations of the same devices in which one device holds any other data, its state of
earlier rounds included. In a round that it takes part in, a device is protected by Gaussian noise of multiplier m

- against the server, which receives its upload: m, the device's own noise;
- against all who see only the models z: m sqrt(n), the noise of the n devices in the round's sum, which add up.

T rounds of the Gaussian mechanism with multiplier m are one with multiplier m/sqrt(T), whose epsilon at a given delta
is known in closed form (Balle and Wang, 2018):

    delta = Phi(1/(2s) - epsilon s) - e^epsilon Phi(-1/(2s) - epsilon s),  s = m/sqrt(T),  Phi the normal distribution

Where the n devices of a round are drawn from N, uniformly and *unknown to the adversary*, a device is protected by the
draw, too: sampling without replacement, by Rényi divergences (Wang, Balle, Kasiviswanathan, 2019).
"""

from __future__ import annotations

import math
from typing import Any

from fedbc import checks
from fedbc.algorithms.ranges import NOISE_BITS
from fedbc.errors import InputError


def epsilon(
    noise_multiplier: float, *, rounds: int, delta: float, devices: int = 1, population: int | None = None
) -> float:
    """The epsilon of a run.

    noise_multiplier: m, the noise that each device adds, in units of the sensitivity.
    rounds: the rounds that a device may take part in; all rounds of the run, unless you limit them. With
        `population`, all rounds of the run.
    delta: the probability that the bound is allowed to fail with; well below 1 over the number of devices.
    devices: whose noise adds up: 1 (the default) against the server; the devices of a round, or the fewest of any
        round, against all who see only the global models.
    population: N, if the devices of each round were drawn secretly from that many; None claims nothing from the draw.
    """
    checks.number("noise_multiplier", noise_multiplier, at_least=0)
    checks.integer("rounds", rounds, at_least=1)
    checks.number("delta", delta, above=0, below=1)
    checks.integer("devices", devices, at_least=1)
    if population is not None:
        checks.integer("population", population, at_least=devices)
    library = _library()
    multiplier = noise_multiplier * math.sqrt(devices)
    if multiplier == 0:
        return math.inf
    known = float(library.get_epsilon_gaussian(multiplier / math.sqrt(rounds), delta))
    if population is None or population == devices:
        return known
    # The draw never harms, but the bound by Rényi divergences can be the looser one.
    return min(known, _epsilon_of_draws(multiplier, rounds, delta, devices, population))


def secure_epsilon(noise_multiplier: float, *, rounds: int, delta: float, survivors: int, parameters: int) -> float:
    """The epsilon of a run with secure aggregation, against the server and all others: of what is really added.

    noise_multiplier, rounds, delta: as in `epsilon`.
    survivors: the fewest devices of a sum that add their noise: run.min-devices, less those that do not add it, or that
        tell it to the server.
    parameters: how many numbers a device sends, whose rounding adds to the sensitivity.

    A device's noise is Skellam's, with a standard deviation of at least 2^19 steps of rounding. With Delta_2 the
    sensitivity in steps, rounding included, Delta_1 <= sqrt(parameters) Delta_2, and mu the sum's variance, Agarwal,
    Kairouz and Liu (2021) bound the Rényi divergence of order alpha by

        alpha Delta_2² / (2 mu) + min(((2 alpha - 1) Delta_2² + 6 Delta_1) / (4 mu²), 3 Delta_1 / (2 mu))

    for whole alpha, so only those are tried.
    """
    checks.number("noise_multiplier", noise_multiplier, at_least=0)
    checks.integer("rounds", rounds, at_least=1)
    checks.number("delta", delta, above=0, below=1)
    checks.integer("survivors", survivors, at_least=1)
    checks.integer("parameters", parameters, at_least=1)
    if noise_multiplier == 0:
        return math.inf
    deviation = 2.0 ** (NOISE_BITS - 1)
    sensitivity = deviation / noise_multiplier + math.sqrt(parameters)
    absolute, variance = math.sqrt(parameters) * sensitivity, survivors * deviation**2
    orders = range(2, 512)

    def divergence(order: int) -> float:
        small = ((2 * order - 1) * sensitivity**2 + 6 * absolute) / (4 * variance**2)
        return order * sensitivity**2 / (2 * variance) + min(small, 3 * absolute / (2 * variance))

    found, _ = _library().rdp.compute_epsilon(orders, [rounds * divergence(order) for order in orders], delta)
    return float(found)


def noise_multiplier(
    wanted: float, *, rounds: int, delta: float, devices: int = 1, population: int | None = None
) -> float:
    """The least noise multiplier, to four digits, for a wanted epsilon; the other arguments as in `epsilon`."""
    checks.number("wanted", wanted, above=0)

    def enough(m: float) -> bool:
        return epsilon(m, rounds=rounds, delta=delta, devices=devices, population=population) <= wanted

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _epsilon_of_draws(multiplier: float, rounds: int, delta: float, devices: int, population: int) -> float:
    library = _library()
    round = library.SampledWithoutReplacementDpEvent(population, devices, library.GaussianDpEvent(multiplier))
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(round, rounds).get_epsilon(delta))


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise InputError('epsilon is computed by dp-accounting: pip install "fedbc[privacy]"') from None
    return dp_accounting
