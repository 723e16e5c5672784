"""PyTorch devices behind fedbc's messages: they end where the simulator's devices end, and keep what they should."""

import jax
import numpy as np
import pytest
import torch
from inprocess import deploy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedbc
from fedbc import storage
from fedbc.flower import post
from fedbc.simulation.schedule import INIT, generator
from fedbc.torch import load_arrays, to_jax, to_torch
from fedbc.torch import models as modules
from fedbc.torch.flower import client_app, initial_model

CONFIG = {
    "algorithm.name": "fedbc",
    "algorithm.lr": 0.1,
    "algorithm.dual-lr": 0.5,
    "algorithm.momentum": 0.5,
    "run.devices": 3,
    "run.rounds": 4,
    "run.sample": 2,
    "run.epochs": 3,
    "run.batch-size": 0,
    "run.seed": 3,
    "run.evaluate": "global,local,train,lagrangian",
}


@pytest.fixture
def federation(make_federation):
    return make_federation((7, 23, 12))


def loaders_of(federation, batch_size=1000, shuffle=False):
    def load(device, context):
        sets = [
            TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64))
            for x, y in (federation.train.of(device), federation.test.of(device))
        ]
        return tuple(DataLoader(s, batch_size, shuffle=shuffle) for s in sets)

    return load


