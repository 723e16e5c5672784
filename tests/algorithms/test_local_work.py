"""How much local work (K_i), how well it is done (epsilon_i), and in which set (X): methods as their twins."""

import re

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from problems import Quadratics, small_federation, x64
from test_contracts import assert_same_bits
from test_local_solver import SMALL_STEPS, TAKES_OPTIMIZER, WITHOUT_PLAIN_STEPS, run_one
from test_twin import MODEL, SAMPLED, assert_equal_to_twin
from twin import Local

import fedbc
from fedbc import trees
from fedbc.algorithms import ALGORITHMS
from fedbc.algorithms.domains import Ball, Box
from fedbc.algorithms.solver import Part
from fedbc.simulation.amounts import OnePerDevice, canonical
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.schedule import Batching, Planner
from fedbc.simulation.settings import Settings

# --- K_i --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("fedbc", {"epochs": [1, 3, 2, 4, 1]}),
        ("fedbc", {"epochs": 1, "steps": "2-7"}),
        ("scaffold", {"epochs": "1-3"}),
        ("perfedbc", {"epochs": 1, "steps": "2-7"}),
        ("l2gd", {"epochs": 1, "steps": [3, 1, 9, 2, 2]}),
    ],
)
def test_amounts_of_work(name, chosen):
    with x64():
        assert_equal_to_twin(name, {}, SAMPLED, 1e-12, chosen)


@pytest.mark.parametrize("chosen", [{"epochs": (1, 4)}, {"epochs": 1, "steps": 3}])
def test_amounts_of_full_batches(chosen):
    with x64():
        assert_equal_to_twin("fedavg", {}, {**SAMPLED, "batch_size": None}, 1e-12, chosen)


def test_work_that_differs_is_told():
    result = run_one(epochs="1-4", rounds=6)
    epochs = result.devices["steps"] / np.ceil(result.devices["examples"] / 5)
    assert set(epochs) == {1, 2, 3, 4}
    assert_same_bits(result.global_model, run_one(epochs=(1, 4), rounds=6).global_model)
    assert "steps" not in run_one(rounds=1).devices


def test_draws_are_spread_and_depend_on_seed_round_and_device_only():
    batching, devices = Batching(5, "1-5"), np.arange(2000)
    drawn = batching.amounts(1, 1, devices)
    counts = np.bincount(drawn, minlength=6)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 400).max() < 90  # five standard deviations of 18
    np.testing.assert_array_equal(batching.amounts(1, 1, devices[300:500]), drawn[300:500])
    for other in ((2, 1), (1, 2)):
        assert (batching.amounts(*other, devices) != drawn).mean() > 0.7


@pytest.mark.parametrize("amount", [{"epochs": "1-6"}, {"fixed_steps": "1-30"}])
def test_lanes_hold_and_balance_any_draw(amount):
    """One shape for all rounds, tables that no draw overflows, and lanes apart by no more than the largest device."""
    random = np.random.default_rng(0)
    for _ in range(25):
        sizes = random.integers(1, 80, random.integers(3, 14))
        lanes, sample = int(random.integers(1, 5)), int(random.integers(2, len(sizes) + 1))
        planner = Planner(
            np.concatenate([[0], np.cumsum(sizes)]), Batching(7, **amount), sample=sample, lanes=lanes, seed=3
        )
        plans = [planner.plan(r) for r in range(1, 9)]
        assert len({p.rows.shape for p in plans}) == 1
        for plan in plans:
            loads = plan.steps.sum(1)
            if planner.depth == sample:  # places for all devices in one lane: nothing but the work decides
                assert loads.max() - loads.min() <= plan.steps.max()
            filled = (plan.rows >= 0).any(-1).sum(1)
            np.testing.assert_array_equal(filled, loads)


def test_nothing_recompiles_whatever_the_devices_do():
    """Draws of K_i, an epsilon per device and schedules: one program for all rounds, for one lane and for two."""
    chosen = {"epochs": "1-6", "epsilon": (0.0, 0.01, 0.05, 0.1, 1.0), "lr_schedule": "cosine,rounds=9"}
    for lanes in (1, 2):
        settings = Settings(batch_size=5, sample=3, lanes=lanes, evaluate=(), seed=1, **chosen)
        run = Simulation(fedbc.FedBC(lr=0.1), MODEL, small_federation(), settings)
        run.go(5)
        steps = run.result().devices["steps"]
        assert steps.nunique() > 5
        assert run.engine.compilations == 1


@pytest.mark.parametrize(
    "given", [[1, 2, 3, 1, 2], OnePerDevice([1, 2, 3, 1, 2]), np.asarray([1, 2, 3, 1, 2]), pd.Series([1, 2, 3, 1, 2])]
)
def test_one_number_per_device_whatever_holds_them(given):
    assert canonical("epochs", given) == (1, 2, 3, 1, 2)


