"""The path of the constrained problem: closed forms on quadratics, a float64 twin in NumPy on logistic regression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fedbc
from fedbc.personalization.choice import Scores, choose
from fedbc.personalization.folds import FOLDS, NEVER, folds
from fedbc.personalization.path import Own, Paths, grid
from fedbc.personalization.solved import solve
from fedbc.simulation import batches
from fedbc.simulation.lanes import Lanes


def walk(model, federation, device, starts, *, fold_of, accuracy=1e-9, most=400, points=6):
    """One device's paths, in float64."""
    paths = Paths(model, federation, FOLDS, accuracy=accuracy, most=most, points=points)
    train = federation.train
    own = Own(jnp.asarray(train.offsets[device]), jnp.asarray(train.sizes[device]), jnp.asarray(starts))
    data = batches.host_data(train, federation.shared)
    return jax.tree.map(np.asarray, jax.jit(paths.walk)(own, fold_of, jax.tree.map(jnp.asarray, data)))


def quadratic_model(d):
    """f_i(w) = mean of ½‖R_j (w - c)‖² over the device's rows."""
    return fedbc.models.Model(
        lambda key: {"w": jnp.zeros(d)},
        lambda params, x: x @ params["w"],
        loss=fedbc.models.half_squared_error,
        correct=None,
        name="quadratic",
    )


def test_the_path_of_a_quadratic_is_its_closed_form():
    """(A + 2 lambda)^-1 (A c + 2 lambda z) for each fold and for all data, x their mean, gamma = ‖x - z‖²."""
    rng = np.random.default_rng(0)
    d = 3
    pairs, curvatures = [], []
    for n in (11, 300):  # less than a chunk, and three of them
        x, c = rng.normal(size=(n, d)) * [1, 2, 0.5], rng.normal(size=d)
        pairs.append((x, x @ c))
        curvatures.append(x.T @ x / n)
    with jax.enable_x64(True):
        federation = fedbc.data.federation(pairs, pairs)
        fold_of = folds(federation.train, 0)
        starts = rng.normal(size=(2, d))
        for device in range(2):
            a = curvatures[device]
            walked = walk(quadratic_model(d), federation, device, starts, fold_of=fold_of)
            top = np.linalg.eigvalsh(a).max()
            np.testing.assert_allclose(walked.multiplier, grid(6) * walked.multiplier[0])
            assert 0.9 * top <= walked.multiplier[0] <= 1.0001 * top
            x, y = federation.train.of(device)
            own_folds = fold_of[federation.train.offsets[device] :][: len(y)]
            for side in range(2):
                for k, lam in enumerate(walked.multiplier):
                    solutions = []
                    for fold in range(FOLDS + 1):
                        rest = own_folds != fold
                        part, target = x[rest].T @ x[rest] / rest.sum(), x[rest].T @ y[rest] / rest.sum()
                        solutions.append(np.linalg.solve(part + 2 * lam * np.eye(d), target + 2 * lam * starts[side]))
                    x_i = np.mean(solutions, 0)
                    np.testing.assert_allclose(walked.models[side, k], x_i, rtol=1e-6, atol=1e-6)
                    np.testing.assert_allclose(walked.drift[side, k], np.sum((x_i - starts[side]) ** 2), rtol=1e-5)
            assert walked.residual.max() <= 1e-9
            # gamma grows as lambda falls, and f_i as gamma shrinks: the path of the constrained problem
            assert (np.diff(walked.drift[0]) > 0).all()


def nll(v, x, y, classes):
    """The losses of logistic regression with its parameters in a row: the bias, then the weights, as a pytree's."""
    b, w = v[:classes], v[classes:].reshape(x.shape[1], classes)
    logits = x @ w + b
    logits = logits - logits.max(1, keepdims=True)
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]


def solved(x, y, centre, lam, classes):
    """The minimum of the mean loss and the pull."""

    def objective(v):
        b, w = v[:classes], v[classes:].reshape(-1, classes)
        p = np.exp(x @ w + b)
        p = p / p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        gradient = np.concatenate([p.mean(0), (x.T @ p / len(y)).ravel()]) + 2 * lam * (v - centre)
        return nll(v, x, y, classes).mean() + lam * np.sum((v - centre) ** 2), gradient

    return minimize(objective, centre, jac=True, method="BFGS", options={"gtol": 1e-9}).x


def twin(x, y, starts, multipliers, fold_of, classes):
    """Both paths and the held-out scores of every candidate, one problem after the other."""
    models = np.zeros((2, len(multipliers), starts.shape[1]))
    scores = [1 - np.exp(-nll(starts[0], x, y, classes))]
    for side, centre in enumerate(starts):
        for k, lam in enumerate(multipliers):
            solutions = [solved(x, y, centre, lam, classes)]
            held_out = np.zeros(len(y))
            for fold in range(FOLDS):
                rest = fold_of != fold
                v = solved(x[rest], y[rest], centre, lam, classes)
                solutions.append(v)
                own = fold_of == fold
                held_out[own] = 1 - np.exp(-nll(v, x[own], y[own], classes))
            models[side, k] = np.mean(solutions, 0)
            scores.append(held_out)
    return models, np.asarray(scores)


