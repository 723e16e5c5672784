"""A deployment computes what the simulator computes: every algorithm, in process (loopback has real processes)."""

import jax
import numpy as np
import pytest

import fedbc
from fedbc.algorithms import ALGORITHMS


def same(a, b, tolerance=1e-6):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)


def columns_agree(ours, theirs):
    timing = {"seconds", "train_seconds"}
    assert list(ours.columns) == list(theirs.columns)
    for column in set(ours.columns) - timing:
        np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-5, atol=1e-6, err_msg=column)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_equals_the_simulator(name, deployed, make_federation, tiny_model):
    three = make_federation(sizes=(20, 20, 15))
    # Scoring is the same code for all: a few methods, with local models of all kinds, stand for it.
    scored = name in ("fedbc", "perfedbc", "ditto", "localonly")
    evaluate = ["global", "local", "train"] if scored else []
    options = {"rounds": 2, "sample": 2, "seed": 5, "evaluate_every": 2}
    settings = {f"run__{k}": v for k, v in options.items()} | {"run__evaluate": ",".join(evaluate)}
    found = deployed(three, algorithm__name=name, **settings).run()
    wanted = fedbc.simulate(ALGORITHMS[name](), tiny_model, three, evaluate=evaluate, **options)
    same(found.global_model, wanted.global_model)
    columns_agree(found.devices, wanted.devices)
    if scored:
        columns_agree(found.history, wanted.history)


def test_full_batches_lagrangian_and_fine_tuning_too(deployed, make_federation, tiny_model):
    two = make_federation(sizes=(20, 15))
    what = ["global", "local", "train", "lagrangian"]
    options = {"rounds": 2, "seed": 1, "epochs": 3, "evaluate_every": 2}
    run = deployed(
        two,
        algorithm__name="perfedbc",
        algorithm__tolerance=0.1,
        run__batch_size=0,
        run__evaluate=",".join(what),
        **{f"run__{k}": v for k, v in options.items()},
    )
    found = run.run()
    wanted = fedbc.simulate(fedbc.PerFedBC(tolerance=0.1), tiny_model, two, batch_size=None, evaluate=what, **options)
    same(found.global_model, wanted.global_model)
    columns_agree(found.history, wanted.history)
    np.testing.assert_allclose(found.multipliers, wanted.multipliers, atol=1e-6)
    np.testing.assert_allclose(found.tolerances, wanted.tolerances, atol=1e-6)
