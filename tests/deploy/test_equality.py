"""A deployment computes what the simulator computes: every algorithm, in process (loopback has real processes)."""

import flax.linen as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inprocess import Small

import fedbc
from fedbc import storage
from fedbc.algorithms import ALGORITHMS
from fedbc.errors import InputError
from fedbc.flower import post


def same(a, b, tolerance=1e-6):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)


def columns_agree(ours, theirs):
    timing = {"seconds", "train_seconds"}
    assert list(ours.columns) == list(theirs.columns)
    for column in set(ours.columns) - timing:
        np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-5, atol=1e-6, err_msg=column)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_equals_the_simulator(name, deployed, make_federation, tiny_model):
    three = make_federation(sizes=(20, 20, 15))
    # Scoring is the same code for all: a few methods, with local models of all kinds, stand for it.
    scored = name in ("fedbc", "perfedbc", "ditto", "localonly")
    evaluate = ["global", "local", "train"] if scored else []
    options = {"rounds": 2, "sample": 2, "seed": 5, "evaluate_every": 2}
    settings = {f"run__{k}": v for k, v in options.items()} | {"run__evaluate": ",".join(evaluate)}
    found = deployed(three, algorithm__name=name, **settings).run()
    wanted = fedbc.simulate(ALGORITHMS[name](), tiny_model, three, evaluate=evaluate, **options)
    same(found.global_model, wanted.global_model)
    columns_agree(found.devices, wanted.devices)
    if scored:
        columns_agree(found.history, wanted.history)


def test_full_batches_lagrangian_and_fine_tuning_too(deployed, make_federation, tiny_model):
    two = make_federation(sizes=(20, 15))
    what = ["global", "local", "train", "lagrangian"]
    options = {"rounds": 2, "seed": 1, "epochs": 3, "evaluate_every": 2}
    run = deployed(
        two,
        algorithm__name="perfedbc",
        algorithm__tolerance=0.1,
        run__batch_size=0,
        run__evaluate=",".join(what),
        **{f"run__{k}": v for k, v in options.items()},
    )
    found = run.run()
    wanted = fedbc.simulate(fedbc.PerFedBC(tolerance=0.1), tiny_model, two, batch_size=None, evaluate=what, **options)
    same(found.global_model, wanted.global_model)
    columns_agree(found.history, wanted.history)
    np.testing.assert_allclose(found.multipliers, wanted.multipliers, atol=1e-6)
    np.testing.assert_allclose(found.tolerances, wanted.tolerances, atol=1e-6)


class Normed(fl.Module):
    @fl.compact
    def __call__(self, x, train=False):
        return fl.Dense(3)(fl.BatchNorm(use_running_average=not train, momentum=0.9)(x))


def normed(statistics):
    return fedbc.models.from_flax(Normed(), jnp.zeros((1, 4)), training="train", statistics=statistics)


@pytest.mark.parametrize(("statistics", "method"), [("local", "perfedbc"), ("averaged", "scaffold")])
def test_running_statistics_are_those_of_the_simulator(statistics, method, make_federation, tmp_path):
    three, model = make_federation(sizes=(20, 20, 15)), normed(statistics)
    what = ["global", "local", "train", "lagrangian"]
    options = {"rounds": 3, "sample": 2, "seed": 5}
    settings = {f"run__{k}": v for k, v in options.items()} | {"run__evaluate": ",".join(what)}
    small = Small(tmp_path, three, model, algorithm__name=method, **settings)
    found = small.run()
    wanted = fedbc.simulate(ALGORITHMS[method](), model, three, evaluate=what, **options)
    same(found.global_model, wanted.global_model)
    columns_agree(found.devices, wanted.devices)
    columns_agree(found.history, wanted.history)
    kept = storage.named(wanted.local_models["statistics"])
    arrays, _ = storage.read_arrays(small.state_file(1))
    for name, array in kept.items():
        np.testing.assert_allclose(arrays[f"device.statistics.{name}"], array[1], atol=1e-6)
    sent = [bytes(answer.content["fedbc"].get("arrays", b"")) for answer in small.grid.answers]
    assert any(b"batch_stats" in pack for pack in sent) == (statistics == "averaged")


def test_server_and_devices_must_agree_on_the_statistics(make_federation, tmp_path, monkeypatch):
    monkeypatch.setattr(post, "SENDING_PAUSES", ())  # the error is no server's that comes back
    small = Small(tmp_path, make_federation(sizes=(8, 8)), normed("averaged"), algorithm__name="fedavg", run__rounds=1)
    small.grid.errors_travel = False
    small.model = normed("local")
    with pytest.raises(Exception, match="the server runs fedavg, local statistics, this device fedavg, averaged"):
        small.run()


def test_a_private_method_sends_no_statistics(make_federation):
    private = fedbc.privacy.Private(fedbc.FedAvg(weights="uniform"), 1.0, 1.0)
    two = make_federation(sizes=(8, 8))
    with pytest.raises(InputError, match="keep them local"):
        fedbc.simulate(private, normed("averaged"), two, rounds=1)
    assert len(fedbc.simulate(private, normed("local"), two, rounds=1).history) == 1


def test_a_secure_sum_has_no_averaged_statistics(make_federation):
    two, method = make_federation(sizes=(8, 8)), fedbc.FedBC(lambda_max=10.0)
    run = {"rounds": 2, "seed": 1}
    with pytest.raises(InputError, match="secure"):
        fedbc.simulate(method, normed("averaged"), two, secure=True, **run)
    found, openly = (fedbc.simulate(method, normed("local"), two, secure=wanted, **run) for wanted in (True, False))
    same(found.global_model, openly.global_model, 1e-4)