def test_a_pair_in_a_specification_stays_a_draw(tmp_path):
    """JSON and TOML have lists only, and a list is one number per device."""
    spec = fedbc.RunSpec({"name": "fedbc"}, {"name": "synthetic", "devices": 2}, run={"epochs": (1, 5), "rounds": 1})
    assert spec.to_dict()["run"]["epochs"] == "1-5"
    fedbc.run(spec, tmp_path / "run", quiet=True)
    assert fedbc.resume(tmp_path / "run", rounds=2, quiet=True)["fedbc"].rounds == 2


# --- epsilon_i --------------------------------------------------------------------------------------------------------

# Such that some devices stop early, and others take all their steps.
EPSILONS = {"fedbc": 0.05, "scaffold": 0.2, "feddyn": 0.05, "qfedavg": 0.05, "ditto": 0.1}


@pytest.mark.parametrize("name", EPSILONS)
def test_steps_end_when_the_residual_is_small(name):
    with x64():
        chosen = {"epochs": 20, "epsilon": EPSILONS[name], "check_every": 2, "weight_decay": 0.05}
        local = Local(epsilon=EPSILONS[name], every=2, weight_decay=0.05)
        assert_equal_to_twin(name, {"momentum": 0.0}, SAMPLED, 1e-12, chosen, local)


def test_devices_report_whether_they_kept_the_promise():
    problem = Quadratics(3)
    epsilon = np.asarray([1e-1, 1e-6, 0.0])
    with x64():
        algorithm = fedbc.FedBC(lr=0.1, dual_lr=0.1)
        _, _, result = problem.run(algorithm, rounds=2, steps=200, epsilon=epsilon, lanes=2)
    told = result.devices
    kept = told[told["device"] != 2]
    assert (kept["residual"] <= epsilon[kept["device"]]).all()
    assert (told["steps"][told["device"] == 2] == 200).all()
    first = told[told["round"] == 1].set_index("device")
    assert first["steps"][0] < first["steps"][1] < 200
    np.testing.assert_array_equal(told["checks"], told["steps"])
    # Round 1, from z = 0 and lambda = 0: L_i is f_i, whose descent has a closed form.
    far = np.linalg.matrix_power(np.eye(3) - 0.1 * problem.A[1], int(first["steps"][1])) @ -problem.c[1]
    assert first["residual"][1] == pytest.approx(((problem.A[1] @ far) ** 2).sum(), rel=1e-9)


def test_the_residual_in_debug_mode_and_its_cost():
    chosen = {"epsilon": 1e-9, "rounds": 1, "sample": 1, "epochs": 2}
    quick, slow = run_one(**chosen), run_one(**chosen, debug=True)
    columns = ["steps", "residual", "checks", "drift"]
    np.testing.assert_allclose(quick.devices[columns], slow.devices[columns], rtol=1e-4)
    assert quick.devices["checks"].tolist() == [2]  # once per epoch


def test_a_residual_that_is_no_number_has_diverged():
    """It would end local training as if the promise had been kept."""
    unknown = type("Unknown", (fedbc.FedAvg,), {"stationarity": lambda self, carry, gradient: jnp.nan})
    with pytest.raises(fedbc.Diverged, match="training diverged in round 1 on device"):
        run_one(unknown(lr=0.1), epsilon=0.1)


# --- X ----------------------------------------------------------------------------------------------------------------


def ball(radius):
    return lambda w: w * min(1.0, radius / np.sqrt((w**2).sum()))


@pytest.mark.parametrize(
    ("name", "domain", "project"),
    [
        ("fedbc", "ball,radius=3", ball(3.0)),
        ("ditto", "box,low=-1.5,high=1.5", lambda w: np.clip(w, -1.5, 1.5)),
        ("perfedavg", {"name": "ball", "radius": 2}, ball(2.0)),
    ],
)
def test_local_models_stay_in_the_set(name, domain, project):
    """Means of models of a convex set lie in it, so that the server's projection changes nothing here."""
    with x64():
        assert_equal_to_twin(name, {"lr": 0.5}, SAMPLED, 1e-12, {"domain": domain}, Local(project=project))
        with pytest.raises(AssertionError):  # the set binds
            assert_equal_to_twin(name, {"lr": 0.5}, SAMPLED, 1e-12, {"domain": domain}, Local())


