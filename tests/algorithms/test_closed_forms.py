"""Two rounds worked by hand, on one-dimensional quadratics f_i(w) = ½ (w - c_i)², started from z = 0."""

import jax.numpy as jnp
import numpy as np
import pytest
from problems import x64

import fedbc
from fedbc.algorithms import Context
from fedbc.algorithms.fedbc import Device

MODEL = fedbc.models.Model(
    init=lambda key: {"w": jnp.zeros(())},
    apply=lambda params, x: params["w"] * x,
    loss=fedbc.models.half_squared_error,
    correct=None,
    name="scalar",
)


def run(algorithm, targets, *, rounds, steps):
    """Device i holds targets[i], one or more numbers; full batches."""
    with x64():
        pairs = [(np.ones(np.size(c)), np.atleast_1d(np.asarray(c, float))) for c in targets]
        result = fedbc.simulate(
            algorithm,
            MODEL,
            fedbc.data.federation(pairs, pairs),
            rounds=rounds,
            epochs=steps,
            batch_size=None,
            evaluate=(),
        )
    return float(result.global_model["w"]), result.local_models["w"], result


def test_fedavg():
    """Rate ½ halves the distance to c_i: 1 - 1/4 of the way in two steps. n = (1, 3) weighs device 2 three times."""
    z, x, _ = run(fedbc.FedAvg(lr=0.5), [1.0, [-2.0, -2.0, -2.0]], rounds=1, steps=2)
    np.testing.assert_allclose(x, [0.75, -1.5], rtol=1e-15)
    assert z == pytest.approx((0.75 - 3 * 1.5) / 4, rel=1e-15)  # -0.9375
    z, x, _ = run(fedbc.FedAvg(lr=0.5), [1.0, [-2.0, -2.0, -2.0]], rounds=2, steps=2)
    # from -0.9375: 1 - 1.9375/4 and -2 + 1.0625/4
    np.testing.assert_allclose(x, [0.515625, -1.734375], rtol=1e-15)
    assert z == pytest.approx((0.515625 - 3 * 1.734375) / 4, rel=1e-15)
    z, _, _ = run(fedbc.FedAvg(lr=0.5, weights="uniform"), [1.0, [-2.0, -2.0, -2.0]], rounds=1, steps=2)
    assert z == pytest.approx((0.75 - 1.5) / 2, rel=1e-15)


def test_fedavg_momentum():
    """Two steps at rate ½, momentum ½, to c = 1: v = -1, w = ½; v = -½ - ½ = -1, w = 1."""
    z, _, _ = run(fedbc.FedAvg(lr=0.5, momentum=0.5), [1.0], rounds=1, steps=2)
    assert z == pytest.approx(1.0, rel=1e-15)


def test_fedprox():
    """mu = 1, rate ½: w <- w - ½ (2w - c - z) = (c + z)/2, at once and for good."""
    z, x, _ = run(fedbc.FedProx(lr=0.5, mu=1.0), [1.0, [-2.0, -2.0, -2.0]], rounds=1, steps=2)
    np.testing.assert_allclose(x, [0.5, -1.0], rtol=1e-15)
    assert z == pytest.approx((0.5 - 3.0) / 4, rel=1e-15)  # -0.625
    z, x, _ = run(fedbc.FedProx(lr=0.5, mu=1.0), [1.0, [-2.0, -2.0, -2.0]], rounds=2, steps=2)
    np.testing.assert_allclose(x, [0.1875, -1.3125], rtol=1e-15)  # (1 - 0.625)/2, (-2 - 0.625)/2
    assert z == pytest.approx((0.1875 - 3 * 1.3125) / 4, rel=1e-15)


def test_fedbc():
    """beta = alpha = ½, K = 2, gamma learned, c = (1, -2)."""
    algorithm = fedbc.FedBC(lr=0.5, dual_lr=0.5)
    # Round 1, lambda = gamma = 0: x = (0.75, -1.5), drifts 0.5625 and 2.25, of which lambda is half; gamma stays 0.
    z, x, result = run(algorithm, [1.0, -2.0], rounds=1, steps=2)
    np.testing.assert_allclose(x, [0.75, -1.5], rtol=1e-15)
    np.testing.assert_allclose(result.multipliers, [0.28125, 1.125], rtol=1e-15)
    np.testing.assert_array_equal(result.tolerances, [0, 0])
    assert z == pytest.approx(-1.05, rel=1e-14)  # (0.28125·0.75 - 1.125·1.5) / 1.40625
    # Round 2, device 1, 2 lambda = 0.5625: w = -1.05; gradient -2.05 and no pull yet, w = -0.025;
    #   gradient -1.025 + 0.5625·1.025 = -0.4484375, w = 0.19921875; drift 1.24921875² = 1.5605474853515625.
    # Device 2, 2 lambda = 2.25: gradient 0.95, w = -1.525; gradient 0.475 - 2.25·0.475 = -0.59375, w = -1.228125;
    #   drift 0.178125² = 0.031728515625.
    z, x, result = run(algorithm, [1.0, -2.0], rounds=2, steps=2)
    np.testing.assert_allclose(x, [0.19921875, -1.228125], rtol=1e-14)
    np.testing.assert_allclose(result.devices["drift"][2:], [1.5605474853515625, 0.031728515625], rtol=1e-13)
    np.testing.assert_allclose(result.multipliers, [1.06152374267578125, 1.1408642578125], rtol=1e-14)
    np.testing.assert_allclose(result.tolerances, [0.140625, 0.5625], rtol=1e-15)
    assert z == pytest.approx(-0.540163, rel=1e-6)
    weighted = 1.06152374267578125 * 0.19921875 - 1.1408642578125 * 1.228125
    assert z == pytest.approx(weighted / (1.06152374267578125 + 1.1408642578125), rel=1e-14)
    np.testing.assert_allclose(result.devices["violation"][2:], [1.5605474853515625, 0.031728515625], rtol=1e-13)


