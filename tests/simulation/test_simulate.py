"""The simulator: what it measures, what it compiles, what a seed determines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbc
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.settings import Settings

SETTING = {"rounds": 4, "epochs": 2, "batch_size": 5, "sample": 3, "seed": 3}
FEDBC = fedbc.FedBC(lr=0.1, dual_lr=0.1, momentum=0.5)


def leaves(tree):
    return [np.asarray(a) for a in jax.tree.leaves(tree)]


def assert_same(a, b, **tolerance):
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance) if tolerance else np.testing.assert_array_equal(x, y)


def test_a_run_is_a_function_of_its_seed(small, tiny_model):
    a, b = (fedbc.simulate(FEDBC, tiny_model, small, **SETTING) for _ in range(2))
    c = fedbc.simulate(FEDBC, tiny_model, small, **SETTING | {"seed": 4})
    assert_same((a.global_model, a.local_models), (b.global_model, b.local_models))
    assert a.devices.equals(b.devices)
    assert not np.array_equal(a.global_model["w"], c.global_model["w"])


@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
def test_lanes_agree_up_to_rounding(small, tiny_model, lanes):
    setting = SETTING | {"sample": None}
    a = fedbc.simulate(FEDBC, tiny_model, small, **setting, lanes=5)
    b = fedbc.simulate(FEDBC, tiny_model, small, **setting, lanes=lanes)
    assert_same((a.global_model, a.local_models), (b.global_model, b.local_models), rtol=2e-5, atol=2e-6)


def test_compilations_do_not_depend_on_the_draw(small, tiny_model):
    run = Simulation(FEDBC, tiny_model, small, Settings(epochs=2, batch_size=5, sample=2))
    for _ in range(12):
        run.advance()
    devices = run.diagnostics.columns()["device"].reshape(12, 2)
    assert len({tuple(drawn) for drawn in devices.tolist()}) > 3
    assert run.engine.compilations == 1


def test_history_measures_what_its_columns_say(small, tiny_model):
    result = fedbc.simulate(FEDBC, tiny_model, small, **SETTING)
    z, last = result.global_model, result.history.iloc[-1]

    def score(params, x, y):
        logits = x.astype(float) @ params["w"] + params["b"]
        top = logits.max(1, keepdims=True)
        loss = np.log(np.exp(logits - top).sum(1)) + top[:, 0] - logits[np.arange(len(y)), y]
        return logits.argmax(1) == y, loss

    right, loss = score(z, small.test.x, small.test.y)
    assert last.global_accuracy == pytest.approx(right.mean())
    assert last.global_test_loss == pytest.approx(loss.mean(), rel=1e-5)
    assert last.global_loss == pytest.approx(score(z, small.train.x, small.train.y)[1].mean(), rel=1e-5)
    each = np.asarray([score(z, *small.test.of(i))[0].mean() for i in range(5)])
    assert last.accuracy_variance == pytest.approx(each.var())
    assert last.worst_accuracy == each.min()
    assert last.best_accuracy == each.max()
    assert last.min_user_accuracy == each[4]
    assert last.max_user_accuracy == each[3]
    own = [score(jax.tree.map(lambda a, i=i: a[i], result.local_models), *small.test.of(i))[0].mean() for i in range(5)]
    assert last.local_accuracy == pytest.approx(np.mean(own))
    assert list(result.history["round"]) == [1, 2, 3, 4]
    assert (result.history["seconds"] > 0).all()


def test_a_device_that_never_took_part_counts_with_the_global_model(small, tiny_model):
    result = fedbc.simulate(FEDBC, tiny_model, small, **SETTING | {"rounds": 1, "sample": 2})
    took_part = np.isin(np.arange(5), result.participants)
    assert took_part.sum() == 2
    for i in range(5):
        same = np.array_equal(result.local_models["w"][i], result.global_model["w"])
        assert same == (not took_part[i])
    assert (result.multipliers[~took_part] == 0).all()
    assert (result.multipliers[took_part] > 0).all()
    last = result.history.iloc[-1]
    assert last.local_accuracy != last.accuracy_mean


def test_device_table(small, tiny_model):
    result = fedbc.simulate(FEDBC, tiny_model, small, **SETTING)
    table = result.devices
    assert len(table) == 4 * 3
    assert (table.groupby("round")["coefficient"].sum() - 1).abs().max() < 1e-9
    assert (table.groupby("round")["coefficient_by_examples"].sum() - 1).abs().max() < 1e-9
    assert table["examples"].tolist() == small.train.sizes[table["device"]].tolist()
    latest = table.groupby("device").last()
    np.testing.assert_allclose(latest["multiplier"], result.multipliers[latest.index])
    np.testing.assert_allclose(latest["tolerance"], result.tolerances[latest.index])
    assert {"drift", "loss", "multiplier", "tolerance"} <= set(table.columns)


def test_evaluation_can_be_rare(small, tiny_model):
    often = fedbc.simulate(FEDBC, tiny_model, small, **SETTING | {"rounds": 7})
    rare = fedbc.simulate(FEDBC, tiny_model, small, **SETTING | {"rounds": 7}, evaluate_every=3)
    assert rare.history["global_accuracy"].notna().tolist() == [False, False, True, False, False, True, True]
    assert list(rare.history.columns) == list(often.history.columns)
    for column in ("global_accuracy", "local_accuracy", "global_loss", "accuracy_variance"):
        assert rare.history[column].iloc[-1] == pytest.approx(often.history[column].iloc[-1], rel=1e-6)
    values = often.history["global_loss"]
    assert often.summary(last=3)["global_loss"] == pytest.approx(values.iloc[-3:].mean())
    assert rare.summary(last=3)["global_loss"] == pytest.approx(values.iloc[[5, 6]].mean())
    only = fedbc.simulate(FEDBC, tiny_model, small, **SETTING, evaluate=["global"])
    assert "global_accuracy" in only.history
    assert "local_accuracy" not in only.history
    assert "global_loss" not in only.history


def test_debug_mode_computes_the_same(small, tiny_model):
    setting = SETTING | {"rounds": 2}
    compiled = fedbc.simulate(FEDBC, tiny_model, small, **setting)
    by_hand = fedbc.simulate(FEDBC, tiny_model, small, **setting, debug=True)
    assert_same(compiled.global_model, by_hand.global_model, rtol=1e-5, atol=1e-6)
    assert_same(compiled.local_models, by_hand.local_models, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compiled.history["local_accuracy"], by_hand.history["local_accuracy"])


class PlainNumbers(fedbc.FedAvg):
    """A method that writes a number where the others have an array."""

    def finish(self, carry):
        done = super().finish(carry)
        return done._replace(summand=done.summand._replace(weight=1.0), info=done.info | {"weight": 1.0})


def test_debug_mode_takes_plain_numbers_as_compiled_code_does(small, tiny_model):
    setting = SETTING | {"rounds": 2}
    compiled = fedbc.simulate(PlainNumbers(), tiny_model, small, **setting)
    by_hand = fedbc.simulate(PlainNumbers(), tiny_model, small, **setting, debug=True)
    assert_same(compiled.global_model, by_hand.global_model, rtol=1e-5, atol=1e-6)


class Broken(fedbc.FedAvg):
    """Fails on one device, in its third step, as a mistake in a user's own method might."""

    def step(self, loss, carry, batch):
        if int(carry.steps) == 16 and bool(jnp.all(carry.descent.loss > 0)):  # device 3: 40 examples, 2 epochs of 8
            raise TypeError("cannot add a model and a banana")
        return super().step(loss, carry, batch)


