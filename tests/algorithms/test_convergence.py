"""Theory as tests, on strongly convex quadratics with heterogeneous devices, in 64 bits and with full batches."""

import jax
import jax.flatten_util
import numpy as np
import pytest
from problems import Quadratics, nested_model, small_federation, x64

import fedbc

EXACT = [
    fedbc.SCAFFOLD(lr=0.05),
    fedbc.SCAFFOLD(lr=0.05, option="I"),
    fedbc.SCAFFOLD(lr=0.03, momentum=0.5),
    fedbc.FedPD(lr=0.1, eta=1.0),
    fedbc.FedADMM(lr=0.1, rho=1.0),
    fedbc.FedADMM(lr=0.1, rho=1.0, start="local"),
    fedbc.FedDyn(lr=0.1, penalty=1.0),
]


@pytest.fixture(autouse=True)
def wide():
    with x64():
        yield


def distance(a, b):
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


@pytest.mark.parametrize("algorithm", EXACT, ids=str)
def test_reaches_the_exact_optimum_with_many_local_steps(algorithm):
    problem = Quadratics()
    z, x, _ = problem.run(algorithm, rounds=120, steps=10)
    assert distance(z, problem.optimum()) < 1e-7
    assert distance(x, problem.optimum()) < 1e-6  # consensus


@pytest.mark.parametrize("algorithm", [EXACT[0], EXACT[2], EXACT[3], EXACT[4], EXACT[6]], ids=str)
def test_reaches_it_under_sampling_too(algorithm):
    """Control variates and dual vectors of absent devices stay in the sum, so sampling leaves no noise behind."""
    problem = Quadratics()
    z, _, _ = problem.run(algorithm, rounds=300, steps=10, sample=2, seed=1)
    assert distance(z, problem.optimum()) < 1e-6


@pytest.mark.parametrize("sample", [None, 2])
def test_scaffold_weighted_by_examples_reaches_the_weighted_optimum(sample):
    problem = Quadratics(repeats=[1, 5, 2, 3])
    algorithm = fedbc.SCAFFOLD(lr=0.05, weights="examples")
    z, _, _ = problem.run(algorithm, rounds=300 if sample else 120, steps=10, sample=sample)
    assert distance(z, problem.optimum(problem.repeats)) < 1e-6
    assert distance(problem.optimum(), problem.optimum(problem.repeats)) > 0.1


def test_fedavg_misses_the_optimum_with_many_local_steps():
    problem = Quadratics()
    rounds = {K: problem.run(fedbc.FedAvg(lr=0.1), rounds=200, steps=K)[0] for K in (1, 10)}
    assert distance(rounds[1], problem.optimum()) < 1e-7  # one step a round is gradient descent
    assert distance(rounds[10], problem.optimum()) > 0.05  # ten are not
    again = problem.run(fedbc.FedAvg(lr=0.1), rounds=250, steps=10)[0]
    assert distance(again, rounds[10]) < 1e-9  # and more rounds do not help: it has converged


def test_fedadmm_with_another_server_rate_under_sampling_is_not_exact():
    """The reason for the default server_lr=None."""
    problem = Quadratics()
    z, _, _ = problem.run(fedbc.FedADMM(lr=0.1, rho=1.0, server_lr=1.0), rounds=300, steps=10, sample=2, seed=1)
    assert distance(z, problem.optimum()) > 1e-3


def test_scaffold_control_variates_are_gradients_in_spite_of_momentum():
    """At the optimum c_i = ∇f_i; dividing by K alone would leave it 1/(1-m) times too large while z moves."""
    problem = Quadratics()
    _, _, result = problem.run(fedbc.SCAFFOLD(lr=0.03, momentum=0.5), rounds=120, steps=10)
    last = result.devices[result.devices["round"] == 120]
    wanted = [np.sum(problem.gradient(i, problem.optimum()) ** 2) for i in range(4)]
    np.testing.assert_allclose(last["control"], wanted, rtol=1e-5)
    # After one round, too, the control variate is a mean of gradients on the way, whose norms bound its own.
    _, _, result = problem.run(fedbc.SCAFFOLD(lr=0.001, momentum=0.5), rounds=1, steps=10)
    wanted = [np.sum(problem.gradient(i, np.zeros(3)) ** 2) for i in range(4)]
    np.testing.assert_allclose(result.devices["control"], wanted, rtol=0.05)


