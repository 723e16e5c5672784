"""A federation of PyTorch devices ends where the simulator does: same batches, same method, another engine."""

import functools

import jax
import numpy as np
import pytest
import torch
from torch import nn

import fedbc
from fedbc import storage, trees
from fedbc.simulation.schedule import INIT, Batching, generator, sample_devices
from fedbc.torch import LocalRound, parameters, to_arrays, to_jax, to_torch
from fedbc.torch import models as modules

RUN = {"rounds": 5, "epochs": 2, "batch_size": 5, "sample": 4, "seed": 3}


def torch_federation(algorithm, module, federation, z, *, own_optimizer=False):
    """What `simulate` does, with PyTorch's local steps; gives z and every device's state and diagnostics."""
    batching = Batching(RUN["batch_size"], RUN["epochs"])
    states, rows = {}, []
    # One optimiser for all rounds and devices: its momentum must not go from one to the next.
    kept = torch.optim.SGD(module.parameters(), algorithm.lr, algorithm.momentum) if own_optimizer else None
    for number in range(1, RUN["rounds"] + 1):
        summands = []
        for device in sample_devices(RUN["seed"], number, federation.devices, RUN["sample"]).tolist():
            x, y = (part.copy() for part in federation.train.of(device))
            x = torch.as_tensor(x).to(next(module.parameters()).dtype)
            local = LocalRound(algorithm, module, z, states.get(device), index=device, examples=len(x))
            optimizer = local.attach(kept) if kept else local.sgd()
            for batch in batching.table(RUN["seed"], number, device, len(x)):
                chosen = batch[batch >= 0]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(x[chosen]), torch.as_tensor(y[chosen]).long())
                loss.backward()
                optimizer.step()
                local.record(loss)
            done = local.finish()
            states[device] = done.device
            summands.append(done.summand)
            rows.append({"round": number, "device": device, **{k: float(v) for k, v in done.info.items()}})
        total = functools.reduce(trees.add, summands)
        z = jax.tree.map(np.asarray, algorithm.update(z, total, federation.devices))
    return z, states, rows


def assert_same(ours, theirs, tolerance):
    for name, value in storage.named(ours).items():
        np.testing.assert_allclose(storage.named(theirs)[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def compare(algorithm, model, module, federation, *, tolerance=1e-5, **rest):
    result = fedbc.simulate(algorithm, model, federation, evaluate=(), **RUN)
    start = model.init(jax.random.key(int(generator(RUN["seed"], INIT).integers(2**31))))
    z, states, rows = torch_federation(algorithm, module, federation, to_arrays(to_torch(start)), **rest)
    as_tensors = {name: torch.tensor(value) for name, value in z.items()}
    assert_same(result.global_model, to_jax(as_tensors), tolerance)
    for device, state in states.items():
        x = algorithm.local_model(state)
        mine = to_jax({name: torch.tensor(np.asarray(value)) for name, value in x.items()})
        assert_same(jax.tree.map(lambda a, device=device: a[device], result.local_models), mine, tolerance)
    for row in rows:
        table = result.devices
        theirs = table[(table["round"] == row["round"]) & (table["device"] == row["device"])].iloc[0]
        for name in set(row) & set(table.columns):
            assert row[name] == pytest.approx(theirs[name], rel=10 * tolerance, abs=tolerance), (name, row)
    assert len(states) == federation.devices  # every device took part, some again after a pause
    return result


# The multipliers must matter for the comparison to mean anything: these rates make them large.
FEDBC = {
    "learned gamma, momentum": fedbc.FedBC(lr=0.05, dual_lr=0.5, momentum=0.5),
    "from x_i": fedbc.FedBC(lr=0.05, dual_lr=0.5, momentum=0.5, start="local"),
    "fixed gamma, bounded lambda": fedbc.FedBC(
        lr=0.05, dual_lr=2.0, tolerance=0.01, lambda_min=0.1, lambda_max=0.6, multiplier=0.2
    ),
    "one gamma a device": fedbc.FedBC(lr=0.05, dual_lr=0.5, tolerance=(0.01, 0.05, 0.0, 0.2, 1.0)),
}


@pytest.mark.parametrize("algorithm", FEDBC.values(), ids=FEDBC)
def test_fedbc(algorithm, small, tiny_model):
    result = compare(algorithm, tiny_model, modules.logistic(4, 3), small)
    assert np.nanmax(result.multipliers) > 0.1


def test_fedbc_with_an_optimiser_of_ones_own(small, tiny_model):
    compare(FEDBC["learned gamma, momentum"], tiny_model, modules.logistic(4, 3), small, own_optimizer=True)


def test_fedbc_with_hidden_layers(small):
    compare(FEDBC["learned gamma, momentum"], fedbc.models.mlp(4, 6, 3), modules.MLP(4, 6, 3), small)


def test_fedbc_in_64_bits(small, tiny_model):
    with jax.enable_x64(True):
        module = modules.logistic(4, 3).double()
        compare(FEDBC["learned gamma, momentum"], tiny_model, module, small, tolerance=1e-11)


@pytest.mark.parametrize(
    "algorithm",
    [fedbc.FedAvg(lr=0.05, momentum=0.5), fedbc.FedProx(lr=0.05, momentum=0.5, mu=2.0, weights="uniform")],
    ids=["fedavg", "fedprox"],
)
def test_other_methods(algorithm, small, tiny_model):
    compare(algorithm, tiny_model, modules.logistic(4, 3), small)


class WithBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))

    def forward(self, x):
        return self.body(x)


