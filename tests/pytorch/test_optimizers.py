"""Optimizers of torch.optim in the simulator: as PyTorch's own loop, for modules and for models of JAX."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import fedbc
from fedbc.torch import model, optimizer


def small_federation(sizes=(7, 23, 12)):
    """A few devices, each with a labelling of its own."""
    rng, pairs = np.random.default_rng(0), []
    for n in sizes:
        x = rng.normal(size=(n, 4))
        pairs.append((x, np.argmax(x @ rng.normal(size=(4, 3)), axis=1)))
    return fedbc.data.federation(pairs, pairs, classes=3, name="small")


ONE = {"rounds": 2, "epochs": 3, "batch_size": None, "evaluate": ()}


def alone(kind, federation, module, keep, **arguments):
    """The weights after two rounds of one device, by PyTorch alone."""
    mine = torch.nn.Linear(4, 3)
    mine.load_state_dict(module.state_dict())
    x, y = (torch.from_numpy(np.array(a)) for a in federation.train.of(0))
    taker = kind(mine.parameters(), lr=0.05, **arguments)
    for step in range(6):
        if step == 3 and not keep:
            taker = kind(mine.parameters(), lr=0.05, **arguments)
        taker.zero_grad()
        torch.nn.functional.cross_entropy(mine(x), y.long()).backward()
        taker.step()
    return mine.weight.detach().numpy()


@pytest.mark.parametrize(
    ("kind", "arguments", "keep"),
    [
        (torch.optim.Adam, {"eps": 1e-6}, True),  # a number, the step, and two tensors for each parameter
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}, False),  # a first step unlike the others
        (torch.optim.Adafactor, {}, False),  # a state of other shapes than the parameters
    ],
)
def test_it_is_the_optimizers_own_loop(kind, arguments, keep):
    federation, module = small_federation((12,)), torch.nn.Linear(4, 3)
    chosen = {"optimizer": optimizer(kind, **arguments), "keep_optimizer": keep}
    result = fedbc.simulate(fedbc.FedAvg(lr=0.05), model(module), federation, **ONE, **chosen)
    np.testing.assert_allclose(
        result.global_model["weight"], alone(kind, federation, module, keep, **arguments), rtol=1e-5, atol=1e-7
    )


def test_a_model_of_jax_takes_one_as_well_and_a_schedule_moves_its_rate():
    module, federation = torch.nn.Linear(4, 3), small_federation()
    start = {"w": jnp.asarray(module.weight.detach().numpy().T), "b": jnp.asarray(module.bias.detach().numpy())}
    plain = fedbc.models.Model(lambda key: start, fedbc.models.logistic(4, 3).apply, name="linear")
    chosen = {
        "rounds": 2,
        "epochs": 2,
        "sample": 2,
        "seed": 1,
        "evaluate": (),
        "lr_schedule": "step,every=1,factor=0.1",
    }
    theirs, ours = (
        fedbc.simulate(fedbc.FedBC(lr=0.05), m, federation, optimizer=taker, **chosen)
        for m, taker in ((model(module), optimizer(torch.optim.Adam)), (plain, "adam"))
    )
    np.testing.assert_allclose(
        np.asarray(theirs.global_model["weight"]).T, ours.global_model["w"], rtol=1e-4, atol=1e-6
    )
    assert theirs.spec["run"]["optimizer"] == "torch.optim.Adam()"


def test_full_batches_of_a_module_take_a_schedule():
    """The loop over a device's examples is JAX's here, with the module called from it."""
    federation, module = small_federation((12,)), torch.nn.Linear(4, 3)
    runs = [
        fedbc.simulate(fedbc.FedAvg(lr=0.05), model(module), federation, lr_schedule=schedule, **ONE)
        for schedule in (None, "constant")
    ]
    np.testing.assert_allclose(runs[0].global_model["weight"], runs[1].global_model["weight"], rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda: optimizer(torch.optim.LBFGS), "torch.optim.LBFGS does not fit: its step fails"),
        (lambda: optimizer(torch.optim.Adam, beta=0.9), "unexpected keyword argument 'beta'"),
        (lambda: optimizer(torch.optim.Adam, lr=0.9), "the rate is the method's lr"),
        (lambda: optimizer("adam"), "give a class of torch.optim, such as torch.optim.Adam"),
        (lambda: torch.optim.Adam, r"of PyTorch's, fedbc.torch.optimizer\(torch.optim.Adam\)"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence(given, sentence):
    with pytest.raises(fedbc.InputError, match=sentence) as caught:
        fedbc.simulate(
            fedbc.FedAvg(), fedbc.models.logistic(4, 3), small_federation(), rounds=1, evaluate=(), optimizer=given()
        )
    assert "\n" not in str(caught.value)
