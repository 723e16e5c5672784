"""Small problems that the tests of algorithms share."""

import jax
import jax.numpy as jnp
import numpy as np

import fedbc


def x64():
    """A context in which JAX computes in 64 bits."""
    return jax.enable_x64(True)


def small_federation(sizes=(7, 23, 12, 16, 5), *, features=4, classes=3, test=3, seed=0):
    """A few devices with ragged sizes; each labels by a model of its own, so that they disagree."""
    rng = np.random.default_rng(seed)
    train, held = [], []
    for n in sizes:
        w = rng.normal(size=(features, classes))
        x = rng.normal(rng.normal(size=features), 1, (n + test, features))
        y = np.argmax(x @ w, axis=1)
        train.append((x[:n], y[:n]))
        held.append((x[n:], y[n:]))
    return fedbc.data.federation(train, held, classes=classes, name="small")


def nested_model(features=4, classes=3, hidden=5):
    """A network whose parameters are nested in dicts, lists and tuples, with a scalar among them."""

    def init(key):
        first, second = jax.random.split(key)
        return {
            "body": [{"w": 0.5 * jax.random.normal(first, (features, hidden), float), "b": jnp.zeros(hidden)}],
            "head": (0.5 * jax.random.normal(second, (hidden, classes), float), jnp.zeros(classes)),
            "gain": jnp.ones(()),
        }

    def apply(params, x):
        layer, (w, b) = params["body"][0], params["head"]
        return params["gain"] * jnp.tanh(x @ layer["w"] + layer["b"]) @ w + b

    return fedbc.models.Model(init, apply, name="nested")


class Quadratics:
    """Heterogeneous strongly convex problems f_i(w) = ½ (w - c_i)ᵀ A_i (w - c_i), as least squares.

    Device i holds the d rows of R_i and the targets R_i c_i, all of them `repeats[i]` times: its mean loss is f_i
    with A_i = R_iᵀR_i/d, and n_i = d repeats[i].
    """

    def __init__(self, devices=4, d=3, *, repeats=None, seed=0):
        rng = np.random.default_rng(seed)
        self.d = d
        self.c = 3 * rng.normal(size=(devices, d))
        roots = []
        for _ in range(devices):
            q, _ = np.linalg.qr(rng.normal(size=(d, d)))
            roots.append(np.diag(np.sqrt(d * rng.uniform(0.5, 2.0, d))) @ q.T)
        self.A = np.stack([r.T @ r / d for r in roots])
        self.repeats = np.ones(devices, int) if repeats is None else np.asarray(repeats)
        pairs = [
            (np.tile(r, (times, 1)), np.tile(r @ c, times))
            for r, c, times in zip(roots, self.c, self.repeats, strict=True)
        ]
        self.federation = fedbc.data.federation(pairs, pairs, name="quadratics")
        self.model = fedbc.models.Model(
            init=lambda key: {"w": jnp.zeros(d)},
            apply=lambda params, x: x @ params["w"],
            loss=fedbc.models.half_squared_error,
            correct=None,
            name="linear",
        )

    def gradient(self, i, w):
        return self.A[i] @ (w - self.c[i])

    def optimum(self, weights=None):
        """The minimiser of Σ weights_i f_i."""
        weights = np.ones(len(self.c)) if weights is None else np.asarray(weights)
        left = np.einsum("i,ijk->jk", weights, self.A)
        right = np.einsum("i,ijk,ik->j", weights, self.A, self.c)
        return np.linalg.solve(left, right)

    def run(self, algorithm, *, rounds, steps=1, **rest):
        """Full-batch descent with `steps` local steps; gives z and the local models as arrays, and the result."""
        rest = {"batch_size": None, "evaluate": (), **rest}
        result = fedbc.simulate(algorithm, self.model, self.federation, rounds=rounds, epochs=steps, **rest)
        return result.global_model["w"], result.local_models["w"], result
