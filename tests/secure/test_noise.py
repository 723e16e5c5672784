"""Discrete noise within secure sums, and the epsilon of what is really added."""

import numpy as np
import pytest
from inprocess import InProcessGrid, Node, write_keys

import fedbc
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.secured import Parts
from fedbc.errors import InputError
from fedbc.flower import client_app, one_device
from fedbc.flower.privacy import private_from
from fedbc.flower.server import finish, prepare
from fedbc.flower.settings import Deployment
from fedbc.privacy import epsilon, secure_epsilon
from fedbc.privacy.mechanism import Share
from fedbc.secure.noise import skellam


def test_skellam_has_its_moments_and_adds_up():
    deviation = 2.0**19.5
    values = skellam(deviation, 200_000)
    assert values.dtype == np.int64
    assert abs(values.mean()) < 5 * deviation / np.sqrt(200_000)
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert ((values / deviation) ** 4).mean() == pytest.approx(3, rel=0.05)
    total = sum(skellam(deviation, 50_000) for _ in range(4))
    assert total.std() == pytest.approx(2 * deviation, rel=0.02)


def test_epsilon_is_near_the_gaussian_one_and_not_below_it():
    """The noise of k devices adds up: m = 1 and 100 survivors is nearly m = 10, for the rounding and Rényi's bound."""
    for m, survivors in ((1.0, 100), (0.3, 100), (1.0, 3)):
        found = secure_epsilon(m, rounds=100, delta=1e-6, survivors=survivors, parameters=100_000)
        exact = epsilon(m, rounds=100, delta=1e-6, devices=survivors)
        assert exact < found < 1.25 * exact
    assert secure_epsilon(0, rounds=1, delta=1e-6, survivors=3, parameters=10) == np.inf


def test_a_private_secure_run_adds_the_stated_noise(make_federation, tiny_model, tmp_path):
    three = make_federation(sizes=(20, 20, 15))
    config = {"algorithm.name": "fedavg", "algorithm.weights": "uniform", "run.rounds": 1, "run.devices": 3}
    config |= {"run.evaluate": "", "run.diagnostics": False, "run.secure": True, "run.min-devices": 2}
    config |= {"privacy.clip": 0.5, "privacy.noise-multiplier": 0.2, "run.join-seconds": 0}
    config["run.keys"] = write_keys(tmp_path / "keys", 3)

    def run(name, **changes):
        given = config | {"run.out": str(tmp_path / name)} | changes
        app = client_app(tiny_model, lambda n, context: one_device(three, n), algorithm=private_from)
        nodes = {}
        for device in range(3):
            key = str(tmp_path / "keys" / f"device-{device}")
            nodes[100 + device] = Node(app, {"partition-id": device, "state-dir": str(tmp_path), "key": key})
        strategy = prepare(private_from(given), tiny_model, Deployment.from_config(given), check_bounds=False)
        strategy.start(InProcessGrid(given, nodes, errors_travel=False))
        return fedbc.load(finish(strategy))

    method = fedbc.privacy.Private(fedbc.FedAvg(weights="uniform"), 0.5, 0.0)
    wanted = fedbc.simulate(method, tiny_model, three, rounds=1, evaluate=())
    quiet = run("quiet", **{"privacy.noise-multiplier": 0.0})
    np.testing.assert_allclose(quiet.global_model["w"], wanted.global_model["w"], atol=2e-6)
    noise = []
    for number in range(4):
        found = run(f"n{number}").global_model
        noise += [(found[name] - wanted.global_model[name]).reshape(-1) for name in ("w", "b")]
    stated = 0.2 * 2 * 0.5 * np.sqrt(3) / 3  # m S of each of three devices, in their mean
    assert np.concatenate(noise).std() == pytest.approx(stated, rel=0.35)


def test_what_noise_hides_is_not_counted_without_noise():
    """How many devices' parts were out of range would be a sum of their data without any noise."""
    private = fedbc.privacy.Private(fedbc.FedBC(lambda_min=0.1, lambda_max=1.0, multiplier=0.5), 0.5, 0.2)
    share = Share({"w": np.full(4, 100.0)}, np.float32(7), np.float32(1))
    for method, counted in ((private, 0), (private.without_noise(), 2)):
        parts = Parts(method, share, Limits(10.0, 0, 1e4), 3)
        assert sum(float(one) for one in parts.send({"w": np.zeros(4)}, share, {}).clipped.values()) == counted


def test_a_private_method_is_not_simulated_securely(make_federation, tiny_model):
    method = fedbc.privacy.Private(fedbc.FedAvg(weights="uniform"), 0.5, 0.1)
    with pytest.raises(InputError, match="secure=True does not apply to a private method"):
        fedbc.simulate(method, tiny_model, make_federation(sizes=(20, 20)), rounds=1, secure=True)
