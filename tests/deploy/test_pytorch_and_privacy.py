"""The two example apps with real processes: a SuperLink and three SuperNodes, first PyTorch devices, then private ones."""

import shutil

import numpy as np
import pytest
from loopback import ROOT, Loopback

import fedbc
from fedbc import storage


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    loop = Loopback(tmp_path_factory.mktemp("loopback"))
    try:
        loop.superlink()
        for device in range(3):
            loop.supernode(device)
        yield loop
    finally:
        loop.close()


def app(federation, name):
    return shutil.copytree(ROOT / "examples" / name, federation.folder / name)


def test_pytorch_devices(federation):
    out = federation.folder / "pytorch"
    run = federation.run(app(federation, "deploy_pytorch"), **{"run.out": str(out)})
    said = federation.wait(run, 240)
    assert "run folder written" in said, said
    result = fedbc.load(out)
    assert len(result.history) == 3
    assert result.history["local_loss"].iloc[-1] < result.history["local_loss"].iloc[0]
    assert len(result.devices) == 9
    assert (result.devices["multiplier"] > 0).all()
    assert set(storage.named(result.global_model)) == {
        f"layers.{layer}.{kind}" for layer in (0, 1, 4) for kind in ("weight", "bias")
    }
    states = list((federation.folder / "state").glob("*/device-*/*.safetensors"))
    assert len({file.parent for file in states}) == 3
    arrays, _ = storage.read_arrays(max(states))
    assert arrays["device.buffers.layers.1.num_batches_tracked"] > 0


def test_private_devices(federation):
    """Without noise, real processes give the simulator's private method to 1e-6; with noise, another model each time."""
    folder = app(federation, "deploy_private")
    runs = {}
    for name, noise in (("none", 0.0), ("some", 0.05)):
        out = federation.folder / f"private-{name}"
        run = federation.run(folder, **{"run.out": str(out), "privacy.noise-multiplier": noise})
        said = federation.wait(run, 240)
        assert "run folder written" in said, said
        runs[name] = fedbc.load(out)
    method = fedbc.FedBC(lr=0.01, lambda_min=0.5, lambda_max=1.0, multiplier=0.5)
    data = fedbc.data.synthetic(devices=3, seed=1)
    wanted = fedbc.simulate(
        fedbc.privacy.Private(method, 1.0, 0.0), fedbc.models.logistic(60, 10), data, rounds=2, epochs=2, seed=1
    )
    for name in ("w", "b"):
        np.testing.assert_allclose(runs["none"].global_model[name], wanted.global_model[name], atol=1e-6)
    noise = runs["some"].global_model["w"] - wanted.global_model["w"]
    assert 0.01 < noise.std() < 1
    assert "multiplier" not in runs["some"].devices  # nothing was told of it
    assert (runs["some"].devices["examples"] == 1).all()
