"""The engine equals the twin: every method, sampled or not, ragged batches, momentum, full batches, both precisions."""

import jax
import numpy as np
import pytest
from problems import small_federation, x64
from twin import TWINS, Local, Scheduled, World

import fedbc
from fedbc.algorithms import ALGORITHMS
from fedbc.simulation.amounts import canonical
from fedbc.simulation.schedule import INIT, generator

MODEL = fedbc.models.logistic(4, 3)

# One setting a method with which everything in it moves, and further ones for its branches.
SETTINGS = {
    "fedbc": {"lr": 0.1, "dual_lr": 0.5, "momentum": 0.5},
    "perfedbc": {"lr": 0.1, "dual_lr": 0.5, "momentum": 0.5, "inner_lr": 0.2},
    "besidefedbc": {"lr": 0.1, "dual_lr": 0.5, "momentum": 0.5, "penalty": 0.8, "personal_lr": 0.05},
    "fedavg": {"lr": 0.1, "momentum": 0.5},
    "fedprox": {"lr": 0.1, "momentum": 0.5, "mu": 0.7},
    "qfedavg": {"lr": 0.1, "momentum": 0.5, "q": 1.5},
    "scaffold": {"lr": 0.1, "momentum": 0.5, "server_lr": 0.8},
    "fedpd": {"lr": 0.1, "momentum": 0.5, "eta": 2.0},
    "fedadmm": {"lr": 0.1, "momentum": 0.5, "rho": 0.7},
    "feddyn": {"lr": 0.1, "momentum": 0.5, "penalty": 0.6},
    "fedavgm": {"lr": 0.1, "momentum": 0.5, "server_lr": 0.7, "server_momentum": 0.6},
    "fedadagrad": {"lr": 0.1, "momentum": 0.5, "server_lr": 0.2, "server_momentum": 0.3, "adaptivity": 0.1},
    "fedadam": {"lr": 0.1, "momentum": 0.5, "server_lr": 0.2, "second_momentum": 0.9, "adaptivity": 0.1},
    "fedyogi": {"lr": 0.1, "momentum": 0.5, "server_lr": 0.2, "second_momentum": 0.9, "adaptivity": 0.1},
    "perfedavg": {"lr": 0.1, "momentum": 0.5, "inner_lr": 0.2},
    "pfedme": {"lr": 0.05, "penalty": 4.0, "inner_lr": 0.1, "inner_steps": 3},
    "l2gd": {"lr": 0.1, "momentum": 0.5, "penalty": 0.8},
    "ditto": {"lr": 0.1, "momentum": 0.5, "penalty": 0.8, "personal_lr": 0.05},
    "localonly": {"lr": 0.1, "momentum": 0.5},
}
BRANCHES = [
    ("fedbc", {"start": "local"}),
    ("fedbc", {"server": "all", "start": "local"}),
    ("perfedbc", {"server": "all", "tolerance": 0.05}),
    ("fedbc", {"absent": "follow"}),
    ("fedbc", {"absent": "follow", "tolerance": 0.05, "multiplier": 0.2, "lambda_max": 0.21, "start": "local"}),
    ("fedbc", {"absent": "follow", "bounds": "theory"}),
    ("perfedbc", {"absent": "follow"}),
    ("besidefedbc", {"absent": "follow"}),
    ("fedbc", {"tolerance": 0.05}),
    ("fedbc", {"tolerance": (0.0, 0.1, 0.2, 0.3, 0.4), "start": "local"}),
    ("fedbc", {"lambda_min": 0.1, "lambda_max": 0.25, "multiplier": 0.2}),
    ("fedbc", {"bounds": "theory"}),
    ("fedbc", {"bounds": "theory", "start": "local", "tolerance": 0.05}),
    ("perfedbc", {"bounds": "theory"}),
    ("fedbc", {"tolerance": 100.0}),  # every multiplier stays 0: the plain mean
    ("perfedbc", {"inner_steps": 3, "start": "local", "multiplier": 0.5}),
    ("besidefedbc", {"server": "all", "start": "local"}),
    ("besidefedbc", {"bounds": "theory", "tolerance": 0.05}),
    ("fedavg", {"weights": "uniform"}),
    ("fedavg", {"weights": "root"}),
    ("fedprox", {"weights": "uniform"}),
    ("qfedavg", {"q": 0.5, "lipschitz": 3.0, "weights": "examples"}),
    ("scaffold", {"option": "I"}),
    ("scaffold", {"weights": "examples"}),
    ("scaffold", {"weights": "root"}),
    ("scaffold", {"option": "I", "weights": "examples", "momentum": 0.0}),
    ("fedadmm", {"start": "local"}),
    ("fedadmm", {"server_lr": 0.6}),
    ("feddyn", {"penalty": 0.0}),
    ("perfedavg", {"order": "hessian_free"}),
    ("perfedavg", {"order": "exact", "weights": "examples"}),
    ("pfedme", {"server_mix": 0.4, "weights": "examples"}),
    ("ditto", {"weights": "uniform"}),
]