def one_round(module, algorithm, z, state=None):
    local = LocalRound(algorithm, module, z, state)
    optimizer = local.sgd()
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        x, y = torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return local.finish()


def test_buffers_stay_on_the_device():
    torch.manual_seed(0)
    module, algorithm = WithBuffers(), fedbc.FedBC(lr=0.1, dual_lr=0.5)
    z = parameters(module)
    done = one_round(module, algorithm, z)
    assert set(done.summand.weighted) == set(done.device.x) == set(z)
    drift = sum(np.sum((parameters(module)[name] - z[name]) ** 2) for name in z)
    assert float(done.info["drift"]) == pytest.approx(drift, rel=1e-5)
    assert int(module.body[1].num_batches_tracked) == 3
    one_round(module, algorithm, z, done.device)
    assert int(module.body[1].num_batches_tracked) == 6  # z did not set it back
    assert np.isnan(done.info["loss"])  # none was recorded


def test_mistakes_are_told(tiny_model):
    module, algorithm = modules.logistic(4, 3), fedbc.FedBC()
    z = parameters(module)
    with pytest.raises(fedbc.InputError, match="no optimiser took part"):
        LocalRound(algorithm, module, z).finish()
    local = LocalRound(algorithm, module, z)
    local.sgd()
    with pytest.raises(fedbc.InputError, match="took no step"):
        local.finish()
    with pytest.raises(fedbc.InputError, match="not the module's"):
        local.attach(torch.optim.SGD(modules.logistic(4, 3).parameters(), 0.1))
    with pytest.raises(fedbc.InputError, match=r"give one of fedbc\.FedBC"):
        LocalRound(fedbc.PerFedBC(), module, z)
    with pytest.raises(fedbc.InputError, match="they lack bias"):
        LocalRound(algorithm, module, {"weight": z["weight"]})


def test_after_the_round_the_optimiser_is_free_again():
    module = modules.logistic(4, 3)
    local = LocalRound(fedbc.FedBC(multiplier=5.0), module, parameters(module))
    optimizer = local.attach(torch.optim.SGD(module.parameters(), 0.1))
    module(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    local.finish()
    before = parameters(module)
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    assert all(np.array_equal(before[name], value) for name, value in parameters(module).items())
