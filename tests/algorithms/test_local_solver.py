"""The local solver: every method with every part of it equals its twin, or says in one line why it does not take it."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import Quadratics, small_federation, x64
from test_contracts import assert_same_bits
from test_twin import MODEL, SAMPLED, SETTINGS, assert_equal_to_twin
from twin import Local

import fedbc
from fedbc.algorithms import ALGORITHMS, optimizers, schedules
from fedbc.algorithms.solver import Part, Solver

SMALL_STEPS = {name: {"lr": 0.01, "momentum": 0.0} for name in SETTINGS}
WITHOUT_PLAIN_STEPS = {"scaffold": {"option": "I"}, "qfedavg": {"lipschitz": 3.0}}
TAKES_OPTIMIZER = [
    name for name in SETTINGS if ALGORITHMS[name](**WITHOUT_PLAIN_STEPS.get(name, {})).refuses(Part.OPTIMIZER) is None
]


def run_one(algorithm=None, federation=None, **chosen):
    return fedbc.simulate(
        algorithm or fedbc.FedBC(lr=0.1),
        MODEL,
        federation or small_federation(),
        **{"rounds": 3, "epochs": 2, "batch_size": 5, "sample": 3, "seed": 2, "evaluate": (), **chosen},
    )


# --- every method against its twin ------------------------------------------------------------------------------------


# Each kind of step: one descent, one with terms of its own, two of them, and those that adapt first.
KINDS = ["fedbc", "fedpd", "ditto", "perfedbc"]


@pytest.mark.parametrize("name", [name for name in TAKES_OPTIMIZER if name in (*KINDS, "scaffold", "qfedavg")])
def test_adam(name):
    with x64():
        setting = {**SMALL_STEPS[name], **WITHOUT_PLAIN_STEPS.get(name, {})}
        assert_equal_to_twin(name, setting, SAMPLED, 1e-11, {"optimizer": "adam"}, Local(adam=True))


@pytest.mark.parametrize("name", ["fedbc", "scaffold", "feddyn", "ditto", "perfedavg"])
def test_clipping_and_weight_decay(name):
    """The bound is such that some gradients are clipped, and others are not."""
    with x64():
        chosen, local = {"clip": 0.5, "weight_decay": 0.2}, Local(clip=0.5, weight_decay=0.2)
        assert_equal_to_twin(name, {}, SAMPLED, 1e-12, chosen, local)


@pytest.mark.parametrize("name", ["fedbc", "qfedavg", "scaffold", "l2gd", "ditto", "pfedme"])
def test_schedules(name):
    chosen, local = {"lr_schedule": "step,every=2,factor=0.5"}, Local(factor=lambda t: 0.5 ** (t // 2))
    if name in ("fedbc", "perfedbc"):
        chosen["dual_schedule"] = "inverse_sqrt,warmup=2"
        local.dual_factor = lambda t: min(1, (t + 1) / 2) / math.sqrt(1 + t)
    with x64():
        assert_equal_to_twin(name, {}, SAMPLED, 1e-12, chosen, local)


@pytest.mark.parametrize("name", ["ditto", "perfedavg"])
def test_velocity_stays_on_the_device(name):
    with x64():
        assert_equal_to_twin(name, {}, SAMPLED, 1e-12, {"keep_optimizer": True}, Local(keep=True))


def test_moments_stay_on_the_device():
    with x64():
        chosen = {"optimizer": "adam", "keep_optimizer": True}
        assert_equal_to_twin("fedbc", SMALL_STEPS["fedbc"], SAMPLED, 1e-11, chosen, Local(adam=True, keep=True))


# --- optimizers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("rmsprop,decay=0.8,momentum=0.5", optax.rmsprop(0.1, decay=0.8, momentum=0.5)),
        ({"name": "adamw", "weight_decay": 0.1}, optax.adamw(0.1, weight_decay=0.1)),
        ("lamb", optax.lamb(0.1)),
        ("sgd,momentum=0.9,nesterov=true", optax.sgd(0.1, momentum=0.9, nesterov=True)),
        (optax.yogi, optax.yogi(0.1)),
        (optax.chain(optax.clip(0.5), optax.adagrad(0.03)), optax.chain(optax.clip(0.5), optax.adagrad(0.03))),
    ],
)
def test_any_optimizer_of_optax(given, rule):
    """One device, full batches: the round is the optimizer's own loop."""
    with x64():
        problem = Quadratics(1)
        z, _, _ = problem.run(fedbc.FedAvg(lr=0.1), rounds=1, steps=4, optimizer=given)
        w = {"w": jnp.zeros(problem.d)}
        memory = rule.init(w)
        for _ in range(4):
            move, memory = rule.update({"w": jnp.asarray(problem.gradient(0, np.asarray(w["w"])))}, memory, w)
            w = optax.apply_updates(w, move)
        np.testing.assert_allclose(z, w["w"], rtol=1e-10)