SAMPLED = {"rounds": 4, "epochs": 2, "batch_size": 5, "sample": 3, "seed": 2}
EVERYONE = {"rounds": 3, "epochs": 2, "batch_size": 4, "sample": None, "seed": 3}
FULL_BATCH = {"rounds": 3, "epochs": 3, "batch_size": None, "sample": None, "seed": 4}


def test_every_method_has_a_twin_and_a_setting():
    assert set(TWINS) == set(SETTINGS) == set(ALGORITHMS)


def matrix(params):
    return np.concatenate([np.asarray(params["w"], float), np.asarray(params["b"], float)[None]])


def relative(found, wanted):
    return np.linalg.norm(np.asarray(found, float) - wanted) / max(np.linalg.norm(wanted), 1e-30)


def assert_equal_to_twin(name, setting, run, tolerance, chosen=None, local=None):
    """`chosen` are arguments of the run about its local steps, `local` the same for the twin."""
    algorithm = ALGORITHMS[name](**{**SETTINGS[name], **setting})
    federation = small_federation()
    result = fedbc.simulate(algorithm, MODEL, federation, evaluate=(), **{**run, **(chosen or {})})
    data = [federation.train.of(i) for i in range(federation.devices)]
    initial = MODEL.init(jax.random.key(int(generator(run["seed"], INIT).integers(2**31))))
    given = {**run, **(chosen or {})}
    drawn = {name: given.get(name) and canonical(name, given[name]) for name in ("epochs", "steps")}
    pairs = [(np.c_[x.astype(float), np.ones(len(y))], y) for x, y in data]
    local = local or Local()
    world = World(pairs, local.project(matrix(initial)), local=local, **{**run, **drawn})
    wanted = TWINS[name](Scheduled(algorithm, world), world)

    assert relative(matrix(initial), wanted.z) > 1e-3, "nothing moved: the comparison would prove nothing"
    assert relative(matrix(result.global_model), wanted.z) < tolerance
    assert sorted(result.participants) == sorted(wanted.x)
    for i, x in wanted.x.items():
        assert relative(matrix(jax.tree.map(lambda a, i=i: a[i], result.local_models)), x) < tolerance
    for i in wanted.multiplier:
        assert abs(result.multipliers[i] - wanted.multiplier[i]) <= tolerance * max(1, wanted.multiplier[i])
        assert abs(result.tolerances[i] - wanted.tolerance[i]) <= tolerance * max(1, wanted.tolerance[i])
    if not wanted.multiplier:
        assert np.isnan(result.multipliers).all()


@pytest.mark.parametrize("name", SETTINGS)
def test_float32_sampled(name):
    assert_equal_to_twin(name, {}, SAMPLED, 1e-5)


@pytest.mark.parametrize(("name", "setting"), [(name, {}) for name in SETTINGS] + BRANCHES, ids=str)
def test_float64_sampled(name, setting):
    with x64():
        assert_equal_to_twin(name, setting, SAMPLED, 1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_float64_full_batch(name):
    with x64():
        assert_equal_to_twin(name, {}, FULL_BATCH, 1e-12)


@pytest.mark.parametrize("name", ["fedbc", "fedavg", "scaffold", "fedpd", "perfedavg"])
def test_float64_everyone(name):
    with x64():
        assert_equal_to_twin(name, {}, EVERYONE, 1e-12)