@pytest.mark.parametrize("name", ["fedavgm", "scaffold", "fedbc"])
def test_the_server_stays_in_the_set(name):
    """Even where its own step leads out of it."""
    setting = {"fedavgm": {"server_lr": 3.0}, "scaffold": {"server_lr": 3.0, "option": "I"}, "fedbc": {}}[name]
    problem, centre = Quadratics(4), np.asarray([0.5, 0.0, 0.0])
    domain = Ball(0.4, {"w": jnp.asarray(centre)})
    z, x, result = problem.run(ALGORITHMS[name](lr=0.1, **setting), rounds=4, steps=5, domain=domain)
    assert np.linalg.norm(z - centre) <= 0.4 + 1e-6
    assert (np.linalg.norm(x - centre, axis=1) <= 0.4 + 1e-6).all()
    assert np.linalg.norm(x - centre, axis=1).max() > 0.39, "the set does not bind: the test would prove nothing"
    assert result.summary()["diameter"] == 0.8
    assert result.spec["run"]["domain"] == {"name": "ball", "radius": 0.4}


def test_a_run_that_is_gone_on_with_lies_in_the_set():
    before, small = run_one(rounds=2), {"domain": "ball,radius=0.1"}
    with pytest.raises(fedbc.InputError, match="initial brings a global model outside of domain="):
        run_one(initial=before, **small)
    for start in (run_one(rounds=2, **small), before.global_model):  # in the set, and projected on it
        seen = []
        result = run_one(initial=start, rounds=2, on_round=lambda row, so_far, s=seen: s.append(so_far()), **small)
        for model in [r.global_model for r in seen] + [result.global_model]:
            assert np.sqrt(trees.sqnorm(model)) <= 0.1 + 1e-6


# --- all of it at once ------------------------------------------------------------------------------------------------

BALL = ball(0.8)
EVERYTHING = {
    Part.OPTIMIZER: ({"optimizer": "adam"}, {"adam": True}),
    Part.KEEP_OPTIMIZER: ({"keep_optimizer": True}, {"keep": True}),
    Part.CLIP: ({"clip": 0.5}, {"clip": 0.5}),
    Part.WEIGHT_DECAY: ({"weight_decay": 0.1}, {"weight_decay": 0.1}),
    Part.DOMAIN: ({"domain": "ball,radius=0.8"}, {"project": BALL}),
    Part.EPSILON: ({"epsilon": [0.3, 0.5, 0.1, 0.8, 0.0]}, {"epsilon": [0.3, 0.5, 0.1, 0.8, 0.0], "every": None}),
}


@pytest.mark.parametrize(
    ("name", "other"), [(name, True) for name in TAKES_OPTIMIZER] + [(name, False) for name in ALGORITHMS], ids=str
)
def test_every_method_with_all_that_it_takes(name, other):
    """Optimizer or kept velocity, clipping, weight decay, epsilon per device, X, schedules and drawn K_i: the twin."""
    setting = {**SMALL_STEPS[name], "lr": 0.05, **WITHOUT_PLAIN_STEPS.get(name, {})} if other else {}
    method = ALGORITHMS[name](**setting)
    taken = {part for part in EVERYTHING if method.refuses(part) is None} - ({Part.OPTIMIZER} if not other else set())
    chosen = {"epochs": "1-6", "lr_schedule": "step,every=2,factor=0.5"}
    local = Local(factor=lambda t: 0.5 ** (t // 2))
    if "dual_lr" in method.hyperparameters():
        chosen["dual_schedule"], local.dual_factor = "inverse_sqrt", lambda t: (1 + t) ** -0.5
    for part in taken:
        chosen |= EVERYTHING[part][0]
        for field, value in EVERYTHING[part][1].items():
            setattr(local, field, value)
    with x64():
        assert_equal_to_twin(name, setting, SAMPLED, 1e-10, chosen, local)


def test_diameters_and_projections():
    w = {"a": jnp.asarray([3.0, 0.0]), "b": jnp.asarray(4.0)}
    near = Ball(2.5).project(w)
    np.testing.assert_allclose(near["a"], [1.5, 0])
    np.testing.assert_allclose(near["b"], 2.0)
    assert Box(-1.0, 2.0).diameter(9) == pytest.approx(9.0)
    assert Ball(2.0).diameter(9) == 4.0
    assert trees.sqdist(Box(-1.0, 2.0).project(w), {"a": jnp.asarray([2.0, 0.0]), "b": jnp.asarray(2.0)}) == 0


# --- what means nothing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"epochs": 0}, "epochs=0 is not accepted"),
        ({"epochs": "1 to 5"}, "epochs='1 to 5' is not accepted: give a whole number >= 1, one per device, or a draw"),
        ({"epochs": None}, "epochs=None is not accepted: give a whole number >= 1, one per device, or a draw"),
        ({"epochs": (5, 1)}, "the upper end of the draw=1 is not accepted: give a whole number >= 5"),
        ({"epochs": (1, 2, 3)}, "a list is one per device, a pair is a draw"),
        ({"epochs": [1, 2, 3]}, "epochs has 3 values but the federation has 5 devices"),
        ({"epochs": 1, "steps": [1, 2, 0, 3, 4]}, "steps[2]=0 is not accepted"),
        ({"steps": 3}, "steps=3 cannot be given with epochs=2"),
        ({"epsilon": -1.0}, "epsilon=-1.0 is not accepted"),
        ({"epsilon": (0.1, 0.2)}, "epsilon has 2 values but the federation has 5 devices"),
        ({"epsilon": [0.1] * 5, "unseen": [2]}, "epsilon has 5 values but the federation has 4 devices that train"),
        ({"epsilon": [0.1, "much", 0.1, 0.1, 0.1]}, "epsilon[1]='much' is not accepted"),
        ({"epsilon": np.asarray([0.1, np.nan, 0.1, 0.1, 0.1])}, "epsilon[1]=nan is not accepted"),
        ({"check_every": 5}, "check_every=5 has nothing to check"),
        ({"domain": "ball"}, "domain='ball' lacks radius"),
        ({"domain": "box,low=1,high=0"}, "high of the box=0 is not accepted"),
        ({"domain": "sphere,radius=1"}, "domain='sphere' is unknown"),
        ({"domain": Ball(1.0, {"w": jnp.zeros(3)})}, "the centre of the domain's ball does not fit the model"),
    ],
)
def test_what_means_nothing_is_told_in_a_sentence(chosen, sentence):
    with pytest.raises(fedbc.InputError, match=re.escape(sentence)):
        run_one(**chosen)


