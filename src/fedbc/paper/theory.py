"""The theorem and the corollary in numbers, on problems that satisfy their assumptions.

    (1/T) Σ ‖∇f(z^t)‖² = O(B_0/T) + O(epsilon) + O(delta²) + O(alpha) + O(Σ gamma_i / (N T))
    (1/T) Σ ‖∇f_i(x_i^t)‖² <= O(epsilon_i) + alpha² O([Σ_t I_t]_+)²,  I_t = 1 if ‖x_i^t - z^{t-1}‖² > gamma_i, else -1

Quadratics and regularised logistic regression, full batches, as Algorithm 1 has it: five of ten devices in a round,
each from its own x_i; multipliers within the bounds that the proofs need (`FedBC(bounds="theory")`; L_i of all of a
device's data), or above 0 only (`bounds="given"`). One quantity is varied at a time: alpha (the dual rate), K (local
steps, which determine epsilon), how far apart the devices are (which determines delta) and gamma.

delta and epsilon are measured by their definitions on the way, over the points that the run visits:

    delta      max ‖a ∇f_i(x) - b ∇f_j(x)‖  over pairs of devices, a in Lambda_j, b in Lambda_i, x visited
    epsilon_i  max ‖∇f_i(x_i^{t+1}) + 2 lambda_i^t (x_i^{t+1} - z^t)‖²  over the rounds in which device i took part
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedbc
from fedbc.algorithms import smoothness
from fedbc.data.federation import Federation
from fedbc.models.base import Model, cross_entropy, half_squared_error
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.settings import Settings

DEVICES, SAMPLE, FEATURES, EXAMPLES = 10, 5, 8, 40
RATE = 0.05
RIDGE = 0.1
POINTS = 60
"""Points of a curve that are kept, evenly in log T."""
VISITED = 100
"""About so many rounds, evenly spaced, whose points delta is measured over."""


@dataclass(frozen=True)
class Case:
    """One run: a problem and the theorem's quantities."""

    problem: str = "quadratic"
    alpha: float = 0.01
    steps: int = 20
    """K"""
    apart: float = 1.0
    """how far apart the devices are"""
    gamma: float = 0.01
    bounds: str = "theory"
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
FREE = "gamma without bounds"
"""The sweep of gamma once more, with multipliers that have no other bound than 0."""
PROBLEMS = ("quadratic", "logistic")


def cases(rounds: int = Case.rounds) -> Iterator[tuple[str, Case]]:
    """Every case with the quantity that it varies."""
    for problem in PROBLEMS:
        for name, values in SWEEPS.items():
            for value in values:
                given: Any = {name: int(value) if name == "steps" else value}
                yield name, replace(Case(problem, rounds=rounds), **given)
        for gamma in SWEEPS["gamma"]:
            yield FREE, Case(problem, gamma=gamma, bounds="given", rounds=rounds)


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


class Problem:
    """The devices' losses in float64, with their gradients in closed form."""

    def __init__(self, case: Case) -> None:
        self.case, self.data = case, federation(case)
        pairs = [self.data.train.of(i) for i in range(DEVICES)]
        self.x = np.stack([x for x, _ in pairs]).astype(float)
        self.y = np.stack([y for _, y in pairs]).astype(float)

    def gradients(self, w: np.ndarray) -> np.ndarray:
        """∇f_i at points of shape (..., FEATURES), for every device: (..., DEVICES, FEATURES)."""
        outputs = np.einsum("...k,iek->...ie", w, self.x)
        wrong = outputs - self.y if self.case.problem == "quadratic" else 1 / (1 + np.exp(-outputs)) - self.y
        slopes = np.einsum("...ie,iek->...ik", wrong, self.x) / EXAMPLES
        return slopes if self.case.problem == "quadratic" else slopes + RIDGE * w[..., None, :]

    def own_gradients(self, x: np.ndarray) -> np.ndarray:
        """∇f_i at x_i, for x of shape (..., DEVICES, FEATURES)."""
        return np.stack([self.gradients(x[..., i, :])[..., i, :] for i in range(DEVICES)], axis=-2)

    @property
    def smoothness(self) -> np.ndarray:
        """L_i over the whole space."""
        largest = np.linalg.eigvalsh(np.einsum("iek,iel->ikl", self.x, self.x) / EXAMPLES)[:, -1]
        return largest if self.case.problem == "quadratic" else largest / 4 + RIDGE