def test_ditto_personal_models_have_their_closed_form():
    problem = Quadratics()
    algorithm = fedbc.Ditto(lr=0.1, personal_lr=0.1, penalty=0.7)
    z, v, _ = problem.run(algorithm, rounds=150, steps=5)
    for i in range(4):
        left, right = problem.A[i] + 0.7 * np.eye(3), problem.A[i] @ problem.c[i] + 0.7 * z
        assert distance(v[i], np.linalg.solve(left, right)) < 1e-9
        assert distance(v[i], z) > 0.1


def test_pfedme_has_its_closed_form():
    """With one local step and theta solved well: z minimises the mean of the Moreau envelopes, theta_i is its prox."""
    problem, penalty, eye = Quadratics(), 2.0, np.eye(3)
    algorithm = fedbc.PFedMe(lr=0.5, penalty=penalty, inner_steps=60, inner_lr=0.3)
    z, theta, _ = problem.run(algorithm, rounds=200, steps=1)
    inverse = [np.linalg.inv(A + penalty * eye) for A in problem.A]
    left = sum(eye - penalty * inv for inv in inverse)
    right = sum(inv @ A @ c for inv, A, c in zip(inverse, problem.A, problem.c, strict=True))
    assert distance(z, np.linalg.solve(left, right)) < 1e-9
    for i in range(4):
        assert distance(theta[i], inverse[i] @ (problem.A[i] @ problem.c[i] + penalty * z)) < 1e-9
    assert distance(z, problem.optimum()) > 0.01  # it is another objective's minimiser


def l2gd_optimum(problem, penalty):
    """The minimiser of (1/n) Σ f_i(x_i) + penalty/(2n) Σ ‖x_i - x̄‖², one linear system over all devices."""
    n, d = problem.c.shape
    left = np.zeros((n * d, n * d))
    for i in range(n):
        here = slice(i * d, (i + 1) * d)
        left[here, here] += problem.A[i] + penalty * np.eye(d)
        for j in range(n):
            left[here, j * d : (j + 1) * d] -= penalty / n * np.eye(d)
    right = np.concatenate([A @ c for A, c in zip(problem.A, problem.c, strict=True)])
    return np.linalg.solve(left, right).reshape(n, d)


def l2gd_aggregated(problem, lr, penalty, steps, **rest):
    """w^0, the models after the aggregation that the next round would begin with."""
    z, x, _ = problem.run(fedbc.L2GD(lr=lr, penalty=penalty), rounds=400, steps=steps, **rest)
    share = lr * steps * penalty / (1 + lr * steps * penalty)
    return x - share * (x - z)


@pytest.mark.parametrize(("lr", "sample"), [(0.1, None), (0.5, None), (0.3, 2)])
def test_l2gd_is_exact_with_one_local_step(lr, sample):
    problem = Quadratics()
    wanted = l2gd_optimum(problem, 0.8)
    assert distance(l2gd_aggregated(problem, lr, 0.8, 1, sample=sample), wanted) < 1e-8
    assert np.ptp(wanted, axis=0).max() > 0.5  # no consensus


def test_l2gd_is_off_by_the_order_of_the_rate_with_more():
    problem = Quadratics()
    wanted = l2gd_optimum(problem, 0.8)
    coarse, fine = (distance(l2gd_aggregated(problem, lr, 0.8, 5), wanted) for lr in (0.04, 0.02))
    assert fine < 0.1
    assert coarse / fine == pytest.approx(2, rel=0.15)


@pytest.mark.parametrize(("start", "steps"), [("global", 150), ("local", 20)])
def test_fedbc_with_fixed_tolerance_satisfies_kkt(start, steps):
    """min Σ f_i(x_i) s.t. ‖x_i - z‖² <= gamma_i, one tolerance so loose that its constraint is idle.

    From z every round solves the device's problem anew, to the precision of its steps; from x_i they add up.
    """
    problem = Quadratics()
    gamma = np.array([0.5, 1.0, 2.0, 1000.0])
    algorithm = fedbc.FedBC(lr=0.2, dual_lr=0.2, tolerance=tuple(gamma), start=start, multiplier=0.1)
    z, x, result = problem.run(algorithm, rounds=400, steps=steps)
    multiplier, drift = result.multipliers, np.sum((x - z) ** 2, axis=1)
    assert (multiplier >= 0).all()
    assert (drift <= gamma + 1e-6).all()
    np.testing.assert_allclose(multiplier * (drift - gamma), 0, atol=1e-6)
    assert multiplier[3] == 0
    assert (multiplier[:3] > 0.01).all()
    assert distance(np.sum(multiplier[:, None] * (x - z), axis=0), 0) < 1e-6
    for i in range(4):
        assert distance(problem.gradient(i, x[i]) + 2 * multiplier[i] * (x[i] - z), 0) < 1e-6


