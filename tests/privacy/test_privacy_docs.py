"""What docs/privacy.md says is so: its figures, and what Flower has and has not."""

import re
import runpy
import warnings
from pathlib import Path

import pytest
from inprocess import direct_grid, write_keys

import fedbc
from fedbc import storage
from fedbc.flower import client_app, one_device
from fedbc.flower.server import prepare
from fedbc.flower.settings import Deployment, algorithm_from
from fedbc.privacy import epsilon, secure_epsilon

with warnings.catch_warnings():  # Flower's own imports warn
    warnings.simplefilter("ignore")
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.clientapp import mod
    from flwr.server.workflow import SecAggPlusWorkflow

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()


def test_example(capsys):
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "private_synthetic.py"))
    rows = example["main"](devices=12, sample=6, rounds=2, noises=(0.1,))
    assert [row["noise"] for row in rows] == [0.1]
    assert all(0 <= row["global"] <= 1 for row in rows)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_figures():
    rows = re.findall(r"^\| ([\d.]+) \| (\d+) \| ([\d,]+)" + 4 * r" \| ([\d.]+)" + r" \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        m, n, population, *said = (float(cell.replace(",", "")) for cell in row)
        run = {"rounds": 100, "delta": 1e-6}
        found = [
            epsilon(m, **run),
            secure_epsilon(m, **run, survivors=int(n), parameters=100_000),
            epsilon(m, **run, devices=int(n)),
            epsilon(m, **run, devices=int(n), population=int(population)),
        ]
        assert found == pytest.approx(said, rel=5e-3), row


def test_flower_has_no_secure_aggregation_for_the_message_api():
    """When this fails, Flower has gained it: say so in the docs, and offer it."""
    assert not [name for name in dir(mod) if "secagg" in name.lower()]
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(3, 2)(None, context)


def test_flowers_own_mod_does_not_fit(make_federation, tmp_path):
    federation, model = make_federation((7, 8)), fedbc.models.logistic(4, 3)
    values = {"algorithm.name": "fedbc", "run.devices": 2, "run.out": str(tmp_path / "run")}
    values["run.keys"] = write_keys(tmp_path / "keys", 2)
    own = mod.LocalDpMod(1.0, 1.0, 1.0, 1e-5)
    app = client_app(model, lambda device, context: one_device(federation, device), mods=[own])
    grid = direct_grid(app, values, tmp_path / "state", 2)
    strategy = prepare(algorithm_from(values), model, Deployment.from_config(values))
    strategy.holders = {0: 100}
    z = strategy.journal.server
    named = storage.named(z, "broadcast") | storage.named(z, "global")
    arrays = ArrayRecord({name: Array(array) for name, array in named.items()})
    (order,) = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    grid.push_messages([order])
    (reply,) = grid.answers
    assert reply.has_error()
    assert "exactly one" in reply.error.reason