def test_debug_mode_names_device_and_stage(small, tiny_model):
    with pytest.raises(fedbc.DeviceError, match=r"round 1, device 3, stage step 1: TypeError: cannot add .* banana"):
        fedbc.simulate(Broken(), tiny_model, small, **SETTING | {"sample": None}, debug=True)


def test_debug_mode_finds_the_first_nan(small):
    def apply(params, x):
        return jnp.log(params["w"]) * x[:, :1]  # the logarithm of a weight that a step makes negative

    model = fedbc.models.Model(lambda key: {"w": jnp.full(3, 1e-6)}, apply)
    with pytest.raises(fedbc.DeviceError, match=r"round 1, device \d, stage step \d: NaN in .*"):
        fedbc.simulate(fedbc.FedAvg(lr=1.0), model, small, **SETTING, debug=True)


def test_full_batch_descent_equals_one_large_batch(small, tiny_model):
    whole = fedbc.simulate(FEDBC, tiny_model, small, rounds=3, epochs=4, batch_size=None, seed=1)
    large = fedbc.simulate(FEDBC, tiny_model, small, rounds=3, epochs=4, batch_size=40, seed=1)
    assert_same(whole.global_model, large.global_model, rtol=1e-5, atol=1e-6)


def test_full_batch_descent_over_several_chunks(make_federation, tiny_model, monkeypatch):
    from fedbc.simulation import batches

    federation = make_federation(sizes=(3, 50, 17))
    setting = {"rounds": 2, "epochs": 3, "batch_size": None, "seed": 1}
    one = fedbc.simulate(FEDBC, tiny_model, federation, **setting)
    monkeypatch.setattr(batches, "CHUNK", 8)
    many = fedbc.simulate(FEDBC, tiny_model, federation, **setting)
    assert_same(one.global_model, many.global_model, rtol=1e-5, atol=1e-6)


