"""Two example apps with real processes, a SuperLink and three SuperNodes: PyTorch devices, and private ones."""

import runpy
import warnings

import numpy as np
import pytest
from loopback import ROOT, Loopback

import fedbc
from fedbc import storage
from fedbc.torch import load_arrays


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Loopback(tmp_path_factory.mktemp("loopback")) as loop:
        loop.prepare(3)
        loop.superlink()
        loop.superexec()
        loop.register()
        for device in range(3):
            loop.supernode(device)
        yield loop


def run(federation, name, **config):
    """Run an example app to its end; its run folder."""
    out = federation.app / "runs" / name
    federation.wait(federation.run(ROOT / "examples" / name, run__out=str(out), **config), 240)
    assert (out / "summary.json").exists(), federation.log(str(out))
    return out


def test_pytorch_devices(federation):
    out = run(federation, "deploy_pytorch", run__rounds=2, run__evaluate_every=2)  # each message starts a process
    result = fedbc.load(out)
    assert len(result.history) == 2
    assert result.history["local_loss"].iloc[-1] < result.history["local_loss"].iloc[0]
    assert len(result.devices) == 6
    assert (result.devices["multiplier"] > 0).all()
    with warnings.catch_warnings():  # Flower's own imports warn
        warnings.simplefilter("ignore")
        example = runpy.run_path(str(ROOT / "examples" / "deploy_pytorch" / "deploy_pytorch.py"))
    load_arrays(example["Net"](), result.global_model)  # all names fit, and no buffer is among them
    states = list(federation.app.rglob("device-*/*.safetensors"))
    assert len({file.parent for file in states}) == 3
    arrays, _ = storage.read_arrays(max(states))
    assert arrays["device.buffers.layers.1.num_batches_tracked"] > 0


def test_private_devices(federation):
    out = run(federation, "deploy_private", run__rounds=1)
    found = fedbc.load(out)
    method = fedbc.FedBC(lr=0.01, lambda_min=0.5, lambda_max=1.0, multiplier=0.5)
    private = fedbc.privacy.Private(method, 1.0, 0.05)
    data = fedbc.data.synthetic(devices=3, seed=1)
    without = fedbc.simulate(
        fedbc.privacy.Private(method, 1.0, 0.0), fedbc.models.logistic(60, 10), data, rounds=1, epochs=2, seed=1
    )
    noise = found.global_model["w"] - without.global_model["w"]
    largest = np.sqrt(3) * private.mechanism.move_noise / (3 * 0.5)  # of three devices, over the least sum of weights
    assert 0.4 * largest < noise.std() < 1.25 * largest
    assert "multiplier" not in found.devices  # nothing was told of it
    assert (found.devices["examples"] == 1).all()