def test_every_known_name_works():
    assert {"adam", "adamw", "rmsprop", "lion", "yogi", "adagrad", "lamb", "nadam", "radam"} <= set(optimizers.names())
    for name in optimizers.names():
        if name != "sgd":
            assert optimizers.optimizer_from(name) is not None


def test_sgd_by_name_is_the_methods_own_to_the_bit():
    for momentum in (0.0, 0.5):
        runs = [run_one(fedbc.FedBC(lr=0.1, momentum=momentum), **o) for o in ({}, {"optimizer": "sgd"})]
        assert_same_bits(runs[0].global_model, runs[1].global_model)


def test_a_run_that_keeps_moments_resumes_to_the_same_bits(tmp_path):
    chosen = {"optimizer": "adam", "keep_optimizer": True, "lr_schedule": "cosine,rounds=6"}
    whole = run_one(rounds=6, **chosen)
    run_one(rounds=3, checkpoint=tmp_path / "run", **chosen)
    resumed = run_one(rounds=6, checkpoint=tmp_path / "run", resume=True, **chosen)
    assert_same_bits((whole.global_model, whole.local_models), (resumed.global_model, resumed.local_models))
    with pytest.raises(fedbc.InputError, match="its run optimizer is 'adam', here it is 'yogi'"):
        run_one(rounds=7, checkpoint=tmp_path / "run", resume=True, **{**chosen, "optimizer": "yogi"})


def test_private_methods_take_a_solver():
    private = fedbc.privacy.Private(fedbc.FedAvg(lr=0.1, weights="uniform"), clip=1e6, noise_multiplier=0.0)
    plain = fedbc.FedAvg(lr=0.1, weights="uniform")
    chosen = {"optimizer": "adam", "lr_schedule": "inverse_sqrt", "keep_optimizer": True, "rounds": 2}
    one, other = run_one(private, **chosen), run_one(plain, **chosen)
    for a, b in zip(jax.tree.leaves(one.global_model), jax.tree.leaves(other.global_model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


# --- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("constant,warmup=4", [0.25, 0.5, 0.75, 1, 1, 1]),
        ("cosine,rounds=4", [1, 0.5 + 0.5 * math.cos(math.pi / 4), 0.5, 0.5 - 0.5 * math.cos(math.pi / 4), 0, 0]),
        ("cosine,rounds=2,floor=0.2", [1, 0.6, 0.2, 0.2, 0.2, 0.2]),
        ({"name": "step", "every": 2, "factor": 0.1}, [1, 1, 0.1, 0.1, 0.01, 0.01]),
        ("inverse_sqrt", [1, 2**-0.5, 3**-0.5, 0.5, 5**-0.5, 6**-0.5]),
        (optax.exponential_decay(1.0, 1, 0.5), [1, 0.5, 0.25, 0.125, 0.0625, 0.03125]),
    ],
)
def test_factors(given, wanted):
    schedule = schedules.schedule_from("lr_schedule", given)
    np.testing.assert_allclose([schedule(jnp.asarray(t)) for t in range(6)], wanted, rtol=1e-6, atol=1e-7)


def test_a_cosine_ends_with_the_run():
    assert_same_bits(
        run_one(rounds=4, lr_schedule="cosine").global_model,
        run_one(rounds=4, lr_schedule="cosine,rounds=4").global_model,
    )
    result = run_one(rounds=4, lr_schedule="cosine")
    assert result.spec["run"]["lr_schedule"] == {"name": "cosine", "rounds": 4}


def test_a_rate_of_0_that_a_method_divides_by_is_told():
    with pytest.raises(fedbc.Diverged, match=r"in round 4 .* lr_schedule makes the rate 0 in this round"):
        run_one(fedbc.SCAFFOLD(lr=0.1), rounds=4, lr_schedule="cosine,rounds=2", sample=None)


