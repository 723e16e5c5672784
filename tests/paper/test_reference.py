"""The reference's variants differ from the correct methods in what they say, and in nothing else."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbc
from fedbc.algorithms.base import Context
from fedbc.paper.probes import DampedSCAFFOLD
from fedbc.paper.reference import ReferencePFedMe, ReferenceQFedAvg, ReferenceSCAFFOLD, dual_rate, shuffled
from fedbc.runs import CATALOG, Lines, RunSpec, entry, run_missing
from fedbc.runs.catalog import PLUGINS


def quadratic(centre):
    """f(w) = ½ (w - centre)², whatever the batch."""

    class Batch:
        size = jnp.asarray(4.0)

    return lambda w, batch: 0.5 * (w - centre) ** 2, Batch()


def one_device(algorithm, centre, steps, z=0.0, examples=4):
    """One device's round on a quadratic, from z."""
    loss, batch = quadratic(centre)
    context = Context(jnp.asarray(0), jnp.asarray(examples), jnp.asarray(steps))
    server = algorithm.init_server(jnp.asarray(z))
    message = algorithm.broadcast(server)
    carry = algorithm.begin(message, algorithm.init_device(jnp.asarray(z), context), context)
    for _ in range(steps):
        carry = algorithm.step(loss, carry, batch)
    return server, algorithm.finish(carry)


def test_q_fedavg_lacks_the_rate_in_its_norm():
    lr, q, centre = 0.1, 2.0, 3.0
    _, correct = one_device(fedbc.QFedAvg(lr=lr, q=q), centre, steps=1)
    _, reference = one_device(ReferenceQFedAvg(lr=lr, q=q), centre, steps=1)
    f, moved = 0.5 * centre**2, lr * centre
    assert correct.summand.h == pytest.approx(q * f * (moved / lr) ** 2 + f**q / lr, rel=1e-5)
    assert reference.summand.h == pytest.approx(4 * (q * f * moved**2 + f**q / lr), rel=1e-5)  # 4 examples
    assert reference.summand.delta == pytest.approx(4 * float(correct.summand.delta), rel=1e-5)


def test_scaffold_control_variates_are_too_large_with_momentum():
    """Along a nearly constant gradient g, momentum 0.5 carries about twice as far as K lr g."""
    lr, steps, centre = 1e-4, 60, 1.0
    control = {}
    for kind in (fedbc.SCAFFOLD, ReferenceSCAFFOLD):
        _, finished = one_device(kind(lr=lr, momentum=0.5), centre, steps)  # from z = 0, where c starts at 0 for both
        control[kind] = float(finished.device.c)
    gradient = -centre
    assert control[fedbc.SCAFFOLD] == pytest.approx(gradient, rel=0.02)
    assert control[ReferenceSCAFFOLD] == pytest.approx(2 * gradient, rel=0.05)


@pytest.mark.parametrize(("steps", "share"), [(4, 1.0), (10, 1.0), (40, 0.25)])
def test_damped_scaffold_follows_a_correction_for_ten_steps_only(steps, share):
    """With a constant gradient g, x = z - lr Σ (g + share (c - c_i)), and c_i+ is g, whatever c was."""
    lr, slope, c, c_i = 0.01, 2.0, 5.0, -1.0

    class Batch:
        size = jnp.asarray(4.0)

    context = Context(jnp.asarray(0), jnp.asarray(4), jnp.asarray(steps))
    for algorithm, taken in ((fedbc.SCAFFOLD(lr=lr), 1.0), (DampedSCAFFOLD(lr=lr, horizon=10), share)):
        server = algorithm.init_server(jnp.asarray(0.0))._replace(c=jnp.asarray(c))
        device = algorithm.init_device(jnp.asarray(0.0), context)._replace(c=jnp.asarray(c_i))
        carry = algorithm.begin(algorithm.broadcast(server), device, context)
        for _ in range(steps):
            carry = algorithm.step(lambda w, batch: slope * w, carry, Batch())
        finished = algorithm.finish(carry)
        assert float(finished.device.x) == pytest.approx(-lr * steps * (slope + taken * (c - c_i)), rel=1e-5)
        assert float(finished.device.c) == pytest.approx(slope, rel=1e-4)


