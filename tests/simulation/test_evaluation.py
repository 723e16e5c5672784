"""Optional evaluations: fine-tuning, the theorem's metric, the Lagrangian; each against its definition in NumPy."""

import jax
import numpy as np
import pytest

import fedbc
from fedbc.simulation.schedule import TUNE, generator

SETTING = {"rounds": 3, "epochs": 2, "batch_size": 5, "sample": 2, "seed": 3}
FEDBC = fedbc.FedBC(lr=0.1, dual_lr=0.1, momentum=0.5)


def of_device(models, i):
    return jax.tree.map(lambda a: np.asarray(a[i], float), models)


def probabilities(params, x):
    logits = x.astype(float) @ params["w"] + params["b"]
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def loss_and_gradient(params, x, y):
    p = probabilities(params, x)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    p[np.arange(len(y)), y] -= 1
    return loss, {"w": x.T.astype(float) @ p / len(y), "b": p.mean(0)}


@pytest.mark.parametrize("on", ["train", "test"])
@pytest.mark.parametrize("of", ["local", "global"])
def test_fine_tuning_is_steps_on_the_devices_own_data(small, tiny_model, on, of):
    how = fedbc.FineTune(steps=2, lr=0.5, batch_size=4, on=on, of=of)
    result = fedbc.simulate(FEDBC, tiny_model, small, **SETTING, fine_tune=how)
    split = small.train if on == "train" else small.test
    accuracy = []
    for i in range(small.devices):
        params = jax.tree.map(np.asarray, result.global_model) if of == "global" else of_device(result.local_models, i)
        first, last = split.offsets[i], split.offsets[i + 1]
        order = generator(3, TUNE, i).permutation(np.arange(first, last))
        for step in range(2):
            rows = np.resize(order, 8)[4 * step : 4 * step + 4]
            _, gradient = loss_and_gradient(params, split.x[rows], split.y[rows])
            params = {k: params[k] - 0.5 * gradient[k] for k in params}
        x, y = small.test.of(i)
        accuracy.append((probabilities(params, x).argmax(1) == y).mean())
    column = "finetuned_accuracy" if on == "train" else "finetuned_on_test_accuracy"
    assert result.history[column].iloc[-1] == pytest.approx(np.mean(accuracy))
    other = {"finetuned_accuracy", "finetuned_on_test_accuracy"} - {column}
    assert not other & set(result.history.columns)
    plain = fedbc.simulate(FEDBC, tiny_model, small, **SETTING)
    np.testing.assert_array_equal(plain.global_model["w"], result.global_model["w"])


def test_gradient_of_the_mean_of_the_devices_losses(small, tiny_model):
    result = fedbc.simulate(FEDBC, tiny_model, small, **SETTING, evaluate=["global", "gradient"])
    z = jax.tree.map(lambda a: np.asarray(a, float), result.global_model)
    gradients = [loss_and_gradient(z, *small.train.of(i))[1] for i in range(small.devices)]
    total = sum((np.mean([g[k] for g in gradients], axis=0) ** 2).sum() for k in ("w", "b"))
    values = result.history["gradient_sqnorm"]
    assert values.iloc[-1] == pytest.approx(total, rel=1e-4)
    np.testing.assert_allclose(result.history["gradient_sqnorm_mean"], values.expanding().mean())


@pytest.mark.parametrize("tolerance", [0.05, "learned"])
def test_lagrangian_drift_and_violation(small, tiny_model, tolerance):
    algorithm = fedbc.FedBC(lr=0.1, dual_lr=0.1, tolerance=tolerance)
    result = fedbc.simulate(algorithm, tiny_model, small, **SETTING, evaluate=["lagrangian"])
    z = jax.tree.map(lambda a: np.asarray(a, float), result.global_model)
    value, drifts, violations = [], [], []
    for i in range(small.devices):
        x = of_device(result.local_models, i)
        drift = sum(((x[k] - z[k]) ** 2).sum() for k in z)
        loss, _ = loss_and_gradient(x, *small.train.of(i))
        value.append(loss + result.multipliers[i] * (drift - result.tolerances[i]))
        drifts.append(drift)
        violations.append(max(0, drift - result.tolerances[i]))
    last = result.history.iloc[-1]
    assert last.lagrangian == pytest.approx(np.mean(value), rel=1e-4)
    assert last.drift_all == pytest.approx(np.mean(drifts), rel=1e-4)
    assert last.violation_mean == pytest.approx(np.mean(violations), rel=1e-4)
    assert last.violation_max == pytest.approx(np.max(violations), rel=1e-4)


def test_methods_without_multipliers_have_no_lagrangian(small, tiny_model):
    result = fedbc.simulate(fedbc.FedAvg(), tiny_model, small, **SETTING, evaluate=["lagrangian"])
    assert "lagrangian" not in result.history
    assert result.history["drift_all"].notna().all()
    assert np.isnan(result.multipliers).all()


def test_fine_tuning_survives_a_resume(small, tiny_model, tmp_path):
    setting = SETTING | {"fine_tune": fedbc.FineTune(), "evaluate": ["local", "lagrangian", "gradient"]}
    whole = fedbc.simulate(FEDBC, tiny_model, small, **setting)
    fedbc.simulate(FEDBC, tiny_model, small, **setting | {"rounds": 2}, checkpoint=tmp_path)
    resumed = fedbc.simulate(FEDBC, tiny_model, small, **setting, checkpoint=tmp_path, resume=True)
    times = ["seconds", "train_seconds"]
    assert whole.history.drop(columns=times).equals(resumed.history.drop(columns=times))