@dataclass
class Path:
    """What a run went through, round by round; row 0 is its start."""

    z: list[np.ndarray]
    x: list[np.ndarray]
    """of all devices; where one has not taken part, it is z^0"""
    multiplier: list[np.ndarray]
    """lambda_i after the round"""
    smoothness: list[np.ndarray]
    """L_i as FedBC has measured it by then; 0 where it does not"""
    took_part: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def walk(cls, case: Case, problem: Problem) -> Path:
        """Run a case with Algorithm 1's participation and start."""
        algorithm = fedbc.FedBC(lr=RATE, dual_lr=case.alpha, tolerance=case.gamma, bounds=case.bounds, start="local")
        settings = Settings(epochs=case.steps, batch_size=None, sample=SAMPLE, seed=case.seed, evaluate=())
        run = Simulation(algorithm, model(case), problem.data, settings)
        origin = np.zeros(FEATURES)
        path = cls([origin], [np.tile(origin, (DEVICES, 1))], [np.zeros(DEVICES)], [np.zeros(DEVICES)])

        def keep(_: Any) -> None:
            known, states = run.store.devices, run.store.stacks
            path.z.append(np.asarray(run.server, float))
            path.x.append(_updated(path.x[-1], known, states.x))
            path.multiplier.append(_updated(path.multiplier[-1], known, states.multiplier))
            measured = states.smoothness if case.bounds == "theory" else 0.0
            path.smoothness.append(_updated(path.smoothness[-1], known, measured))

        run.go(case.rounds, on_round=keep)
        rows = run.result().devices
        for number in range(1, case.rounds + 1):
            path.took_part.append(np.isin(np.arange(DEVICES), rows["device"][rows["round"] == number]))
        return path


def _updated(before: np.ndarray, where: np.ndarray, values: Any) -> np.ndarray:
    after = before.copy()
    after[where] = values
    return after


def run_case(case: Case) -> dict[str, Any]:
    """Run a case: the running mean (thinned) and where it ends, delta and epsilon, and every device's stationarity."""
    problem = Problem(case)
    path = Path.walk(case, problem)
    z, x, multiplier, took_part = (np.stack(part) for part in (path.z, path.x, path.multiplier, path.took_part))
    each = np.sum(problem.gradients(z[1:]).mean(-2) ** 2, axis=-1)
    mean = np.cumsum(each) / np.arange(1, len(each) + 1)
    at = np.unique(np.geomspace(1, len(each), POINTS).astype(int))
    strayed = np.sum((x[1:] - z[:-1, None]) ** 2, axis=-1)
    own = problem.own_gradients(x[1:])
    used, (low, high) = multiplier[:-1], (np.zeros(DEVICES), multiplier.max(0))
    if case.bounds == "theory":  # a round clips by what is known of L_i once it has begun
        bounds = smoothness.bounds(jnp.asarray(np.stack(path.smoothness[1:])))
        used = np.clip(used, *(np.asarray(b, float) for b in bounds))
        low, high = (np.asarray(b[-1], float) for b in bounds)
    residual = np.sum((own + 2 * used[..., None] * (x[1:] - z[:-1, None])) ** 2, axis=-1)
    indicators = np.where(took_part, np.where(strayed > case.gamma, 1, -1), 0).sum(0)
    return {
        "hash": case.key,
        "case": asdict(case),
        "round": at.tolist(),
        "mean": _short(mean[at - 1]),
        "plateau": _short(each[-max(1, len(each) // 10) :].mean()),
        "delta": _short(delta(problem, np.concatenate([z[:, None], x], axis=1), low, high)),
        "epsilon": _short(residual[took_part].max()),
        "smoothness": _short(np.stack(path.smoothness)[-1] if case.bounds == "theory" else problem.smoothness),
        "local_sqnorm": _short(np.sum(own**2, axis=-1).mean(0)),
        "indicators": indicators.tolist(),
        "multiplier": _short(multiplier[-1]),
        "drift": _short(strayed[took_part].mean()),
    }


def delta(problem: Problem, points: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """The heterogeneity over points of shape (rounds, any, FEATURES): a convex function of (a, b), largest in a corner
    of Lambda_j x Lambda_i."""
    gradients = problem.gradients(points[:: max(1, len(points) // VISITED)]).reshape(-1, DEVICES, FEATURES)
    square = np.einsum("pik,pjk->pij", gradients, gradients)
    norm = np.einsum("pii->pi", square)
    largest = 0.0
    for a in (low, high):  # of device j, before ∇f_i
        for b in (low, high):  # of device i, before ∇f_j
            apart = (
                a[None, None, :] ** 2 * norm[:, :, None]
                + b[None, :, None] ** 2 * norm[:, None, :]
                - 2 * a[None, None, :] * b[None, :, None] * square
            )
            apart[:, np.arange(DEVICES), np.arange(DEVICES)] = 0
            largest = max(largest, float(apart.max()))
    return float(np.sqrt(largest))


def _short(values: Any) -> Any:
    """Four significant digits, so that lines stay small."""
    if np.ndim(values):
        return [_short(v) for v in values]
    return float(f"{float(values):.4g}")