def test_scaffold_starts_every_control_variate_from_one_random_network():
    model = fedbc.models.mlp(6, 5, 3)
    params = model.init(jax.random.key(0))
    mixed = shuffled(params)
    for name in ("hidden", "out"):
        before, after = np.asarray(params[name]["w"]), np.asarray(mixed[name]["w"])
        assert not np.array_equal(before, after)
        np.testing.assert_array_equal(np.sort(before.ravel()), np.sort(after.ravel()))
    algorithm = ReferenceSCAFFOLD(lr=0.1)
    server = algorithm.init_server(params)
    context = Context(jnp.asarray(3), jnp.asarray(4), jnp.asarray(1))
    carry = algorithm.begin(server, algorithm.init_device(params, context), context)
    np.testing.assert_array_equal(carry.device.c["out"]["w"], server.c["out"]["w"])
    np.testing.assert_array_equal(server.c["out"]["w"], mixed["out"]["w"])


def test_scaffold_without_momentum_and_weights_is_scaffold_up_to_its_start(make_federation):
    """Both then keep c the mean of the c_i from the time when all devices took part: the same fixed point."""
    federation = make_federation((10, 10, 10), test=4)
    model = fedbc.models.logistic(4, 3)
    run = {"rounds": 60, "epochs": 5, "batch_size": None, "evaluate": ["gradient"]}
    end = [
        fedbc.simulate(kind(lr=0.2, weights="uniform"), model, federation, **run).history["gradient_sqnorm"].iloc[-1]
        for kind in (fedbc.SCAFFOLD, ReferenceSCAFFOLD)
    ]
    assert end[1] < 1e-3
    assert end[0] == pytest.approx(end[1], rel=0.2)


def test_pfedme_keeps_w():
    arguments = {"lr": 0.2, "penalty": 2.0, "inner_steps": 3, "inner_lr": 0.1}
    _, correct = one_device(fedbc.PFedMe(**arguments), 1.0, steps=2)
    _, reference = one_device(ReferencePFedMe(weights="uniform", **arguments), 1.0, steps=2)
    assert float(reference.summand.weighted) == float(correct.summand.weighted) == float(reference.device)
    assert float(reference.device) != float(correct.device)


def test_the_dual_momentum_doubles_the_rate():
    assert dual_rate(0.01) == 0.02
    assert sum(0.01 * 0.5**k for k in range(60)) == pytest.approx(dual_rate(0.01))


def test_files_can_name_the_variants_but_they_are_not_offered():
    assert isinstance(RunSpec({"name": "reference-scaffold", "lr": 0.1}).build_part("algorithm"), ReferenceSCAFFOLD)
    assert not [name for name in CATALOG["algorithm"] if name.startswith("reference")]


def test_a_worker_that_never_saw_the_paper_runs_a_variant(tmp_path):
    spec = RunSpec({"name": "reference-scaffold", "lr": 0.1}, {"name": "synthetic", "devices": 4}, run={"rounds": 1})
    run_missing([spec], tmp_path / "lines.jsonl", workers=1)
    (line,) = Lines(tmp_path / "lines.jsonl").read().values()
    assert "summary" in line


def test_every_plugin_is_registered_by_its_module():
    for name in PLUGINS:
        assert entry("algorithm", name).name == name


def test_only_a_variants_name_imports_the_paper():
    code = """
import pkgutil, sys
import fedbc.runs, fedbc.selection
from fedbc.runs import RunSpec
for package in (fedbc.runs, fedbc.selection):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        __import__(module.name)
assert not any(name.startswith("fedbc.paper") for name in sys.modules)
RunSpec({"name": "reference-pfedme"}).build_part("algorithm")
assert "fedbc.paper.reference" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
