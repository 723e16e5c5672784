"""What a method declares beside its steps: diagnostics, duals, and whether somebody else may take the steps."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import small_federation

import fedbc
from fedbc.algorithms import ALGORITHMS, Context
from fedbc.algorithms.base import INFO, StepsTaken
from fedbc.privacy import Private
from fedbc.simulation.diagnostics import RoundReport, report_columns

MODEL = fedbc.models.logistic(4, 3)


class Own(fedbc.FedAvg):
    """A user's method, whose diagnostics are what a test makes of them."""

    name: ClassVar[str] = "own"
    change: ClassVar = staticmethod(lambda info: info)

    def finish(self, carry):
        done = super().finish(carry)
        return done._replace(info=type(self).change(done.info))


def own(change):
    return type("Changed", (Own,), {"change": staticmethod(change)})()


@pytest.mark.parametrize("name", INFO)
def test_diagnostics_that_lack_a_field_are_told_in_a_sentence(name):
    lacking = own(lambda info: {k: v for k, v in info.items() if k != name})
    sentence = f"algorithm own: the info that its finish gives lacks '{name}': give .*, one number"
    with pytest.raises(fedbc.InputError, match=sentence) as caught:
        fedbc.simulate(lacking, MODEL, small_federation(), rounds=1)
    assert INFO[name] in str(caught.value)
    with pytest.raises(fedbc.InputError, match=sentence):
        fedbc.simulate(lacking, MODEL, small_federation(), rounds=1, debug=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda info: {**info, "loss": jnp.zeros(3)},
            r"has 'loss' of shape \(3,\): give the mean loss along .* one number",
        ),
        (lambda info: {**info, "mine": jnp.zeros((2, 2))}, r"has 'mine' of shape \(2, 2\): give a scalar, one number"),
        (lambda info: {**info, "drift": None}, r"has 'drift' a NoneType: give ‖x_i - z‖².* one number"),
        (lambda info: tuple(info.values()), r"is a tuple: give a dict with drift, loss, weight"),
    ],
)
def test_diagnostics_of_another_form_are_told_in_a_sentence(change, sentence):
    with pytest.raises(fedbc.InputError, match=f"algorithm own: the info that its finish gives {sentence}"):
        fedbc.simulate(own(change), MODEL, small_federation(), rounds=1)


def test_methods_say_what_their_duals_are():
    params, context = MODEL.init(jax.random.key(0)), Context(*(jnp.asarray(n) for n in (0, 5, 2)))
    bounded = fedbc.FedBC(lambda_min=0.1, multiplier=0.3, lambda_max=1.0, tolerance=0.5)
    for method in (bounded, Private(bounded, 1.0, 0.0)):
        duals = method.duals(method.init_device(params, context))
        np.testing.assert_allclose(duals, (0.3, 0.5), rtol=1e-6)
    assert {name for name, kind in ALGORITHMS.items() if kind().duals(kind().init_device(params, context))} == {
        "fedbc",
        "perfedbc",
        "besidefedbc",
    }


def plain(name):
    return ALGORITHMS[name]().has_plain_steps


def test_methods_with_other_steps_take_them_themselves():
    assert {"fedbc", "fedavg", "fedprox"} <= set(filter(plain, ALGORITHMS))
    assert not {"perfedbc", "besidefedbc", "perfedavg", "ditto", "scaffold", "qfedavg"} & set(filter(plain, ALGORITHMS))
    assert not fedbc.FedBC(bounds="theory").has_plain_steps
    other = type("Other", (fedbc.FedAvg,), {"step": lambda self, loss, carry, batch: carry})
    assert not other().has_plain_steps


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if plain(name)])
def test_steps_that_somebody_else_takes_count_as_the_methods_own(name):
    """Plain descent on `local_problem`, handed to `accept_steps`, ends where `step` ends."""
    method = ALGORITHMS[name](lr=0.1, momentum=0.5, **({"multiplier": 0.7} if name == "fedbc" else {}))
    context = Context(*(jnp.asarray(n) for n in (0, 5, 3)))
    z = {"w": jnp.asarray([1.0, -2.0])}

    def loss(params, batch):
        return jnp.sum((params["w"] - batch) ** 2)

    batches = [jnp.asarray([k, 1.0]) for k in range(3)]
    begun = method.begin(z, method.init_device(z, context), context)
    carry = begun
    for batch in batches:
        carry = method.step(loss, carry, batch)
    problem = method.local_problem(begun)
    w, velocity, losses = problem.start["w"], 0.0, 0.0
    for batch in batches:
        value, gradient = jax.value_and_grad(loss)({"w": w}, batch)
        velocity = problem.momentum * velocity + gradient["w"] + 2 * problem.multiplier * (w - z["w"])
        w, losses = w - problem.lr * velocity, losses + value
    taken = method.accept_steps(begun, StepsTaken({"w": w}, losses, jnp.asarray(3)))
    for one, other in zip(*(jax.tree.leaves(method.finish(c)) for c in (carry, taken)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize(
    ("names", "values", "wanted"),
    [
        (("drift", "loss", "weight"), [[1, 2, 1], [3, 4, 3]], [0.25, 0.75]),
        (("drift", "loss", "weight"), [[1, 2, 0], [3, 4, 0]], [0.5, 0.5]),
        ((), [[], []], [np.nan, np.nan]),
    ],
)
def test_a_coefficient_is_a_share_in_the_weights(names, values, wanted):
    """Evenly where all weights are 0; unknown where devices tell nothing."""
    report = RoundReport(1, np.asarray([2, 5]), np.asarray([10, 30]), names, np.asarray(values, float))
    columns = report_columns([report])
    np.testing.assert_array_equal(columns["coefficient"], wanted)
    np.testing.assert_array_equal(columns["coefficient_by_examples"], [0.25, 0.75])
    np.testing.assert_array_equal(list(report.means().values()), [2, 3] if names else [np.nan, np.nan])
