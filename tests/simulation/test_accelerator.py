"""The path of accelerators, on emulated ones: lanes batched by vmap, spread over several XLA devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = """
import json, sys
import jax
import jax.numpy as jnp
import numpy as np
import fedbc
from fedbc import runtime

emulated = sys.argv[1] == "emulated"
if emulated:
    runtime.on_cpu = lambda: False  # four XLA devices of the host take the place of accelerators
from fedbc.simulation.lanes import Lanes

lanes = Lanes(8)
draw = np.random.default_rng(0)
sizes = (9, 14, 6, 11, 8, 13, 7, 10, 12)
devices = [(draw.normal(size=(n, 6, 6, 2)).astype(np.float32), draw.integers(0, 3, n)) for n in sizes]
images = fedbc.data.federation(devices, devices)


def apply(params, x):
    h = jax.lax.conv_general_dilated(x, params["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    h = jax.lax.reduce_window(jax.nn.relu(h), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return h.reshape(len(x), -1) @ params["v"]


def init(key):
    return {"w": jax.random.normal(key, (3, 3, 2, 4)) / 4, "v": jax.random.normal(key, (36, 3)) / 6}


network = fedbc.models.Model(init, apply)
everything = ("global", "local", "train", "gradient")
found = {"threads": len(lanes.devices), "width": lanes.width, "distinct": len(set(lanes.devices))}
for name, method, model, data in (
    ("network", fedbc.FedBC(lr=0.05), network, images),
    ("logistic", fedbc.SCAFFOLD(lr=0.05), fedbc.models.logistic(60, 10), fedbc.data.synthetic(devices=9, seed=1)),
):
    result = fedbc.simulate(method, model, data, rounds=3, batch_size=4, sample=8, seed=1, lanes=8, evaluate=everything)
    columns = [c for c in result.history.columns if "seconds" not in c]
    found[name] = result.history[columns].to_dict("list")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    script = tmp_path_factory.mktemp("emulated") / "run.py"
    script.write_text(SCRIPT)
    found = {}
    for kind in ("emulated", "plain"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "src"), *sys.path])}
        environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        done = subprocess.run(
            [sys.executable, str(script), kind], capture_output=True, text=True, env=environment, timeout=600
        )
        assert done.returncode == 0, done.stderr
        found[kind] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_lanes_are_spread_over_devices_and_batched_on_each(runs):
    assert (runs["emulated"]["threads"], runs["emulated"]["distinct"], runs["emulated"]["width"]) == (4, 4, 2)
    assert (runs["plain"]["threads"], runs["plain"]["distinct"], runs["plain"]["width"]) == (8, 1, 1)


@pytest.mark.parametrize("run", ["network", "logistic"])
def test_the_numbers_are_those_of_the_cpu(runs, run):
    plain, emulated = runs["plain"][run], runs["emulated"][run]
    assert plain.keys() == emulated.keys()
    for column, values in plain.items():
        np.testing.assert_allclose(emulated[column], values, rtol=2e-5, atol=1e-6, err_msg=column)
