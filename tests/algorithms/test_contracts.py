"""Contracts that every registered method keeps; a new one in `ALGORITHMS` is tested by being there."""

import dataclasses
import functools
import inspect
import re
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import nested_model, small_federation, x64

import fedbc
from fedbc import storage, trees
from fedbc.algorithms import ALGORITHMS, Context
from fedbc.algorithms.finetune import FineTune
from fedbc.simulation.schedule import INIT, generator

NAMES = list(ALGORITHMS)
MODEL = fedbc.models.logistic(4, 3)
RUN = {"rounds": 8, "epochs": 2, "batch_size": 5, "sample": 3, "seed": 5, "lanes": 2, "evaluate": ("train",)}
# Names that the command line uses for data and run options.
TAKEN = {"alpha", "beta", "devices", "seed", "rounds", "epochs", "sample", "batch_size", "lanes", "name", "features"}


def fields(name):
    return dataclasses.fields(ALGORITHMS[name])


def make(name):
    """The method with its defaults, but for a rate at which eight rounds on the small problem show something."""
    return ALGORITHMS[name](**({"lr": 0.03} if any(f.name == "lr" for f in fields(name)) else {}))


@functools.cache
def whole_run(name):
    return fedbc.simulate(make(name), MODEL, small_federation(), **RUN)


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (np.shape(x), x.dtype) == (np.shape(y), y.dtype)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def assert_same_run(a, b):
    assert_same_bits(a.global_model, b.global_model)
    assert_same_bits(a.local_models, b.local_models)
    assert_same_bits((a.multipliers, a.tolerances), (b.multipliers, b.tolerances))
    for one, other in ((a.history, b.history), (a.devices, b.devices)):
        columns = [c for c in one.columns if "seconds" not in c]
        assert [c for c in other.columns if "seconds" not in c] == columns
        np.testing.assert_array_equal(one[columns].to_numpy(), other[columns].to_numpy())


# --- one round by hand, without the simulator -------------------------------------------------------------------------


class Batch(NamedTuple):
    x: Any
    y: Any
    size: Any


def loss(params, batch):
    return fedbc.models.cross_entropy(MODEL.apply(params, batch.x), batch.y).mean()


class Federates:
    """Four devices and a server, driven through the contract's functions alone."""

    def __init__(self, algorithm):
        self.algorithm = algorithm
        params = MODEL.init(jax.random.key(0))
        self.server = self.first_server = algorithm.init_server(params)
        self.contexts = [Context(jnp.asarray(i), jnp.asarray(4 + i), jnp.asarray(2)) for i in range(4)]
        self.states = [algorithm.init_device(params, c) for c in self.contexts]
        self.first_state = self.states[0]
        self.random = np.random.default_rng(0)
        self.local_work = jax.jit(self._local_work)
        self.advance()  # so that multipliers, control variates and the like are not 0

    def _local_work(self, message, state, context, batches):
        carry = self.algorithm.begin(message, state, context)
        for batch in batches:
            carry = self.algorithm.step(loss, carry, batch)
        return self.algorithm.finish(carry)

    def work(self):
        """Every device's local work: two steps."""
        message = self.algorithm.broadcast(self.server)
        return [
            self.local_work(message, state, context, [self.batch(), self.batch()])
            for context, state in zip(self.contexts, self.states, strict=True)
        ]

    def batch(self):
        parts = []
        for _ in range(self.algorithm.batches):
            x, y = self.random.normal(size=(3, 4)), self.random.integers(0, 3, 3)
            parts.append(Batch(jnp.asarray(x, float), jnp.asarray(y), jnp.asarray(3.0)))
        return parts[0] if len(parts) == 1 else tuple(parts)

    def update(self, total):
        return self.algorithm.update(self.server, total, jnp.asarray(4.0))

    def advance(self):
        done = self.work()
        self.server = self.update(functools.reduce(trees.add, [d.summand for d in done]))
        self.states = [d.device for d in done]


@functools.cache
def federates_of(name):
    with x64():
        return Federates(make(name))


@pytest.mark.parametrize("name", NAMES)
def test_is_a_sum(name):
    """Devices in any order, in any grouping, give the same server."""
    random = np.random.default_rng(1)
    with x64():
        federates = federates_of(name)
        summands = [d.summand for d in federates.work()]
        wanted = federates.update(functools.reduce(trees.add, summands))
        for _ in range(4):
            order = random.permutation(4)
            groups = [[summands[i] for i in part] for part in np.split(order, [random.integers(1, 4)])]
            partial = [functools.reduce(trees.add, group) for group in groups]
            found = federates.update(functools.reduce(trees.add, partial))
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_state_and_info(name, tmp_path):
    """States keep their shapes and survive storage; info has its three keys, finite."""
    federates = federates_of(name)
    for now, first in ((federates.server, federates.first_server), (federates.states[0], federates.first_state)):
        assert jax.tree.structure(now) == jax.tree.structure(first)
        # a checkpoint's template fits, and a round compiles once
        assert jax.tree.map(lambda a: (a.shape, a.dtype), now) == jax.tree.map(lambda a: (a.shape, a.dtype), first)

    kept = {"server": federates.server, "device": federates.states[3]}
    storage.write_arrays(tmp_path / "state", storage.named(kept), {})
    back = storage.restored(kept, storage.read_arrays(tmp_path / "state")[0])
    assert jax.tree.structure(back) == jax.tree.structure(kept)
    assert_same_bits(back, kept)

    z = federates.algorithm.global_model(federates.server)
    with x64():
        finished = jax.tree.map(np.asarray, federates.work())
    for done in finished:
        assert {"drift", "loss", "weight"} <= set(done.info)
        for key, value in done.info.items():
            assert value.shape == (), key
            assert np.isfinite(value), key
        x = federates.algorithm.local_model(done.device)
        drift = sum(
            np.sum((np.asarray(a) - np.asarray(b)) ** 2) for a, b in zip(*map(jax.tree.leaves, (x, z)), strict=True)
        )
        assert float(done.info["drift"]) == pytest.approx(drift, rel=1e-12)
        assert done.info["weight"] >= 0
        assert 0.1 < done.info["loss"] < 10