def test_a_module_of_pytorch_takes_the_same_work_and_rates():
    import torch

    from fedbc.torch import model

    federation, module = small_federation(), torch.nn.Linear(4, 3)
    for chosen in ({"epochs": "1-3"}, {"lr_schedule": "step,every=1,factor=0.1"}):
        theirs = fedbc.simulate(fedbc.FedBC(lr=0.1), model(module), federation, rounds=2, evaluate=(), **chosen)
        plain = fedbc.simulate(fedbc.FedBC(lr=0.1), model(module), federation, rounds=2, evaluate=())
        wanted = fedbc.simulate(fedbc.FedBC(lr=0.1), for_jax(module), federation, rounds=2, evaluate=(), **chosen)
        weight = np.asarray(theirs.global_model["weight"]).T
        np.testing.assert_allclose(weight, wanted.global_model["w"], rtol=1e-4, atol=1e-6)
        assert np.abs(weight - np.asarray(plain.global_model["weight"]).T).max() > 1e-4
    chosen = {"epsilon": 0.4, "epochs": 4, "batch_size": 5, "check_every": 1, "rounds": 2, "evaluate": ()}
    told = [
        fedbc.simulate(fedbc.FedBC(lr=0.1), m, federation, **chosen).devices for m in (model(module), for_jax(module))
    ]
    np.testing.assert_array_equal(told[0]["steps"], told[1]["steps"])
    np.testing.assert_allclose(told[0]["residual"], told[1]["residual"], rtol=1e-3)
    assert told[0]["steps"].nunique() > 2


def test_the_residual_is_that_of_evaluation():
    """Of a network with dropout: the exact gradient without it, at a place that one step of it led to."""
    network = fedbc.models.mlp(4, 6, 3, dropout=0.5)
    federation = small_federation((12,))
    result = fedbc.simulate(
        fedbc.FedAvg(lr=0.1), network, federation, rounds=1, batch_size=None, epsilon=1e-9, evaluate=("gradient",)
    )
    assert result.devices["residual"].iloc[0] == pytest.approx(result.history["gradient_sqnorm"].iloc[0], rel=1e-4)


def for_jax(module):
    """The same model, from the same parameters."""
    start = {"w": jnp.asarray(module.weight.detach().numpy().T), "b": jnp.asarray(module.bias.detach().numpy())}
    return fedbc.models.Model(lambda key: start, MODEL.apply, name="linear")


@pytest.mark.parametrize(
    ("name", "chosen", "sentence"),
    [
        ("scaffold", {"domain": "ball,radius=1"}, "control variates of option II assume plain steps"),
        ("perfedbc", {"epsilon": 0.1}, "its steps are no descent on one function"),
        ("l2gd", {"epsilon": 0.1}, "K being known before"),
    ],
)
def test_what_a_method_cannot_use_is_told_in_a_sentence(name, chosen, sentence):
    with pytest.raises(fedbc.InputError, match=re.escape(sentence)):
        run_one(ALGORITHMS[name](), **chosen)
