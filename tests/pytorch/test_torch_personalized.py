"""Personal models of PyTorch modules in the simulator: the walks of JAX's model of the same kind."""

import jax
import numpy as np

import fedbc
from fedbc import storage
from fedbc.torch import models as modules
from fedbc.torch import to_torch


def test_a_modules_walks_are_those_of_jax(make_federation):
    federation = make_federation((12, 30, 25), test=12)
    ours = fedbc.models.logistic(4, 3)
    theirs = fedbc.torch.model(modules.logistic(4, 3))
    z, origin = (ours.init(jax.random.key(seed)) for seed in (1, 2))
    how = {"how": "walk", "lr": 0.2, "momentum": 0.5, "batch_size": 5, "epochs": 4, "seed": 3}
    wanted = fedbc.personalize(z, ours, federation, initial=origin, **how)
    named = [{name: np.asarray(t) for name, t in to_torch(p).items()} for p in (z, origin)]
    found = fedbc.personalize(named[0], theirs, federation, initial=named[1], **how)
    np.testing.assert_array_equal(found.epochs, wanted.epochs)
    assert found.epochs.max() > 0
    np.testing.assert_allclose(found.tolerances, wanted.tolerances, rtol=1e-3)
    for device in range(federation.devices):
        mine = to_torch(jax.tree.map(lambda a, device=device: a[device], wanted.local_models))
        for name, array in mine.items():
            np.testing.assert_allclose(storage.named(found.local_models)[name][device], np.asarray(array), atol=1e-4)
    for name in wanted.right:
        np.testing.assert_allclose(found.accuracy(name), wanted.accuracy(name))