def test_logistic_regression_against_a_twin_in_float64(make_federation):
    classes = 3
    model = fedbc.models.logistic(4, classes)
    with jax.enable_x64(True):
        federation = make_federation((23, 41))
        fold_of = folds(federation.train, 5)
        starts = np.random.default_rng(2).normal(size=(2, 15))
        # above the smallest lambdas, where separable classes have their optimum far away
        walked = walk(model, federation, 0, starts, fold_of=fold_of, points=3, accuracy=1e-10)
        walked = jax.tree.map(np.asarray, walked)
        some = walked.multiplier[:2]
        x, y = federation.train.of(0)
        models, scores = twin(x, y, starts, some, fold_of[: len(y)], classes)
    np.testing.assert_allclose(walked.models[:, :2], models, atol=2e-5)
    numbers = [0, 1, 2, 5, 6]  # z, and two points of each path of four
    np.testing.assert_allclose(walked.total[numbers], scores.sum(1), atol=1e-3)
    np.testing.assert_allclose(walked.products[np.ix_(numbers, numbers)], scores @ scores.T, atol=1e-3)


def test_solutions_are_averaged_only_where_that_is_no_worse():
    """Two minima, at 1 and at -1, and a loss that is worst half-way: the model is the solution for all data."""
    model = fedbc.models.Model(
        lambda key: {"w": jnp.zeros(1)},
        lambda params, x: x[:, 0] * params["w"][0] ** 2,
        loss=fedbc.models.half_squared_error,
        correct=None,
        name="two minima",
    )
    pairs = [(np.ones((10, 1), np.float32), np.ones(10, np.float32))]
    federation = fedbc.data.federation(pairs, pairs)
    paths = Paths(model, federation, FOLDS, accuracy=1e-4, most=10, points=1)
    train = federation.train
    own = Own(jnp.asarray(0), jnp.asarray(10), jnp.zeros((2, 1)))
    data = jax.tree.map(jnp.asarray, batches.host_data(train, federation.shared))
    apart = jnp.asarray([-1.0, -1, -1, 1, 1, 1])
    together = jnp.asarray([1.1, 0.9, 1.05, 0.95, 1.0, 0.9])
    means = paths._means(own, data, jnp.concatenate([apart, together])[None, :, None])
    np.testing.assert_allclose(means[:, 0, 0], [1.0, together.mean()], rtol=1e-6)


def test_the_constraint_holds_and_the_loss_falls_along_the_path(small, tiny_model):
    z = tiny_model.init(jax.random.key(1))
    lanes = Lanes(2)
    found = dict(solve(tiny_model, small, z, z, seed=0, accuracy=1e-4, most=100, lanes=lanes))
    assert sorted(found) == list(range(small.devices))
    centre = np.concatenate([np.asarray(z["b"]), np.asarray(z["w"]).ravel()])
    for chosen in found.values():
        drift = np.sum((chosen.personal - centre) ** 2)
        assert np.isinf(chosen.tolerance) or drift == pytest.approx(chosen.tolerance, rel=1e-4, abs=1e-7)
        assert (chosen.tolerance == 0) == np.isinf(chosen.multiplier)


def test_any_number_of_lanes_chooses_the_same(small, tiny_model):
    z = tiny_model.init(jax.random.key(1))
    one, two = (dict(solve(tiny_model, small, z, z, seed=0, accuracy=1e-4, most=50, lanes=Lanes(n))) for n in (1, 2))
    for device in one:
        np.testing.assert_allclose(one[device].personal, two[device].personal, rtol=1e-4, atol=1e-4)


def test_noise_and_ties_go_to_the_smaller_tolerance():
    def scores(rows):
        rows = np.asarray(rows, float)
        return Scores(rows.sum(1), rows @ rows.T, rows.shape[1])

    assert choose(scores([[0.5, 0.5], [0.5, 0.5]])) == 0
    assert choose(scores([[0.9, 0.9, 0.9, 0.8], [0.1, 0.1, 0.1, 0.2]])) == 1
    # by the mean the second is better, but the difference is all in one of many examples
    noisy = np.full((2, 100), 0.5)
    noisy[0, 0], noisy[1, 0] = 0.5, 0.4
    assert choose(scores(noisy), noise=0) == 1
    assert choose(scores(noisy), noise=2) == 0
    # what is not finite is never chosen, and without examples it is z
    assert choose(scores([[0.5, 0.5], [np.nan, 0.1]])) == 0
    assert choose(Scores(np.zeros(3), np.zeros((3, 3)), 0)) == 0


def test_folds_are_even_random_and_the_device_s_own():
    sizes = [1, 3, 10, 1001]
    split = fedbc.data.Split(np.zeros(sum(sizes)), np.zeros(sum(sizes)), np.cumsum([0, *sizes]))
    fold_of = folds(split, 3)
    one, three, ten, many = np.split(fold_of, np.cumsum(sizes)[:-1])
    assert one.tolist() == [NEVER]
    assert sorted(three) == [0, 1, 2]
    assert np.bincount(ten).tolist() == [2] * FOLDS
    assert (many == 0).sum() == 200
    assert (many == NEVER).sum() == 801
    assert not np.array_equal(fold_of, folds(split, 4))
    late = folds(split, 3, ordered=True)
    np.testing.assert_array_equal(late[4:14], np.repeat(np.arange(5), 2))
    assert (late[-200:] == 0).all()
    assert (late[14:-200] == NEVER).all()


def test_a_device_that_gains_nothing_keeps_z(make_federation):
    """Labels are coin tosses: whatever a device learns is noise."""
    federation = make_federation((40,))
    rng = np.random.default_rng(0)
    noise = [(federation.train.x, rng.integers(0, 3, 40))]
    federation = fedbc.data.federation(noise, [federation.test.of(0)], classes=3)
    model = fedbc.models.logistic(4, 3)
    z = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0)))
    chosen = dict(solve(model, federation, z, z, seed=0, accuracy=1e-4, most=50, lanes=Lanes(1)))[0]
    assert chosen.tolerance < 0.5
