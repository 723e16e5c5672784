"""The theory's pieces against closed forms: smoothness, bounds, rate, and the toy example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbc
from fedbc.algorithms import smoothness
from fedbc.paper import epsilon, theory, toy
from fedbc.simulation.device import run_key
from fedbc.simulation.schedule import INIT


def test_power_iteration_finds_the_largest_eigenvalue():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    matrix = jnp.asarray(root @ root.T)

    def loss(w, batch):
        return 0.5 * w["a"] @ matrix @ w["a"] + 0.1 * jnp.sum(w["b"] ** 2)

    found = smoothness.curvature(loss, {"a": jnp.ones(6), "b": jnp.zeros(2)}, None, iterations=200)
    assert float(found) == pytest.approx(np.linalg.eigvalsh(root @ root.T).max(), rel=1e-4)


@pytest.mark.parametrize("constant", [0.01, 1.0, 50.0])
def test_the_bounds_are_those_of_the_proofs(constant):
    low, high = (float(b) for b in smoothness.bounds(jnp.asarray(constant)))
    assert low == pytest.approx(1 + constant)
    assert low < high < (1 + constant) ** 2 / constant


def test_fedbc_keeps_its_multipliers_within_the_theorys_bounds():
    case = theory.Case(rounds=8)
    data = theory.federation(case)
    algorithm = fedbc.FedBC(lr=0.05, dual_lr=0.5, tolerance=0.0, bounds="theory")
    result = fedbc.simulate(
        algorithm, theory.model(case), data, rounds=8, epochs=5, batch_size=None, evaluate=["global"]
    )
    exact = [np.linalg.eigvalsh(x.T @ x / len(x)).max() for x, _ in map(data.train.of, range(data.devices))]
    last = result.devices[result.devices["round"] == 8].sort_values("device")
    np.testing.assert_allclose(last["smoothness"], exact, rtol=0.02)
    L = last["smoothness"].to_numpy()
    multiplier = last["multiplier"].to_numpy()
    assert (multiplier >= 1 + L - 1e-5).all()
    assert (multiplier < (1 + L) ** 2 / L).all()
    assert np.ptp(multiplier - L) > 1e-3  # not all at a bound: the dual step still decides


def test_given_and_theoretical_bounds_exclude_each_other():
    with pytest.raises(fedbc.InputError, match="leave them out"):
        fedbc.FedBC(bounds="theory", lambda_max=3.0)
    with pytest.raises(fedbc.InputError, match="bounds='thery' is unknown"):
        fedbc.FedBC(bounds="thery")


def test_bounds_work_for_per_fedbc_and_on_mini_batches(small, tiny_model):
    result = fedbc.simulate(fedbc.PerFedBC(bounds="theory"), tiny_model, small, rounds=2, batch_size=5)
    assert (result.multipliers > 1).all()


@pytest.mark.parametrize("name", theory.PROBLEMS)
def test_the_studys_gradients_are_those_of_its_models(name):
    case = theory.Case(name)
    problem, trained = theory.Problem(case), theory.model(case)
    w = np.random.default_rng(3).normal(size=theory.FEATURES)
    for device in (0, 7):
        x, y = problem.data.train.of(device)
        wanted = jax.grad(lambda w, x=x, y=y: jnp.mean(trained.loss(trained.outputs(w, x), y)))(jnp.asarray(w))
        np.testing.assert_allclose(problem.gradients(w)[device], wanted, rtol=2e-4, atol=1e-5)


def test_a_case_measures_what_the_theorem_and_the_corollary_speak_of():
    case = theory.Case(rounds=30)
    line, problem = theory.run_case(case), theory.Problem(case)
    np.testing.assert_allclose(line["smoothness"], problem.smoothness, rtol=0.02)  # of all of a device's data
    low = 1 + problem.smoothness
    assert (np.array(line["multiplier"]) >= 0.98 * low).all()
    assert 0 < line["epsilon"] < 1e-2  # twenty steps nearly solve the local problem
    assert sum(abs(i) for i in line["indicators"]) <= case.rounds * theory.SAMPLE  # only those that took part
    # Far apart, all rounds violate a small gamma, and none a large one.
    loose = theory.run_case(theory.Case(rounds=30, gamma=1e6))
    assert sum(loose["indicators"]) == -case.rounds * theory.SAMPLE
    assert sum(theory.run_case(theory.Case(rounds=30, gamma=0.0))["indicators"]) == case.rounds * theory.SAMPLE


def test_delta_by_its_definition():
    """On one point, against every pair and a fine grid of Lambda."""
    case = theory.Case(apart=2.0)
    problem, point = theory.Problem(case), np.ones((1, 1, theory.FEATURES))
    low, high = np.linspace(1, 2, theory.DEVICES), np.linspace(3, 5, theory.DEVICES)
    g = problem.gradients(point[0, 0])
    slow = max(
        np.linalg.norm(a * g[i] - b * g[j])
        for i in range(theory.DEVICES)
        for j in range(theory.DEVICES)
        if i != j
        for a in np.linspace(low[j], high[j], 7)
        for b in np.linspace(low[i], high[i], 7)
    )
    assert theory.delta(problem, point, low, high) == pytest.approx(slow)


def test_the_toy_example():
    best = toy.optimum()
    assert toy.value(best) <= min(toy.value(best + d) for d in np.eye(2) * 0.01)
    fedavg = toy.walk(fedbc.FedAvg(lr=toy.RATE), rounds=40)
    consensus = toy.walk(fedbc.FedBC(lr=toy.RATE, dual_lr=0.02, tolerance=0.0), rounds=40)
    loose = toy.walk(fedbc.FedBC(lr=toy.RATE, dual_lr=0.02, tolerance=100.0), rounds=40)
    assert consensus["gap"] < fedavg["gap"] / 2
    assert consensus["local_loss"] > fedavg["local_loss"]
    # A tolerance that never binds leaves every multiplier 0: FedAvg.
    np.testing.assert_allclose(loose["path"], fedavg["path"], atol=1e-4)


def test_the_study_of_epsilon_counts_the_steps_that_gradient_descent_takes(monkeypatch):
    """By a loop of NumPy in 64 bits; an epsilon that the limit is too low for has no number of steps."""
    monkeypatch.setattr(epsilon, "DRAWS", 2)
    name, wanted = "logistic regression", (0.3, 0.05, 1e-9)
    line = epsilon.run_case(epsilon.Case(name, wanted, False, limit=60))
    x, y = epsilon.copies(1).train.of(0)
    x, one_hot = np.c_[x.astype(float), np.ones(len(y))], np.eye(10)[y]
    start = epsilon.MODELS[name]().init(run_key(1, INIT))
    w = np.concatenate([np.asarray(start["w"], float), np.asarray(start["b"], float)[None]])
    residuals = []
    for _ in range(60):
        gradients = []
        for at in (w, None):
            at = w - epsilon.RATE * gradients[0] if at is None else at
            e = np.exp(x @ at)
            gradients.append(x.T @ (e / e.sum(1, keepdims=True) - one_hot) / len(y))
        w = w - epsilon.RATE * gradients[0]
        residuals.append((gradients[1] ** 2).sum())
    counted = [next((k for k, r in enumerate(residuals, 1) if r <= e), None) for e in wanted]
    assert line["steps"] == [[k] for k in counted]
    assert counted[2] is None
    stochastic = epsilon.run_case(epsilon.Case(name, (0.3,), True, limit=60))
    assert stochastic["rate"] == epsilon.RATE
    assert [len(steps) for steps in stochastic["steps"]] == [2]
    assert all(k % epsilon.EVERY == 0 for k in stochastic["steps"][0])
    points = epsilon.points([line, stochastic])
    assert [p.epsilon for p in points] == [0.3, 0.3, 0.05]  # the one without a number is left out