def test_divergence_stops_names_device_and_keeps_the_last_good_state(small):
    def apply(params, x):
        return x @ params["w"]

    model = fedbc.models.Model(
        lambda key: {"w": jnp.zeros((4, 1))}, apply, loss=fedbc.models.half_squared_error, correct=None
    )
    train = [(small.train.of(i)[0], small.train.of(i)[1][:, None].astype(float)) for i in range(5)]
    federation = fedbc.data.federation(train, train)
    with pytest.raises(fedbc.Diverged, match=r"diverged in round \d+ on device \d.*smaller rate than lr=5") as caught:
        fedbc.simulate(fedbc.FedAvg(lr=5.0), model, federation, rounds=100, epochs=2, seed=1)
    result = caught.value.result
    assert result.rounds == caught.value.round - 1
    assert all(np.isfinite(a).all() for a in leaves(result.global_model))


def test_regression_has_no_accuracy(small):
    model = fedbc.models.Model(
        lambda key: {"w": jnp.zeros((4, 1))},
        lambda params, x: x @ params["w"],
        loss=fedbc.models.half_squared_error,
        correct=None,
    )
    train = [(small.train.of(i)[0], small.train.of(i)[1][:, None].astype(float)) for i in range(5)]
    result = fedbc.simulate(fedbc.FedAvg(lr=0.05), model, fedbc.data.federation(train, train), rounds=5, seed=1)
    assert result.history["global_accuracy"].isna().all()
    assert result.history["global_loss"].is_monotonic_decreasing


def test_round_trip_of_a_result(small, tiny_model, tmp_path):
    result = fedbc.simulate(FEDBC, tiny_model, small, **SETTING)
    path = result.save(tmp_path / "run")
    again = fedbc.load(path)
    assert_same(
        (result.global_model, result.local_models, result.multipliers, result.tolerances),
        (again.global_model, again.local_models, again.multipliers, again.tolerances),
    )
    assert again.history.equals(result.history)
    assert again.devices.astype(float).equals(result.devices.astype(float))
    assert again.summary() == result.summary()
    names = {p.name for p in path.iterdir()}
    assert names == {"spec.json", "history.csv", "devices.csv", "models.safetensors", "summary.json"}


def test_labels_may_sit_on_devices_without_test_examples(tiny_model, small):
    test = [small.test.of(i) for i in range(5)]
    test[2] = (np.empty((0, 4)), np.empty(0, int))
    federation = fedbc.data.federation([small.train.of(i) for i in range(5)], test)
    result = fedbc.simulate(FEDBC, tiny_model, federation, **SETTING)
    assert result.history["local_accuracy"].notna().all()
    assert result.history["worst_accuracy"].notna().all()


def test_a_centralised_run_trains_on_all_data_and_is_measured_on_every_device(small, tiny_model):
    result = fedbc.simulate(fedbc.FedAvg(lr=0.1), tiny_model, small, rounds=3, batch_size=None, pooled=True, seed=1)
    x, y = small.train.x.astype(float), small.train.y
    initial = tiny_model.init(_initial_key(1))
    w, b = (np.asarray(initial[name], float) for name in ("w", "b"))
    for _ in range(3):
        p = np.exp(x @ w + b)
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        w, b = w - 0.1 * x.T @ p / len(y), b - 0.1 * p.mean(0)
    np.testing.assert_allclose(result.global_model["w"], w, rtol=1e-4, atol=1e-5)
    right = (small.test.x @ result.global_model["w"] + result.global_model["b"]).argmax(1) == small.test.y
    last = result.history.iloc[-1]
    assert last.accuracy_variance == pytest.approx(right.reshape(5, 6).mean(1).var())
    assert last.local_accuracy == pytest.approx(last.global_accuracy)


def _initial_key(seed):
    from fedbc.simulation.schedule import INIT, generator

    return jax.random.key(int(generator(seed, INIT).integers(2**31)))
