"""The mod lets nothing but the private share pass, and a private deployment is the private method."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from inprocess import deploy

import fedbc
from fedbc.flower import client_app, messages, one_device, post
from fedbc.flower.packs import load
from fedbc.flower.privacy import privacy_mod, private_from
from fedbc.privacy import Private

FEDBC = {
    "algorithm.name": "fedbc",
    "algorithm.lr": 0.05,
    "algorithm.dual-lr": 0.5,
    "algorithm.momentum": 0.5,
    "algorithm.lambda-min": 0.05,
    "algorithm.lambda-max": 2.0,
    "algorithm.multiplier": 0.05,
}
RUN = {"run.devices": 3, "run.rounds": 3, "run.epochs": 2, "run.batch-size": 5, "run.seed": 4}
QUIET = {"run.diagnostics": False, "run.evaluate": ""}
MODEL = fedbc.models.mlp(4, 5, 3)


def config(clip, noise, **more):
    return {**FEDBC, **RUN, **QUIET, "privacy.clip": clip, "privacy.noise-multiplier": noise, **more}


@pytest.fixture
def federation(make_federation):
    return make_federation((7, 23, 12))


def run(federation, values, tmp_path, model=MODEL):
    app = client_app(model, lambda device, context: one_device(federation, device), mods=[privacy_mod])
    folder, grid = deploy(model, private_from, app, values, tmp_path)
    return fedbc.load(folder), grid


def simulated(federation, values, model=MODEL):
    return fedbc.simulate(
        private_from(values), model, federation, rounds=3, epochs=2, batch_size=5, seed=4, evaluate=()
    )


def assert_close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_without_noise_it_equals_the_simulator(federation, clip, tmp_path):
    result, _ = run(federation, config(clip, 0.0), tmp_path)
    assert_close(result.global_model, simulated(federation, config(clip, 0.0)).global_model)


def test_fedavg_too(federation, tmp_path):
    method = {"algorithm.name": "fedavg", "algorithm.lr": 0.05}
    values = {**method, **RUN, **QUIET, "privacy.clip": 0.3, "privacy.noise-multiplier": 0.0}
    values |= {"privacy.largest-weight": 15.0}
    result, _ = run(federation, values, tmp_path)
    assert_close(result.global_model, simulated(federation, values).global_model)


def test_a_model_of_one_array(federation, tmp_path):
    model = fedbc.models.Model(lambda key: 0.1 * jax.random.normal(key, (4, 3)), lambda w, x: x @ w)
    result, _ = run(federation, config(0.3, 0.0), tmp_path, model)
    assert_close(result.global_model, simulated(federation, config(0.3, 0.0), model).global_model)


def test_nothing_else_leaves_the_device(federation, tmp_path):
    _, grid = run(federation, config(0.5, 1.0), tmp_path)
    kinds = {}
    for order, reply in zip(grid.orders, grid.answers, strict=True):
        found = messages.parts(reply)
        kinds.setdefault(order.metadata.message_type, []).append(found)
        assert found.config["examples"] == 1
        assert set(found.config) == {f.name for f in dataclasses.fields(messages.Answer)}
    assert len(kinds["train"]) == 9
    for found in kinds["train"]:
        assert not found.metrics
        assert {name.split(".")[1] for name in load(found.arrays)} == {"move", "weight", "devices"}
    for found in kinds.get("evaluate", []):
        assert not found.metrics


def test_noise_is_new_each_time_and_of_the_stated_size(federation, tmp_path):
    """Sent with noise less sent without, in the first round, where both devices start alike."""
    model = fedbc.models.mlp(4, 300, 3)
    clip, m = 0.5, 0.8
    values = config(clip, m, **{"run.rounds": 1})
    shares = []
    for attempt, noise in enumerate((m, m, 0.0)):
        _, grid = run(federation, {**values, "privacy.noise-multiplier": noise}, tmp_path / str(attempt), model)
        trained = [r for o, r in zip(grid.orders, grid.answers, strict=True) if o.metadata.message_type == "train"]
        shares.append([load(messages.parts(reply).arrays) for reply in trained])
    mechanism = private_from(values).mechanism
    moves, weights = [], []
    for noised in shares[:2]:
        for one, plain in zip(noised, shares[2], strict=True):
            moves += [(one[name] - plain[name]).ravel() for name in one if name.startswith("summand.move")]
            weights.append(one["summand.weight"] - plain["summand.weight"])
    values = np.concatenate(moves)
    assert values.std() == pytest.approx(m * 2 * clip * 2.0, rel=0.03)
    assert values.std() == pytest.approx(mechanism.move_noise, rel=0.03)
    assert len(set(map(float, weights))) == 6
    assert max(map(abs, weights)) < 6 * mechanism.weight_noise
    half = len(values) // 2
    assert abs(np.corrcoef(values[:half], values[half:])[0, 1]) < 0.05


def test_devices_keep_their_local_models_as_they_are(federation, tmp_path):
    """Clipping to next to nothing leaves x_i free: it is the plain method's in the first round."""
    run(federation, config(1e-3, 0.0, **{"run.rounds": 1}), tmp_path)
    plain = fedbc.simulate(
        private_from(config(1e3, 0.0)).algorithm, MODEL, federation, rounds=1, epochs=2, batch_size=5, seed=4
    )
    files = sorted((tmp_path / "state").glob("*/device-1/*.safetensors"))
    arrays, _ = fedbc.storage.read_arrays(files[-1])
    x = jax.tree.map(lambda a: a[1], plain.local_models)
    np.testing.assert_allclose(arrays["device.x.hidden.w"], x["hidden"]["w"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run.diagnostics": True}, r"run\.diagnostics = false"),
        ({"run.evaluate": "global"}, r"run\.evaluate = "),
        ({"privacy.clip": None}, r"privacy\.clip is missing"),
        ({"privacy.noise": 1.0}, "noise-multiplier"),
        ({"algorithm.lambda-max": None}, "finite lambda_max"),
    ],
)
def test_runs_that_would_tell_more_are_refused(change, message):
    values = {key: value for key, value in (config(1.0, 1.0) | change).items() if value is not None}
    with pytest.raises(fedbc.InputError, match=message):
        private_from(values)


def test_scores_are_sent_only_where_that_is_accepted(federation, tmp_path):
    values = config(0.5, 0.0, **{"run.evaluate": "global,local", "privacy.evaluate": True})
    result, _ = run(federation, values, tmp_path)
    assert 0 <= result.history["global_accuracy"].iloc[-1] <= 1


def test_a_server_without_privacy_gets_nothing(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(post, "SENDING_PAUSES", ())  # the error is no server's that comes back
    app = client_app(MODEL, lambda device, context: one_device(federation, device), mods=[privacy_mod])
    plain = private_from(config(1.0, 1.0)).algorithm
    with pytest.raises(messages.MessageError, match="not a private method"):
        deploy(MODEL, plain, app, config(1.0, 1.0), tmp_path)


def test_the_private_method_counts_devices_once():
    private = Private(private_from(config(1.0, 1.0)).algorithm, 1.0, 1.0)
    share = fedbc.privacy.Share({}, np.float32(math.pi), np.float32(2))
    with pytest.raises(fedbc.InputError, match="counts as 2 devices"):
        private.check_summand(share, 1)