# --- through the simulator --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_descends(name):
    """z's training loss falls; for methods whose z is a mean of local models for reference, the local loss."""
    history, data = whole_run(name).history, small_federation().train
    if name in ("localonly", "l2gd"):
        assert history["local_loss"].iloc[-1] < 0.8 * history["local_loss"].iloc[0]
    else:
        start = MODEL.init(jax.random.key(int(generator(RUN["seed"], INIT).integers(2**31))))
        initial = float(fedbc.models.cross_entropy(MODEL.apply(start, data.x), data.y).mean())
        assert history["global_loss"].iloc[-1] < 0.87 * initial


@pytest.mark.parametrize("name", NAMES)
def test_lanes_do_not_matter(name):
    one, two = fedbc.simulate(make(name), MODEL, small_federation(), **{**RUN, "lanes": 1}), whole_run(name)
    for models in ("global_model", "local_models"):
        for a, b in zip(jax.tree.leaves(getattr(one, models)), jax.tree.leaves(getattr(two, models)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_resumed_run_has_the_same_bits(name, tmp_path):
    part = {**RUN, "rounds": 3, "checkpoint": tmp_path / "run"}
    fedbc.simulate(make(name), MODEL, small_federation(), **part)
    resumed = fedbc.simulate(make(name), MODEL, small_federation(), **{**part, "rounds": RUN["rounds"], "resume": True})
    assert_same_run(resumed, whole_run(name))


@pytest.mark.parametrize("name", NAMES)
def test_result_survives_save_and_load(name, tmp_path):
    result = whole_run(name)
    loaded = fedbc.load(result.save(tmp_path / "result"))
    assert_same_run(loaded, result)
    assert loaded.spec["algorithm"]["name"] == name


@pytest.mark.parametrize("name", NAMES)
def test_any_model_one_device_a_round(name):
    result = fedbc.simulate(
        make(name), nested_model(), small_federation(), rounds=3, batch_size=5, sample=1, seed=1, evaluate=()
    )
    assert len(result.devices) == 3
    assert (result.devices["drift"] > 0).all()
    assert np.isfinite(result.devices["loss"]).all()
    assert jax.tree.structure(result.local_models) == jax.tree.structure(nested_model().init(jax.random.key(0)))


@pytest.mark.parametrize("name", NAMES)
def test_federation_of_one_device(name):
    result = fedbc.simulate(make(name), MODEL, small_federation((9,)), rounds=3, batch_size=9, evaluate=())
    assert result.devices["loss"].iloc[2] < result.devices["loss"].iloc[0]
    np.testing.assert_array_equal(result.devices["coefficient"], 1.0)


# --- hyper-parameters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_defaults_build_the_method(name):
    algorithm = ALGORITHMS[name]()
    assert algorithm == ALGORITHMS[name](**algorithm.hyperparameters())
    assert hash(algorithm) == hash(ALGORITHMS[name]())
    assert isinstance(algorithm.fine_tune(), FineTune | None)
    algorithm.check_population(3)


NUMBERS = [
    (name, f.name)
    for name in NAMES
    for f in fields(name)
    if any(kind in str(f.type) for kind in ("float", "int")) and "Sequence" not in str(f.type)
]


@pytest.mark.parametrize(("name", "field"), NUMBERS)
def test_numbers_that_mean_nothing_are_refused(name, field):
    for bad in (float("nan"), -1.0, -1, "0.1", True):
        with pytest.raises(fedbc.InputError, match=field):
            ALGORITHMS[name](**{field: bad})
    if field != "lambda_max":
        with pytest.raises(fedbc.InputError, match=field):
            ALGORITHMS[name](**{field: float("inf")})


@pytest.mark.parametrize("name", ["fedbc", "perfedbc"])
def test_tolerances_that_mean_nothing_are_refused(name):
    for bad in (float("nan"), -1.0, "none", (0.1, -0.1), (float("nan"),)):
        with pytest.raises(fedbc.InputError, match="tolerance"):
            ALGORITHMS[name](tolerance=bad)
    with pytest.raises(fedbc.InputError, match="tolerance has 2 values"):
        ALGORITHMS[name](tolerance=(0.1, 0.2)).check_population(3)


CHOICES = [(name, f.name) for name in NAMES for f in fields(name) if str(f.type) == "str"]


@pytest.mark.parametrize(("name", "field"), CHOICES)
def test_unknown_words_are_refused(name, field):
    with pytest.raises(fedbc.InputError, match=field):
        ALGORITHMS[name](**{field: "nonsense"})


@pytest.mark.parametrize("name", NAMES)
def test_is_documented(name):
    """The module's docstring names every hyper-parameter, and each has its line of help."""
    method = ALGORITHMS[name]
    text = sys.modules[method.__module__].__doc__
    for field in fields(name):
        assert re.search(rf"\b{field.name}\b", text), field.name
        assert len(field.metadata["help"]) > 5, field.name
        assert field.name not in TAKEN, field.name
    assert inspect.getdoc(method).endswith(".")
    assert method.reference or name == "localonly"
    assert getattr(fedbc, method.__name__) is method
    assert len(inspect.getsource(sys.modules[method.__module__]).splitlines()) < 200