def test_a_schedule_compiles_once_and_holds_in_debug_mode():
    chosen = {"lr_schedule": "inverse_sqrt", "rounds": 2, "sample": 1, "epochs": 1, "batch_size": 12}
    quick, slow = run_one(**chosen), run_one(**chosen, debug=True)
    for a, b in zip(jax.tree.leaves(quick.global_model), jax.tree.leaves(slow.global_model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# --- what does not go together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"optimizer": "adm"}, "optimizer='adm' is unknown: choose one of .*; did you mean 'adam'?"),
        ({"optimizer": "adam,b3=0.5"}, "argument of adam='b3' is unknown"),
        ({"optimizer": "adam,lr=0.5"}, "the rate is the method's lr"),
        ({"optimizer": "adam,b1=high"}, "optimizer=adam,b1=high does not work: "),
        ({"optimizer": 3}, "optimizer=3 is not accepted"),
        ({"optimizer": "lbfgs"}, "optimizer='lbfgs' is unknown"),
        ({"optimizer": lambda lr: lr}, "does not work: "),
        ({"optimizer": "adam,b1"}, "give a name, then key=value"),
        ({"optimizer": optax.adam(0.1), "lr_schedule": "cosine"}, "lr_schedule does not move the rate of a ready"),
        ({"keep_optimizer": True}, "keep_optimizer has nothing to keep"),
        ({"keep_optimizer": 1}, "keep_optimizer=1 is not accepted"),
        ({"clip": 0.0}, "clip=0.0 is not accepted"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0 is not accepted"),
        ({"lr_schedule": "cosin"}, "lr_schedule='cosin' is unknown: .*did you mean 'cosine'"),
        ({"lr_schedule": "step"}, "lr_schedule='step' lacks every"),
        ({"lr_schedule": "step,every=0"}, "every of the step schedule=0 is not accepted"),
        ({"lr_schedule": 0.5}, "lr_schedule=0.5 is not accepted"),
        ({"lr_schedule": lambda t: 1.0 if t < 3 else 0.5}, "that JAX can trace"),
        ({"lr_schedule": lambda t: jnp.ones(2)}, r"gives an array of shape \(2,\)"),
        ({"lr_schedule": lambda t: 1 - 0.6 * t}, "lr_schedule is not accepted: for round 3 it gives -0.2"),
        ({"dual_schedule": lambda t: 1 / t}, "dual_schedule is not accepted: for round 1 it gives inf"),
        ({"lr_schedule": lambda t: jnp.log(t - 1)}, "lr_schedule is not accepted: for round 1 it gives nan"),
        ({"dual_schedule": {"rounds": 3}}, "a table needs a name"),
    ],
)
def test_what_means_nothing_is_told_in_a_sentence(chosen, sentence):
    with pytest.raises(fedbc.InputError, match=sentence) as caught:
        run_one(**chosen)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "setting", "chosen", "sentence"),
    [
        ("scaffold", {}, {"optimizer": "adam"}, "control variates of option II assume plain steps"),
        ("l2gd", {}, {"optimizer": "adam"}, "its aggregation is as strong as lr K plain steps"),
        ("qfedavg", {}, {"optimizer": "adam"}, "give lipschitz"),
        ("pfedme", {}, {"clip": 1.0}, "clip does not apply to pfedme: it takes its local steps itself"),
        ("fedbc", {"momentum": 0.5}, {"optimizer": "adam"}, "momentum=0.5 is that of optimizer='sgd'"),
        ("fedavg", {}, {"dual_schedule": "cosine"}, "dual_schedule does not apply to fedavg: it has no dual rate"),
        ("fedbc", {"dual_lr": 0.0}, {"dual_schedule": "cosine"}, "dual_schedule does not apply to fedbc"),
    ],
)
def test_what_a_method_cannot_use_is_told_in_a_sentence(name, setting, chosen, sentence):
    with pytest.raises(fedbc.InputError, match=re.escape(sentence)):
        run_one(ALGORITHMS[name](**setting), **chosen)


def test_no_solver_is_silently_unused():
    """A method takes a part of the solver, or refuses it with a reason."""
    for name, kind in ALGORITHMS.items():
        for part in Part:
            reason = kind().refuses(part)
            assert reason is None or len(reason) > 20, (name, part)
    assert Solver().chosen == []