# --- Per-FedAvg's directions ------------------------------------------------------------------------------------------


def directions(order, **rest):
    """On a network, which is not quadratic: the direction of an order, and the number whose derivative it is."""
    model, federation = nested_model(), small_federation()
    params = model.init(jax.random.key(1))
    batches = [federation.train.of(i) for i in (1, 3)]

    def loss(params, batch):
        return model.loss(model.apply(params, batch[0]), batch[1]).mean()

    def adapted_loss(params, rate):
        inner = jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, batches[0]))
        return loss(inner, batches[1])

    algorithm = fedbc.PerFedAvg(order=order, inner_lr=0.5, **rest)
    value, direction = jax.jit(lambda params: algorithm.direction(loss, params, batches))(params)
    assert float(value) == pytest.approx(float(loss(params, batches[0])), rel=1e-12)
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    numeric = np.zeros(len(flat))
    compiled = jax.jit(lambda p: adapted_loss(unravel(p), 0.5))
    for k in range(len(flat)):
        bump = 1e-5 * np.eye(len(flat))[k]
        numeric[k] = (compiled(flat + bump) - compiled(flat - bump)) / 2e-5
    return jax.flatten_util.ravel_pytree(direction)[0], numeric


def test_perfedavg_exact_direction_is_the_derivative():
    found, numeric = directions("exact")
    np.testing.assert_allclose(found, numeric, rtol=1e-6, atol=1e-8)


def test_perfedavg_hessian_free_direction_is_the_derivative_nearly():
    coarse, fine = (distance(*directions("hessian_free", probe=probe)) for probe in (0.2, 0.1))
    assert fine < 0.01
    assert coarse / fine == pytest.approx(4, rel=0.3)  # central differences: second order in the probe
    assert distance(*directions("first")) > 10 * fine


def test_perfedavg_on_quadratics_converges_to_the_meta_optimum():
    """One exact step a round: z minimises Σ f_i(w - a∇f_i(w)), Hessians A_i (I - a A_i)²."""
    problem, a = Quadratics(), 0.2
    z, _, _ = problem.run(fedbc.PerFedAvg(lr=0.2, inner_lr=a, order="exact"), rounds=250, steps=1)
    meta = [(np.eye(3) - a * A) @ A @ (np.eye(3) - a * A) for A in problem.A]
    wanted = np.linalg.solve(sum(meta), sum(M @ c for M, c in zip(meta, problem.c, strict=True)))
    assert distance(z, wanted) < 1e-9
    assert distance(wanted, problem.optimum()) > 0.01


def test_local_only_finds_each_devices_own_optimum():
    problem = Quadratics()
    z, x, _ = problem.run(fedbc.LocalOnly(lr=0.2), rounds=50, steps=5)
    assert distance(x, problem.c) < 1e-9
    assert distance(z, problem.c.mean(0)) < 1e-9


def test_server_optimisers_reach_fedavgs_point():
    """With one local step a round the mean move is a gradient, and each server's optimiser finds its zero."""
    problem = Quadratics()
    for algorithm in (
        fedbc.FedAvgM(lr=0.1, server_momentum=0.5),
        fedbc.FedAdagrad(lr=0.1, server_lr=4.0, adaptivity=1.0),
        fedbc.FedAdam(lr=0.1, server_lr=2.0, adaptivity=1.0),
        fedbc.FedYogi(lr=0.1, server_lr=2.0, adaptivity=1.0),
    ):
        z, _, _ = problem.run(algorithm, rounds=300, steps=1)
        assert distance(z, problem.optimum()) < 1e-5, algorithm.name


def test_qfedavg_evens_out_the_losses():
    """A larger q lowers the largest of the devices' losses."""
    problem = Quadratics()

    def losses(q):
        z, _, _ = problem.run(fedbc.QFedAvg(lr=0.05, q=q, lipschitz=2.0), rounds=150, steps=1)
        return np.array([0.5 * (z - c) @ A @ (z - c) for A, c in zip(problem.A, problem.c, strict=True)])

    plain, fair = losses(0.0), losses(4.0)
    assert fair.max() < 0.95 * plain.max()
    assert fair.std() < plain.std()


def test_this_module_runs_in_64_bits():
    z, _, _ = Quadratics().run(fedbc.FedAvg(), rounds=1)
    assert z.dtype == np.float64
