"""FedBC whose absent devices' multipliers follow the global model: the contracts, and what it refuses."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from problems import small_federation, x64
from test_contracts import MODEL, RUN, assert_same_bits, assert_same_run

import fedbc
import fedbc.torch
from fedbc.algorithms import following
from fedbc.algorithms.base import Context

FOLLOWING = fedbc.FedBC(lr=0.03, dual_lr=0.5, absent="follow")


def run(algorithm=FOLLOWING, **chosen):
    return fedbc.simulate(algorithm, MODEL, small_federation(), **{**RUN, **chosen})


def test_a_resumed_run_has_the_same_bits(tmp_path):
    whole = run(rounds=5)
    run(rounds=2, checkpoint=tmp_path / "run")
    assert_same_run(run(rounds=5, checkpoint=tmp_path / "run", resume=True), whole)


def test_nobody_being_absent_it_is_fedbc_to_the_bit():
    """And with devices absent it is not: both in 64 bits, where nothing else can tell them apart."""
    with x64():
        for sample, same in ((None, True), (2, False)):
            a, b = run(rounds=3, sample=sample), run(fedbc.FedBC(lr=0.03, dual_lr=0.5), rounds=3, sample=sample)
            if same:
                assert_same_bits((a.global_model, a.multipliers), (b.global_model, b.multipliers))
            else:
                assert np.abs(a.multipliers - b.multipliers).max() > 1e-3


def test_a_device_makes_up_for_what_the_server_remembers(monkeypatch):
    """Rounds with moves 1, 4, 9, ... by hand; of those that the server has forgotten nothing is made up."""
    monkeypatch.setattr(following, "KEPT", 3)
    with x64():
        algorithm = fedbc.FedBC(lr=0.1, dual_lr=0.1, tolerance=0.5, absent="follow")
        context = Context(jnp.asarray(0), jnp.asarray(1), jnp.asarray(1))
        server = algorithm.init_server({"w": jnp.zeros(1)})
        device = algorithm.init_device({"w": jnp.zeros(1)}, context)
        at = 0.0
        for t in range(1, 6):
            at += t
            server = following.moved(server, {"w": jnp.full(1, at)})
        for seen, rounds in ((5, []), (4, [5]), (2, [3, 4, 5]), (0, [3, 4, 5])):
            carry = algorithm.begin(server, device._replace(seen=jnp.asarray(seen, jnp.int32)), context)
            wanted = sum(0.1 * (t**2 - 0.5) for t in rounds)
            assert float(carry.multiplier) == pytest.approx(wanted, abs=1e-12)
        done = algorithm.finish(carry)
        assert int(done.device.seen) == 6
        assert jax.tree.structure(done.device) == jax.tree.structure(device)


def test_a_mean_over_all_is_the_plain_one_when_no_multiplier_is_left():
    """The server keeps a sum of changes, of which rounding leaves a rest: here 3e-7, of the sum of 3 that there was."""
    falling = fedbc.FedBC(lr=0.05, dual_lr=0.0131, server="all", multiplier=0.7, tolerance=3.0)
    result = run(falling, rounds=60, epochs=1, batch_size=5, sample=3, seed=2)
    assert len(result.participants) == 5
    assert (result.multipliers == 0).all()
    for kept, own in zip(jax.tree.leaves(result.global_model), jax.tree.leaves(result.local_models), strict=True):
        np.testing.assert_allclose(kept, np.asarray(own).mean(0), atol=2e-6)


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"absent": "aligned"}, "absent='aligned' is unknown"),
        ({"server": "all"}, "absent='follow' cannot be given with server='all', which counts absent devices"),
        ({"dual_lr": 0.0}, "absent='follow' has nothing to move with dual_lr=0"),
    ],
)
def test_what_means_nothing_is_told_in_a_sentence(chosen, sentence):
    with pytest.raises(fedbc.InputError, match=re.escape(sentence)):
        fedbc.FedBC(**{"absent": "follow", **chosen})


def test_what_it_does_not_go_with():
    with pytest.raises(fedbc.InputError, match="dual_schedule does not apply to absent='follow'"):
        run(dual_schedule="cosine")
    bounded = fedbc.FedBC(lambda_min=0.01, lambda_max=1.0, multiplier=0.1, absent="follow")
    with pytest.raises(fedbc.InputError, match="private FedBC needs absent='still'"):
        fedbc.privacy.Private(bounded, clip=1.0, noise_multiplier=1.0)
    module = torch.nn.Linear(4, 3)
    with pytest.raises(fedbc.InputError, match="sends more than the global model"):
        fedbc.torch.LocalRound(FOLLOWING, module, fedbc.torch.parameters(module))
