"""Limits in which one method becomes another, to the precision of 64-bit sums or to the bit."""

import functools

import jax
import numpy as np
import pytest
from problems import Quadratics, small_federation, x64

import fedbc

MODEL = fedbc.models.logistic(4, 3)
SAMPLED = {"rounds": 3, "epochs": 2, "batch_size": 5, "sample": 3, "seed": 7, "lanes": 2, "evaluate": ()}
EVERYONE = {**SAMPLED, "sample": None}
STEPS = {"lr": 0.1, "momentum": 0.5}


@functools.cache
def run(algorithm, everyone=False):
    with x64():
        return fedbc.simulate(algorithm, MODEL, small_federation(), **(EVERYONE if everyone else SAMPLED))


def assert_close(a, b, tolerance=1e-13):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def assert_equal(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def assert_same_models(a, b, tolerance=1e-13):
    assert_close(a.global_model, b.global_model, tolerance)
    assert_close(a.local_models, b.local_models, tolerance)


def test_these_runs_differ():
    """Or else the equalities below would prove nothing."""
    a, b = run(fedbc.FedAvg(**STEPS)), run(fedbc.FedAvg(**STEPS, weights="uniform"))
    assert np.abs(a.global_model["w"] - b.global_model["w"]).max() > 1e-3


def test_fedbc_without_multipliers_is_fedavg():
    """lambda = 0 for good: FedAvg's local steps, and the plain mean."""
    assert_same_models(run(fedbc.FedBC(**STEPS, dual_lr=0.0)), run(fedbc.FedAvg(**STEPS, weights="uniform")))


def test_fedbc_with_constant_multipliers_is_fedprox():
    """lambda = mu/2 for good: FedProx with uniform weights."""
    bc = run(fedbc.FedBC(**STEPS, dual_lr=0.0, multiplier=0.35))
    assert_same_models(bc, run(fedbc.FedProx(**STEPS, mu=0.7, weights="uniform")))


def test_fedbc_with_infinite_tolerance_is_local_training():
    bc = run(fedbc.FedBC(**STEPS, tolerance=float("inf"), start="local", dual_lr=0.5), everyone=True)
    np.testing.assert_array_equal(bc.multipliers, 0)
    assert_same_models(bc, run(fedbc.LocalOnly(**STEPS), everyone=True))


def test_fedprox_without_pull_is_fedavg():
    assert_same_models(run(fedbc.FedProx(**STEPS, mu=0.0)), run(fedbc.FedAvg(**STEPS)))


def test_ditto_without_pull_is_local_training():
    ditto = run(fedbc.Ditto(**STEPS, penalty=0.0, personal_lr=0.1), everyone=True)
    assert_close(ditto.local_models, run(fedbc.LocalOnly(**STEPS), everyone=True).local_models)


def test_dittos_global_model_is_fedavgs():
    assert_close(run(fedbc.Ditto(**STEPS)).global_model, run(fedbc.FedAvg(**STEPS)).global_model, 1e-15)


def test_personal_models_beside_fedbc_do_not_act_on_it():
    beside = run(fedbc.BesideFedBC(**STEPS, dual_lr=0.5, personal_lr=0.05))
    alone = run(fedbc.FedBC(**STEPS, dual_lr=0.5))
    assert_equal(beside.global_model, alone.global_model)
    np.testing.assert_array_equal(beside.multipliers, alone.multipliers)
    assert np.abs(beside.local_models["w"] - alone.local_models["w"]).max() > 1e-3


def test_personal_models_beside_fedbc_without_multipliers_are_dittos():
    """lambda = 0 for good: FedAvg's plain mean, and Ditto's personal models beside it."""
    beside = run(fedbc.BesideFedBC(**STEPS, dual_lr=0.0, penalty=0.8, personal_lr=0.05))
    assert_same_models(beside, run(fedbc.Ditto(**STEPS, penalty=0.8, personal_lr=0.05, weights="uniform")))


def test_l2gd_without_pull_is_local_training():
    assert_same_models(
        run(fedbc.L2GD(**STEPS, penalty=0.0), everyone=True), run(fedbc.LocalOnly(**STEPS), everyone=True)
    )


@pytest.mark.parametrize("weights", ["uniform", "root", "examples"])
def test_qfedavg_with_q_0_is_fedavg(weights):
    assert_same_models(run(fedbc.QFedAvg(**STEPS, q=0.0, weights=weights)), run(fedbc.FedAvg(**STEPS, weights=weights)))


def test_feddyn_without_penalty_is_fedavg():
    assert_same_models(run(fedbc.FedDyn(**STEPS, penalty=0.0)), run(fedbc.FedAvg(**STEPS, weights="uniform")))


def test_server_momentum_0_is_fedavg():
    assert_same_models(run(fedbc.FedAvgM(**STEPS, server_momentum=0.0)), run(fedbc.FedAvg(**STEPS)))


def test_fedadmm_from_local_models_is_fedpd_when_everyone_takes_part():
    admm = run(fedbc.FedADMM(**STEPS, rho=0.5, start="local"), everyone=True)
    assert_same_models(admm, run(fedbc.FedPD(**STEPS, eta=2.0), everyone=True))


def test_perfedbc_without_multipliers_is_per_fedavg():
    """lambda = 0 for good: Per-FedAvg's first-order steps, and the plain mean."""
    bc = run(fedbc.PerFedBC(**STEPS, inner_lr=0.2, dual_lr=0.0))
    assert_same_models(bc, run(fedbc.PerFedAvg(**STEPS, inner_lr=0.2)))


def test_scaffold_with_one_step_is_gradient_descent():
    """Everyone taking part, Σ c_i = N c, and the corrections cancel in the mean."""
    with x64():
        problem = Quadratics()
        corrected, _, _ = problem.run(fedbc.SCAFFOLD(lr=0.1), rounds=5, steps=1)
        plain, _, _ = problem.run(fedbc.FedAvg(lr=0.1), rounds=5, steps=1)
    assert_close(corrected, plain)


def test_pfedme_tends_to_fedavg_as_lambda_grows():
    """With inner_lr = 1/lambda, lambda (w - theta) = ∇f at a point O(1/lambda) from w: FedAvg at the same rate lr."""
    fedavg = run(fedbc.FedAvg(lr=0.1, weights="uniform")).global_model["w"]

    def gap(penalty):
        me = run(fedbc.PFedMe(lr=0.1, penalty=penalty, inner_lr=1 / penalty, inner_steps=3))
        return np.abs(me.global_model["w"] - fedavg).max()

    near, far = gap(1e4), gap(1e3)
    assert near < 1e-3
    assert far / near == pytest.approx(10, rel=0.05)


def test_an_infinite_tolerance_needs_no_dual_rate():
    """Neither a rate of 0 nor a positive one makes a multiplier of an infinite slack."""
    still, moving = (run(fedbc.FedBC(**STEPS, tolerance=float("inf"), dual_lr=rate)) for rate in (0.0, 0.1))
    assert_same_models(still, moving)
    assert (moving.multipliers == 0).all()
