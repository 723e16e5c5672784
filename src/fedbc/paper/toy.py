"""The first figure as a small optimisation that one can see: two devices with quadratic losses in the plane.

f_i(w) = ½ (w - a_i)ᵀ A_i (w - a_i), with curvatures in different directions. The best global model is z* =
(A_1 + A_2)⁻¹ (A_1 a_1 + A_2 a_2). FedAvg's mean of the local models after K steps does not settle there: each device
walks its own steep direction to the end. What FedBC does instead depends on the tolerance gamma.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedbc
from fedbc.models.base import Model, half_squared_error
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.settings import Settings

CENTRES = np.array([[0.0, 1.0], [2.0, -1.0]])
CURVATURES = np.array([[[1.0, 0.0], [0.0, 0.05]], [[0.06, 0.02], [0.02, 0.9]]])
START = np.array([-0.6, -1.2])
ROUNDS, STEPS, RATE = 300, 50, 0.2
TOLERANCES = (0.0, 0.01, 0.1, 1.0)
FEDAVG, LEARNED = "FedAvg", "FedBC, gamma learned"
FIXED = {tolerance: f"FedBC, gamma = {tolerance:g}" for tolerance in TOLERANCES}
CONSENSUS = FIXED[0.0]
TOLERANT = (*(name for tolerance, name in FIXED.items() if tolerance > 0), LEARNED)
"""The names of the walks: FedAvg's, and FedBC's by tolerance, of which `TOLERANT` are above zero."""


def federation() -> fedbc.data.Federation:
    """The two losses as least-squares problems."""
    pairs = []
    for centre, curvature in zip(CENTRES, CURVATURES, strict=True):
        rows = np.sqrt(2) * np.linalg.cholesky(curvature).T  # f_i is the mean over two examples
        pairs.append((rows, rows @ centre))
    return fedbc.data.federation(pairs, pairs, name="two quadratics")


def plane() -> Model:
    """w itself is the model."""
    return Model(
        lambda key: jnp.asarray(START), lambda w, x: (x @ w)[:, None], lambda o, y: half_squared_error(o, y[:, None]),
        correct=None, name="plane",
    )  # fmt: skip


def value(w: np.ndarray) -> float:
    """f(w), the mean of the two losses."""
    return float(np.mean([0.5 * (w - a) @ A @ (w - a) for a, A in zip(CENTRES, CURVATURES, strict=True)]))


def optimum() -> np.ndarray:
    """z*"""
    return np.linalg.solve(CURVATURES.sum(0), np.einsum("ijk,ik->j", CURVATURES, CENTRES))


def methods() -> dict[str, fedbc.Algorithm]:
    """What the picture compares."""
    out: dict[str, fedbc.Algorithm] = {FEDAVG: fedbc.FedAvg(lr=RATE)}
    for tolerance, name in FIXED.items():
        out[name] = fedbc.FedBC(lr=RATE, dual_lr=0.02, tolerance=tolerance)
    out[LEARNED] = fedbc.FedBC(lr=RATE, dual_lr=0.02)
    return out


def walk(algorithm: fedbc.Algorithm, rounds: int = ROUNDS) -> dict[str, Any]:
    """The path of z, where the local models end, and how far z is from the best."""
    run = Simulation(algorithm, plane(), federation(), Settings(epochs=STEPS, batch_size=None, evaluate=("global",)))
    path = [START]
    run.go(rounds, on_round=lambda _: path.append(np.asarray(algorithm.global_model(run.server))))
    z, best = path[-1], optimum()
    own = np.asarray(jax.tree.leaves(run.result().local_models)[0])
    local = [0.5 * (x - a) @ A @ (x - a) for x, a, A in zip(own, CENTRES, CURVATURES, strict=True)]
    return {
        "path": np.round(np.array(path), 4).tolist(),
        "local": np.round(own, 4).tolist(),
        "gap": value(z) - value(best),
        "distance": float(np.linalg.norm(z - best)),
        "local_loss": float(np.mean(local)),
    }


def study(rounds: int = ROUNDS) -> dict[str, Any]:
    """All methods, with the optimum."""
    walks = {name: walk(algorithm, rounds) for name, algorithm in methods().items()}
    return {"optimum": optimum().tolist(), "best": value(optimum()), "walks": walks}