def test_fedbc_start_local():
    """One step a round, and round 2 starts from x_i.

    Round 1 gives x = (0.5, -1), lambda = (0.125, 0.5), z = (0.0625 - 0.5)/0.625 = -0.7. In round 2, device 1 from
    0.5: -0.5 + 0.25·1.2 = -0.2, w = 0.6; device 2 from -1: 1 - 1·0.3 = 0.7, w = -1.35.
    """
    _, x, result = run(fedbc.FedBC(lr=0.5, dual_lr=0.5, start="local"), [1.0, -2.0], rounds=2, steps=1)
    np.testing.assert_allclose(x, [0.6, -1.35], rtol=1e-14)
    # drifts from -0.7: 1.69 and 0.4225
    np.testing.assert_allclose(result.multipliers, [0.125 + 0.845, 0.5 + 0.21125], rtol=1e-14)


@pytest.mark.parametrize(
    ("settings", "multiplier", "tolerance", "x", "new_multiplier", "new_tolerance"),
    [
        # lambda + alpha (x² - gamma), and gamma + alpha lambda from the old lambda
        ({}, 0.0, 0.0, 2.0, 0.4, 0.0),
        ({}, 0.4, 0.0, 2.0, 0.8, 0.04),
        ({}, 0.8, 0.04, 1.0, 0.896, 0.12),
        ({}, 0.1, 9.0, 1.0, 0.0, 9.01),  # 0.1 - 0.8 < 0
        ({"tolerance": 1.5}, 0.3, 1.5, 1.0, 0.25, 1.5),
        ({"tolerance": 0.5, "lambda_max": 0.6}, 0.3, 0.5, 3.0, 0.6, 0.5),  # 0.3 + 0.85 > 0.6
        ({"tolerance": 4.0, "lambda_min": 0.2, "multiplier": 0.2}, 0.3, 4.0, 1.0, 0.2, 4.0),  # 0.3 - 0.3 < 0.2
        ({"dual_lr": 0.0}, 0.3, 0.7, 5.0, 0.3, 0.7),
        ({"tolerance": float("inf")}, 0.0, float("inf"), 5.0, 0.0, float("inf")),
    ],
)
def test_dual_and_tolerance_steps(settings, multiplier, tolerance, x, new_multiplier, new_tolerance):
    with x64():
        algorithm = fedbc.FedBC(**{"dual_lr": 0.1, "start": "local", **settings})
        device = Device(*(jnp.asarray(v, float) for v in (x, multiplier, tolerance)))
        carry = algorithm.begin(jnp.zeros(()), device, Context(*jnp.ones(3, int)))
        done = algorithm.finish(carry)
        assert float(done.device.multiplier) == pytest.approx(new_multiplier, abs=1e-15)
        assert float(done.device.tolerance) == pytest.approx(new_tolerance, abs=1e-15)
        assert float(done.info["drift"]) == x**2
        assert float(done.summand.weighted) == pytest.approx(new_multiplier * x, abs=1e-14)
        assert float(done.summand.weight) == float(done.info["weight"]) == float(done.device.multiplier)


def test_initial_dual_state():
    for algorithm, wanted in (
        (fedbc.FedBC(), (0.0, 0.0)),
        (fedbc.FedBC(multiplier=0.3, tolerance=2.0), (0.3, 2.0)),
        (fedbc.FedBC(tolerance=(1.0, 5.0)), (0.0, 5.0)),
    ):
        device = algorithm.init_device(jnp.zeros(()), Context(*jnp.ones(3, int)))
        assert (float(device.multiplier), float(device.tolerance)) == pytest.approx(wanted)


def test_qfedavg():
    """q = 1, rate ½ so L = 2, one step from 0 to c = (1, -2): F = (0.5, 2), x = (0.5, -1), Delta = (-1, 2).

    h = Delta² + 2F = (2, 8); z = -(0.5·(-1) + 2·2)/10.
    """
    z, x, _ = run(fedbc.QFedAvg(lr=0.5, q=1.0), [1.0, -2.0], rounds=1, steps=1)
    np.testing.assert_allclose(x, [0.5, -1.0], rtol=1e-15)
    assert z == pytest.approx(-0.35, rel=1e-14)


def test_scaffold_option_2():
    """Rate ½, one step: round 1 x = (0.5, -1), z = -0.25, c_i = (z - x_i)/lr = (-1, 2), c = 0.5.

    Round 2 from -0.25: gradients (-1.25, 1.75) less c_i plus c: 0.25 and 0.25, so both reach -0.375.
    """
    z, x, _ = run(fedbc.SCAFFOLD(lr=0.5), [1.0, -2.0], rounds=2, steps=1)
    np.testing.assert_allclose(x, [-0.375, -0.375], rtol=1e-14)
    assert z == pytest.approx(-0.375, rel=1e-14)


def test_feddyn():
    """alpha = 1, rate ½, one step: x = (0.5, -1), mean -0.25, g = (-0.5, 1), h = 0.25, z = -0.25 - 0.25 = -0.5.

    Round 2 from -0.5: gradients (-1.5, 1.5) less g: (-1, 0.5), x = (0, -0.75); h = 0.25 - (0.5 - 0.25)/2 = 0.125;
    z = -0.375 - 0.125.
    """
    z, x, _ = run(fedbc.FedDyn(lr=0.5, penalty=1.0), [1.0, -2.0], rounds=2, steps=1)
    np.testing.assert_allclose(x, [0.0, -0.75], atol=1e-14)
    assert z == pytest.approx(-0.5, rel=1e-14)