def train(module, loader, local, config):
    optimizer = local.attach(torch.optim.SGD(module.parameters(), config["algorithm.lr"], config["algorithm.momentum"]))
    for _ in range(config["run.epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), y)
            loss.backward()
            optimizer.step()
            local.record(loss)


def test_equals_the_simulator(federation, tmp_path):
    """Full-batch descent, so that the order of the examples does not matter; all that a run folder holds is equal."""
    jax_model = fedbc.models.logistic(4, 3)
    start = modules.logistic(4, 3)
    start.load_state_dict(to_torch(jax_model.init(jax.random.key(int(generator(3, INIT).integers(2**31))))))
    model = initial_model(start)
    app = client_app(lambda: modules.logistic(4, 3), loaders_of(federation), train, model=model)
    folder, _ = deploy(model, fedbc.flower.algorithm_from, app, CONFIG, tmp_path)
    found = fedbc.load(folder)
    algorithm = fedbc.FedBC(lr=0.1, dual_lr=0.5, momentum=0.5)
    run = {"rounds": 4, "sample": 2, "epochs": 3, "batch_size": None, "seed": 3}
    wanted = fedbc.simulate(
        algorithm, jax_model, federation, **run, evaluate=("global", "local", "train", "lagrangian")
    )
    state = {name: torch.tensor(np.asarray(a)) for name, a in storage.named(found.global_model).items()}
    for name, array in storage.named(to_jax(state)).items():
        np.testing.assert_allclose(array, storage.named(wanted.global_model)[name], atol=1e-6)
    for table in ("history", "devices"):
        mine, theirs = getattr(found, table), getattr(wanted, table)
        columns = [c for c in theirs.columns if "seconds" not in c]
        assert [c for c in mine.columns if "seconds" not in c] == columns
        np.testing.assert_allclose(mine[columns].to_numpy(), theirs[columns].to_numpy(), rtol=1e-4, atol=1e-5)
    assert found.multipliers.max() > 0.01


def test_secure_sums_of_pytorch_devices(federation, tmp_path):
    """The same run, with and without secure aggregation: z is the same, and nothing but masked numbers is sent."""
    start = modules.logistic(4, 3)
    model = initial_model(start)
    config = CONFIG | {"run.rounds": 2, "run.evaluate": "global", "algorithm.lambda-max": 10.0}
    secure = {"run.secure": True, "run.min-devices": 2}
    found = []
    for name, settings in {"plain": {}, "secure": secure}.items():
        app = client_app(lambda: modules.logistic(4, 3), loaders_of(federation), train, model=model)
        folder, grid = deploy(model, fedbc.flower.algorithm_from, app, config | settings, tmp_path / name)
        found.append(fedbc.load(folder))
    for a, b in zip(*(storage.named(result.global_model).values() for result in found), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    np.testing.assert_allclose(*(result.history["global_accuracy"] for result in found), atol=1e-6)
    assert list(found[1].devices.columns) == ["round", "device"]
    assert not any("metrics" in answer.content["fedbc"] for answer in grid.answers)


def test_devices_personalise_by_the_users_loop(federation, tmp_path):
    """Full batches again, so that the simulator's walk is the same: folds, epochs, models, answers."""
    start, jax_model = modules.logistic(4, 3), fedbc.models.logistic(4, 3)
    model = initial_model(start)
    app = client_app(lambda: modules.logistic(4, 3), loaders_of(federation), train, model=model)
    config = CONFIG | {"run.rounds": 1, "run.evaluate": "global", "run.personalize": True}
    folder, _ = deploy(model, fedbc.flower.algorithm_from, app, config, tmp_path)
    state = {name: torch.tensor(a) for name, a in storage.named(fedbc.load(folder).global_model).items()}
    how = {
        "lr": 0.1,
        "momentum": 0.5,
        "batch_size": 1000,
        "seed": 3,
        "how": "walk",
        "initial": to_jax(start.state_dict()),
    }
    places = sorted(tmp_path.rglob("personal/personalized.safetensors"))
    assert len(places) == 3
    for device, place in enumerate(places):
        own = fedbc.load_personalized(place)
        alone = fedbc.data.subset(federation, [device])
        wanted = fedbc.personalize(to_jax(state), jax_model, alone, **how)
        np.testing.assert_array_equal(own.epochs, wanted.epochs)
        np.testing.assert_allclose(own.tolerances, wanted.tolerances, rtol=1e-4)
        for name in ("local_models", "alone_models"):
            mine = {key: torch.tensor(a[0]) for key, a in getattr(own, name).items()}
            for key, array in storage.named(to_jax(mine)).items():
                np.testing.assert_allclose(array, storage.named(getattr(wanted, name))[key][0], atol=1e-5)
        for name in own.right:
            np.testing.assert_allclose(own.accuracy(name), wanted.accuracy(name))
    assert any(fedbc.load_personalized(place).epochs[0] > 0 for place in places)


def test_a_loader_that_cannot_be_cut_is_refused_before_the_first_round(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(post, "SENDING_PAUSES", ())  # the error is no server's that comes back

    def weighted(device, context):
        training, test = loaders_of(federation)(device, context)
        sampler = torch.utils.data.WeightedRandomSampler([1.0] * len(training.dataset), 5)
        return DataLoader(training.dataset, 4, sampler=sampler), test

    model = initial_model(modules.logistic(4, 3))
    app = client_app(lambda: modules.logistic(4, 3), weighted, train, model=model)
    with pytest.raises(fedbc.InputError, match="draws by a WeightedRandomSampler"):
        deploy(model, fedbc.flower.algorithm_from, app, CONFIG | {"run.personalize": True}, tmp_path)


class WithBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x):
        return self.body(x)


def run_with_buffers(federation, folder, seed=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = initial_model(WithBuffers())
    app = client_app(WithBuffers, loaders_of(federation, 4, shuffle=True), train, model=model)
    values = {**CONFIG, "run.sample": 0, "run.seed": seed}
    return deploy(model, fedbc.flower.algorithm_from, app, values, folder)


def test_buffers_are_kept_on_the_device_and_never_sent(federation, tmp_path):
    folder, grid = run_with_buffers(federation, tmp_path)
    for message in (*grid.orders, *grid.answers):
        for record in message.content.array_records.values():
            assert not [name for name in record if "running" in name or "tracked" in name]
    (file,) = (tmp_path / "state").glob("*/device-1/state.safetensors")
    arrays, _ = storage.read_arrays(file)
    assert arrays["device.buffers.body.1.num_batches_tracked"] == 4 * 3 * 6  # rounds, epochs, batches
    assert arrays["device.buffers.body.1.num_batches_tracked"].dtype == np.int64
    assert np.abs(arrays["device.buffers.body.1.running_mean"]).max() > 0
    history = fedbc.load(folder).history
    assert history["global_loss"].iloc[-1] < history["global_loss"].iloc[0]


def test_buffers_are_averaged_where_that_is_asked_for(federation, tmp_path):
    model = initial_model(WithBuffers(), statistics="averaged")
    app = client_app(WithBuffers, loaders_of(federation, 4, shuffle=True), train, model=model)
    values = {**CONFIG, "run.sample": 0, "run.rounds": 2, "algorithm.start": "global"}
    folder, _ = deploy(model, fedbc.flower.algorithm_from, app, values, tmp_path)
    z = storage.named(fedbc.load(folder).global_model)
    kept = [storage.read_arrays(next((tmp_path / "state").glob(f"*/device-{i}/state.*")))[0] for i in range(3)]
    for name in ("body.1.running_mean", "body.1.num_batches_tracked"):
        own = [arrays[f"device.method.statistics.{name}"] for arrays in kept]
        mean = sum(n * a for n, a in zip(federation.train.sizes, own, strict=True)) / federation.train.sizes.sum()
        np.testing.assert_allclose(z[f"statistics.{name}"], np.round(mean) if "tracked" in name else mean, rtol=1e-5)
    assert z["statistics.body.1.num_batches_tracked"] > max(2 * 6, 3 * 2)  # the second round went on from the first's
    assert fedbc.load(folder).history["global_loss"].iloc[-1] < 1.2


def test_what_is_frozen_does_not_travel(federation, tmp_path):
    def half_frozen():
        torch.manual_seed(7)
        module = nn.Sequential(nn.Linear(4, 500), nn.ReLU(), nn.Linear(500, 3))
        module[0].requires_grad_(False)
        return module

    model = initial_model(half_frozen())
    app = client_app(half_frozen, loaders_of(federation), train, model=model)
    values = {**CONFIG, "run.rounds": 1, "run.evaluate": "", "algorithm.name": "fedavg"}
    del values["algorithm.dual-lr"]
    folder, grid = deploy(model, fedbc.flower.algorithm_from, app, values, tmp_path)
    (largest,) = {
        len(answer.content["fedbc"].get("arrays", b"")) for answer in grid.answers if answer.has_content()
    } - {0}
    trained, frozen = 4 * (500 * 3 + 3), 4 * (4 * 500 + 500)
    assert trained < largest < trained + 2000 < trained + frozen
    result, start = fedbc.load(folder), half_frozen()
    load_arrays(start, result.global_model)
    assert set(storage.named(result.global_model)) == {"2.weight", "2.bias"}
    assert torch.equal(start[0].weight, half_frozen()[0].weight)
    assert not torch.equal(start[2].weight, half_frozen()[2].weight)


def test_one_seed_one_run(federation, tmp_path):
    """Shuffling and dropout are a function of seed, round and device."""
    results = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        folder, _ = run_with_buffers(federation, tmp_path / name, seed)
        results.append(np.concatenate([a.ravel() for a in storage.named(fedbc.load(folder).global_model).values()]))
    assert np.array_equal(results[0], results[1])
    assert not np.allclose(results[0], results[2])


def test_a_private_pytorch_deployment(federation, tmp_path):
    from fedbc.flower.privacy import privacy_mod, private_from

    model = initial_model(modules.logistic(4, 3))
    app = client_app(lambda: modules.logistic(4, 3), loaders_of(federation), train, model=model, mods=[privacy_mod])
    bounds = {"algorithm.lambda-min": 0.05, "algorithm.lambda-max": 2.0, "algorithm.multiplier": 0.05}
    quiet = {"run.diagnostics": False, "run.evaluate": "", "privacy.clip": 1e-3, "privacy.noise-multiplier": 0.0}
    folder, _ = deploy(model, private_from, app, {**CONFIG, **bounds, **quiet, "run.rounds": 1}, tmp_path)
    start = model.init(None)
    moved = sum(
        float(np.sum((array - np.asarray(start[name])) ** 2))
        for name, array in storage.named(fedbc.load(folder).global_model).items()
    )
    assert 0 < moved <= 1e-3**2 * (1 + 1e-3)


def test_a_loop_that_forgets_the_optimiser_is_told(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(post, "SENDING_PAUSES", ())  # the error is no server's that comes back

    def forgetful(module, loader, local, config):
        for x, y in loader:
            nn.functional.cross_entropy(module(x), y).backward()

    model = initial_model(modules.logistic(4, 3))
    app = client_app(lambda: modules.logistic(4, 3), loaders_of(federation), forgetful, model=model)
    with pytest.raises(fedbc.InputError, match="no optimiser took part"):
        deploy(model, fedbc.flower.algorithm_from, app, CONFIG, tmp_path)
