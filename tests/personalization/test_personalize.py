"""Personalisation from a result, a folder or a model: what it gives back, resuming, and what it refuses."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedbc
from fedbc import storage
from fedbc.personalization import each_device, evidence
from fedbc.personalization.walk import Steps, Walkers
from fedbc.personalization.walked import has_stopped


@pytest.fixture(scope="module")
def federation(make_federation):
    return replace(make_federation((12, 30, 25, 1), test=12), device_names=("North", "South", "West", "Small"))


@pytest.fixture(scope="module")
def model():
    return fedbc.models.logistic(4, 3)


@pytest.fixture(scope="module")
def result(federation, model):
    return fedbc.simulate(fedbc.FedBC(lr=0.05), model, federation, rounds=10, sample=3, evaluate_every=5)


@pytest.fixture(scope="module")
def personal(result, model, federation):
    return fedbc.personalize(result, model, federation)


def same(a, b):
    for name in ("tolerances", "multipliers", "residuals", "epochs"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for name in ("local_models", "alone_models"):
        x, y = storage.named(getattr(a, name)), storage.named(getattr(b, name))
        assert x.keys() == y.keys()
        for key in x:
            np.testing.assert_array_equal(x[key], y[key])


def accuracies(model, models, federation):
    out = []
    for device in range(federation.devices):
        x, y = federation.test.of(device)
        params = jax.tree.map(lambda a, device=device: a[device], models)
        out.append(float(np.mean(np.argmax(model.apply(params, x), -1) == y)))
    return out


def test_the_accuracies_are_those_of_the_models(personal, result, model, federation):
    np.testing.assert_allclose(personal.local_accuracy, accuracies(model, personal.local_models, federation))
    np.testing.assert_allclose(personal.accuracy("alone"), accuracies(model, personal.alone_models, federation))
    np.testing.assert_allclose(personal.accuracy("trained"), accuracies(model, result.local_models, federation))
    z = jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], federation.devices, 0), result.global_model)
    np.testing.assert_allclose(personal.global_accuracy, accuracies(model, z, federation))


def test_other_devices_have_none_of_the_run_s_local_models(result, model, federation, make_federation):
    """As many devices, but not those that trained: their x_i say nothing of them."""
    other = fedbc.personalize(result, model, make_federation((12, 30, 25, 2), test=12))
    assert "trained" not in other.right
    assert "trained" in fedbc.personalize(result, model, federation).right


def test_a_device_with_one_example_keeps_z(personal, result):
    assert personal.tolerances[3] == 0
    for own, z in zip(jax.tree.leaves(personal.local_models), jax.tree.leaves(result.global_model), strict=True):
        np.testing.assert_array_equal(own[3], z)


@pytest.mark.parametrize("how", ["solve", "walk"])
def test_it_goes_on_where_it_was_stopped(how, result, model, federation, tmp_path, monkeypatch):
    whole = fedbc.personalize(result, model, federation, how=how, epochs=2)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(each_device._Work, "_described", stop)
        with pytest.raises(KeyboardInterrupt):
            fedbc.personalize(result, model, federation, how=how, epochs=2, checkpoint=tmp_path)
    with monkeypatch.context() as patch:  # nothing is computed again
        patch.setattr("fedbc.personalization.path.Paths.walk", stop)
        patch.setattr("fedbc.personalization.walk.Walkers.epoch", stop)
        same(fedbc.personalize(result, model, federation, how=how, epochs=2, checkpoint=tmp_path), whole)
    with pytest.raises(fedbc.InputError, match="another personalisation"):
        fedbc.personalize(result, model, federation, how=how, epochs=2, seed=9, checkpoint=tmp_path)


def test_a_walk_stops_where_its_held_out_examples_say(result, model, federation):
    walked = fedbc.personalize(result, model, federation, how="walk", epochs=3, lr=0.2)
    assert walked.epochs.max() <= 3
    near = np.isfinite(walked.tolerances)
    for device in np.flatnonzero(near):
        drift = sum(
            np.sum((np.asarray(x[device], float) - z) ** 2)
            for x, z in zip(jax.tree.leaves(walked.local_models), jax.tree.leaves(result.global_model), strict=True)
        )
        assert walked.tolerances[device] == pytest.approx(drift)
        assert (walked.epochs[device] == 0) == (drift == 0)


def test_a_device_that_stopped_leaves_the_others_as_they_were(result, model, federation):
    how = Steps(lr=0.2, momentum=0.5, batch_size=5, epochs=3, patience=1, seed=1)
    all_three, one = (Walkers(model, federation, result.global_model, how, lanes=2) for _ in range(2))
    for walkers in (all_three, one):
        walkers.epoch()
    before = one.models()
    one.go_on(np.asarray([2]))
    for walkers in (all_three, one):
        walkers.epoch()
    after, wanted = one.models(), all_three.models()
    np.testing.assert_array_equal(after["w"][[0, 1, 3]], before["w"][[0, 1, 3]])
    np.testing.assert_allclose(after["w"][2], wanted["w"][2], rtol=1e-6)
    assert np.abs(after["w"][2] - before["w"][2]).max() > 1e-4


def test_when_walks_are_over():
    best_is_old = [[0.5, 0.9], [0.6, 0.8], [0.7, 0.7]]
    assert has_stopped(np.asarray(best_is_old), 2, 9).tolist() == [True, False]
    # 0.1 an epoch: 0.7 - 7 * 0.1 = 0 after all nine, and 0.5 if there were but four of them
    assert has_stopped(np.asarray(best_is_old), 2, 9, np.asarray([0.6, 0.1])).tolist() == [True, False]
    assert has_stopped(np.asarray(best_is_old), 2, 4, np.asarray([0.9, 0.4])).tolist() == [True, True]
    assert has_stopped(np.asarray(best_is_old), 2, 4, np.asarray([0.9, 0.6])).tolist() == [True, False]


def test_saved_and_loaded_and_from_a_run_s_folder(personal, result, model, federation, tmp_path):
    personal.save(tmp_path / "personal")
    loaded = fedbc.load_personalized(tmp_path / "personal")
    same(loaded, personal)
    assert loaded.words == personal.words
    assert loaded.advice.equals(personal.advice)
    result.save(tmp_path / "run")
    same(fedbc.personalize(tmp_path / "run", model, federation), personal)


def test_held_out_examples_of_the_run_are_not_trained_on(model, federation):
    run = fedbc.simulate(fedbc.FedAvg(lr=0.05), model, federation, rounds=2, validation=0.3)
    personal = fedbc.personalize(run, model, federation)
    held_out = fedbc.data.held_out(federation, 0.3, 0)
    np.testing.assert_array_equal(personal.test_examples, held_out.test.sizes)
    np.testing.assert_array_equal(personal.train_examples, held_out.train.sizes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"what": {"w": np.zeros((5, 3)), "b": np.zeros(3)}}, "the model takes"),
        ({"what": {"w": np.full((4, 3), np.nan), "b": np.zeros(3)}}, "not finite"),
        ({"how": "guess"}, "how"),
        ({"accuracy": 0}, "accuracy"),
        ({"epochs": 0}, "epochs"),
        ({"what": "no/such/folder"}, "not a folder"),
        ({"model": fedbc.models.logistic(7, 3)}, "takes examples of shape"),
    ],
)
def test_what_cannot_be_used_is_refused(change, words, result, model, federation):
    arguments = {"what": result, "model": model, "federation": federation} | change
    with pytest.raises(fedbc.InputError, match=words):
        fedbc.personalize(**arguments)


def test_exact_intervals_and_the_advice_that_follows():
    from scipy.stats import binomtest

    a, b = np.zeros(50), np.zeros(50)
    a[:9], b[9:11] = 1, 1  # 9 for, 2 against
    found = evidence.paired([a], [b])
    share = binomtest(9, 11).proportion_ci(0.95, "exact")
    assert found.mean == pytest.approx(7 / 50)
    assert found.low == pytest.approx((2 * share.low - 1) * 11 / 50)
    assert found.high == pytest.approx((2 * share.high - 1) * 11 / 50)
    assert evidence.advise(found).words(50) == "cannot tell: 50 test examples"
    a[:12] = 1
    b[12:14] = 1
    assert evidence.advise(evidence.paired([a], [np.zeros(50)])) == "use your own"
    assert evidence.advise(evidence.paired([np.zeros(50)], [a])) == "use the global model"
    none = evidence.paired([np.ones(8)], [np.ones(8)])
    assert none.mean == 0
    assert none.low < -0.3
    assert none.high > 0.3
    assert evidence.advise(none).words(1) == "cannot tell: 1 test example"


def test_equal_models_are_rarely_told_apart():
    """The exact interval leaves 0 out in at most one case of twenty."""
    rng = np.random.default_rng(0)
    clear = [evidence.paired([rng.random(40) < 0.7], [rng.random(40) < 0.7]).is_clear for _ in range(400)]
    assert np.mean(clear) < 0.05


def test_regression_has_losses_in_the_place_of_accuracies():
    rng = np.random.default_rng(0)
    pairs = [(x, x @ rng.normal(size=3)) for x in rng.normal(size=(4, 30, 3))]
    federation = fedbc.data.federation(pairs, pairs)
    model = fedbc.models.Model(
        lambda key: {"w": np.zeros(3, np.float32)},
        lambda params, x: x @ params["w"],
        loss=fedbc.models.half_squared_error,
        correct=None,
    )
    personal = fedbc.personalize({"w": np.zeros(3)}, model, federation, how="solve")
    assert (personal.accuracy("personal") > -1e-3).all()
    assert (personal.accuracy("personal") > personal.accuracy("global")).all()
    assert "4 gain" in personal.words
