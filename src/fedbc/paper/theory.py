"""The theorem in numbers: the running mean of ‖∇f(z^t)‖² on problems that satisfy its assumptions.

    (1/T) Σ ‖∇f(z^t)‖² = O(B_0/T) + O(epsilon) + O(delta²) + O(alpha) + O(Σ gamma_i / (N T))

Quadratics and regularised logistic regression, full batches, multipliers within the bounds that the proofs need
(`FedBC(bounds="theory")`). One quantity is varied at a time: alpha (the dual rate), K (local steps, which determine
epsilon), delta (how far apart the devices are) and gamma. The corollary: how local stationarity depends on gamma.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedbc
from fedbc.data.federation import Federation
from fedbc.models.base import Model, cross_entropy, half_squared_error

DEVICES, FEATURES, EXAMPLES = 10, 8, 40
RIDGE = 0.1
POINTS = 60
"""Points of a curve that are kept, evenly in log T."""


@dataclass(frozen=True)
class Case:
    """One run: a problem and the theorem's quantities."""

    problem: str = "quadratic"
    alpha: float = 0.01
    steps: int = 20
    """K"""
    apart: float = 1.0
    """how far apart the devices are; delta grows in proportion"""
    gamma: float = 0.01
    rounds: int = 1000
    seed: int = 1

    @property
    def key(self) -> str:
        """A hash, by which it is found again."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


SWEEPS: dict[str, tuple[float, ...]] = {
    "alpha": (0.0001, 0.001, 0.01, 0.1, 1.0),
    "steps": (1, 3, 10, 30, 100),
    "apart": (0.0, 0.1, 0.3, 1.0, 3.0),
    "gamma": (0.0, 0.001, 0.01, 0.1, 1.0),
}
PROBLEMS = ("quadratic", "logistic")


def cases(rounds: int = Case.rounds) -> Iterator[tuple[str, Case]]:
    """Every case with the quantity that it varies."""
    for problem in PROBLEMS:
        for name, values in SWEEPS.items():
            for value in values:
                given: Any = {name: int(value) if name == "steps" else value}
                yield name, replace(Case(problem, rounds=rounds), **given)


def federation(case: Case) -> Federation:
    """Devices with curvatures of their own, whose optima lie `apart` times a standard normal from a common one."""
    rng = np.random.default_rng(case.seed)
    scales = np.sqrt(np.linspace(0.3, 2, FEATURES))  # curvatures of about 0.3 to 2
    common, pairs = rng.normal(size=FEATURES), []
    for _ in range(DEVICES):
        optimum = common + case.apart * rng.normal(size=FEATURES)
        axes = np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0]
        x = rng.normal(size=(EXAMPLES, FEATURES)) * scales @ axes
        y = x @ optimum if case.problem == "quadratic" else (x @ optimum > 0).astype(int)
        pairs.append((x, y))
    return fedbc.data.federation(pairs, pairs, name=f"{case.problem}, {case.apart:g} apart")


def model(case: Case) -> Model:
    """Least squares, or two-class logistic regression with a ridge; strongly convex both."""

    def start(key: jax.Array) -> jax.Array:
        return jnp.zeros(FEATURES)

    if case.problem == "quadratic":
        return Model(start, lambda w, x: (x @ w)[:, None], lambda o, y: half_squared_error(o, y[:, None]), None)

    def apply(w: jax.Array, x: jax.Array) -> jax.Array:
        # The ridge travels as a further output, because a loss sees outputs only.
        ridge = jnp.full((len(x), 1), 0.5 * RIDGE * jnp.sum(w * w))
        return jnp.concatenate([jnp.zeros((len(x), 1)), (x @ w)[:, None], ridge], axis=1)

    return Model(start, apply, lambda o, y: cross_entropy(o[:, :2], y) + o[:, 2], None)


def carry_out(case: Case) -> dict[str, Any]:
    """Run a case: the running mean (thinned), its slope and plateau, and the devices' own stationarity."""
    problem, data = model(case), federation(case)
    algorithm = fedbc.FedBC(lr=0.05, dual_lr=case.alpha, tolerance=case.gamma, bounds="theory")
    result = fedbc.simulate(
        algorithm, problem, data, rounds=case.rounds, epochs=case.steps, batch_size=None, evaluate=["gradient"]
    )
    each = result.history["gradient_sqnorm"].to_numpy()
    mean = np.cumsum(each) / np.arange(1, len(each) + 1)
    at = np.unique(np.geomspace(1, len(each), POINTS).astype(int))
    local = [_stationarity(problem, data, result.local_models[i], i) for i in range(data.devices)]
    last = result.devices[result.devices["round"] == case.rounds]
    return {
        "hash": case.key,
        "case": asdict(case),
        "round": at.tolist(),
        "mean": [float(f"{v:.4g}") for v in mean[at - 1]],
        "plateau": float(f"{each[-max(1, len(each) // 10) :].mean():.4g}"),
        "slope": round(slope(mean, each), 3),
        "local_sqnorm": float(f"{np.mean(local):.4g}"),
        "smoothness": float(f"{last['smoothness'].max():.4g}"),
        "multiplier": float(f"{last['multiplier'].mean():.4g}"),
        "drift": float(f"{last['drift'].mean():.4g}"),
    }


def slope(mean: np.ndarray, each: np.ndarray) -> float:
    """The slope of log(running mean - plateau) against log T, where the running mean is well above its plateau."""
    plateau = each[-max(1, len(each) // 10) :].mean()
    rounds = np.arange(1, len(mean) + 1)
    above = mean - plateau
    use = (above > 0.5 * plateau) & (rounds >= min(10, len(mean) // 4)) & (above > 0)
    if use.sum() < 5:
        return float("nan")
    return float(np.polyfit(np.log(rounds[use]), np.log(above[use]), 1)[0])


def _stationarity(problem: Model, data: Federation, x_i: Any, device: int) -> float:
    """‖∇f_i(x_i)‖²"""
    x, y = data.train.of(device)
    gradient = jax.grad(lambda w: jnp.mean(problem.loss(problem.outputs(w, jnp.asarray(x)), jnp.asarray(y))))(x_i)
    return float(jnp.sum(gradient * gradient))
