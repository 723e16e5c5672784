"""Rates over time: the factor of a rate in a round, from the number of rounds that were done before, t = 0, 1, ...

    constant         1
    cosine           floor + (1 - floor) (1 + cos(π min(t, T)/T))/2,    T = rounds
    step             factor^⌊t/every⌋
    inverse_sqrt     1/√(1 + t)
    warmup           each of them can be multiplied by min(1, (t + 1)/warmup)

The local schedule moves the rates of the steps on a device (`lr`, Ditto's `personal_lr`), the dual one FedBC's
`dual_lr`. A function of t that JAX can trace, such as a schedule of optax's from 1, is one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import checks, named
from fedbc.errors import InputError

Schedule = Callable[[Any], Any]
"""The factor, from the number of rounds done before."""
GivenSchedule = str | Mapping[str, Any] | Schedule | None
"""What an argument may be."""


def constant(warmup: int = 0) -> Schedule:
    """1, but for the warm-up."""
    return _warmed(lambda t: jnp.ones((), float), warmup)


def cosine(rounds: int, floor: float = 0.0, warmup: int = 0) -> Schedule:
    """Half a turn, from 1 to `floor` after so many rounds."""
    total = checks.integer("rounds of the cosine schedule", rounds, at_least=1)
    low = checks.number("floor of the cosine schedule", floor, at_least=0, at_most=1)
    return _warmed(lambda t: low + (1 - low) * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(t, total) / total)), warmup)


def step(every: int, factor: float = 0.5, warmup: int = 0) -> Schedule:
    """Times `factor` after every so many rounds."""
    checks.integer("every of the step schedule", every, at_least=1)
    checks.number("factor of the step schedule", factor, above=0)
    return _warmed(lambda t: jnp.asarray(factor, float) ** (t // every), warmup)


def inverse_sqrt(warmup: int = 0) -> Schedule:
    """1/√(1 + t)"""
    return _warmed(lambda t: 1 / jnp.sqrt(1.0 + t), warmup)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "cosine": cosine,
    "step": step,
    "inverse_sqrt": inverse_sqrt,
}


def _warmed(schedule: Schedule, warmup: int) -> Schedule:
    checks.integer("warmup of a schedule", warmup, at_least=0)

    def factor(t: Any) -> Any:
        t = jnp.asarray(t, float)
        return schedule(t) * jnp.minimum(1.0, (t + 1) / max(warmup, 1))

    return factor


def completed(what: str, value: GivenSchedule, rounds: int) -> GivenSchedule:
    """A cosine that does not say its rounds ends with the run."""
    if not isinstance(value, str | Mapping):
        return value
    name, arguments = named.parse(what, value)
    return {"name": name, "rounds": rounds, **arguments} if name == "cosine" else value


def schedule_from(what: str, value: GivenSchedule) -> Schedule | None:
    """The schedule that an argument says; None for a rate that stays."""
    if value is None:
        return None
    if callable(value):
        return _checked(what, value)
    if not isinstance(value, str | Mapping):
        raise InputError(f"{what}={value!r} is not accepted: give a name such as 'cosine', or a function of the round")
    return named.call(what, value, SCHEDULES)


def check_factors(what: str, schedule: Schedule, rounds: int) -> None:
    """Raise an InputError if a rate would be multiplied by what is no number from 0 on, in any round of a run."""
    factors = jax.jit(lambda all: jax.lax.map(lambda t: jnp.asarray(schedule(t), float), all))(jnp.arange(rounds))
    bad = np.flatnonzero(~(np.isfinite(factors) & (factors >= 0)))
    if len(bad):
        raise InputError(
            f"{what} is not accepted: for round {bad[0] + 1} it gives {float(factors[bad[0]]):g}; "
            "give a function of the number of rounds done before, to finite numbers >= 0"
        )


def _checked(what: str, function: Schedule) -> Schedule:
    advice = "give a function of the number of rounds done before, that JAX can trace, to one number"
    try:
        shape = jax.eval_shape(lambda t: jnp.asarray(function(t), float), jnp.asarray(0, jnp.int32)).shape
    except Exception as error:
        raise InputError(f"{what} is not accepted: {str(error).splitlines()[0]}; {advice}") from error
    if shape != ():
        raise InputError(f"{what} is not accepted: it gives an array of shape {shape}; {advice}")
    return function
