"""What does not fit together is one clear line before anything is computed, never broadcast into nonsense."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedbc
from fedbc.models import Model, cross_entropy, half_squared_error, is_largest

FEATURES, CLASSES = 5, 2


def devices(targets, count=3, examples=24):
    """Examples, and labels that `targets` makes of them."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(examples, FEATURES)) for _ in range(count)]
    return fedbc.data.federation([(x, targets(x)) for x in xs], [(x, targets(x)) for x in xs])


def classes(x):
    return (x.sum(1) > 0).astype(int)


def targets(x):
    return x @ np.arange(FEATURES)


def linear(outputs=1, squeeze=False, loss=half_squared_error, correct=None, init=None):
    def apply(params, x):
        found = x @ params["w"]
        return found[:, 0] if squeeze else found

    weights = {"w": jnp.zeros((FEATURES, outputs))}
    return Model(init or (lambda key: weights), apply, loss, correct)


def run(model, federation, **options):
    return fedbc.simulate(fedbc.FedAvg(lr=0.05), model, federation, rounds=30, **options)


@pytest.mark.parametrize("column", [False, True], ids=["targets (n,)", "targets (n, 1)"])
@pytest.mark.parametrize("squeeze", [False, True], ids=["outputs (n, 1)", "outputs (n,)"])
def test_regression_learns_whatever_axes_of_length_one_there_are(squeeze, column):
    """Broadcast to n × n it would learn the mean: a loss of about 15."""
    federation = devices(lambda x: targets(x)[:, None] if column else targets(x))
    assert run(linear(squeeze=squeeze), federation).history["global_test_loss"].iloc[-1] < 0.1


def test_the_squared_error_refuses_what_would_be_broadcast():
    with pytest.raises(fedbc.InputError, match=r"outputs have shape \(3,\) an example but targets \(\)"):
        half_squared_error(jnp.zeros((4, 3)), jnp.zeros(4))


REFUSED = {
    "fractional labels": (fedbc.models.logistic(FEATURES, CLASSES), targets, "float32 are not classes"),
    "outputs (n,)": (
        linear(squeeze=True, loss=cross_entropy, correct=is_largest),
        classes,
        "one number for each class",
    ),
    "labels (n, 1)": (fedbc.models.logistic(FEATURES, CLASSES), lambda x: classes(x)[:, None], "one whole number"),
    "one-hot": (fedbc.models.logistic(FEATURES, CLASSES), lambda x: np.eye(2)[classes(x)], r"labels.argmax\(-1\)"),
    "a loss of all": (linear(2, loss=lambda o, y: jnp.mean(o)), classes, r"loss gives shape \(\) for 7 examples"),
    "a loss a class": (linear(2, loss=lambda o, y: (o - y[:, None]) ** 2), classes, r"loss gives shape \(7, 2\)"),
    "n × n": (linear(1, loss=lambda o, y: (o - y) ** 2), targets, r"loss gives shape \(7, 7\) for 7 examples"),
    "no real loss": (linear(2, loss=lambda o, y: 1j * o.sum(-1)), classes, "values of type complex64: give real"),
    "a loss that raises": (linear(2, loss=lambda o, y: o @ y), classes, "loss does not take outputs of shape"),
    "a share of right": (
        linear(2, loss=cross_entropy, correct=lambda o, y: jnp.mean(o)),
        classes,
        "correct gives shape",
    ),
    "whole-number parameters": (
        linear(init=lambda key: {"w": jnp.zeros((FEATURES, 1), int)}),
        targets,
        r"parameters of type int32 \(\['w'\]\)",
    ),
    "half-width parameters": (
        linear(init=lambda key: {"w": jnp.zeros((FEATURES, 1), jnp.float16)}),
        targets,
        "float16",
    ),
    "no parameters": (Model(lambda key: {}, lambda params, x: x), classes, "has no parameters"),
    "not finite": (
        linear(init=lambda key: {"w": jnp.full((FEATURES, 1), jnp.nan)}),
        targets,
        "begins with a parameter",
    ),
    "batches mixed": (Model(linear(2).init, lambda p, x: (x @ p["w"]).sum(0)), classes, "a row per example"),
    "two outputs": (Model(linear(2).init, lambda p, x: (x, x)), classes, "gives a tuple: apply must give one array"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_line(name):
    model, labels, words = REFUSED[name]
    with pytest.raises(fedbc.InputError, match=words) as caught:
        run(model, devices(labels))
    assert "\n" not in str(caught.value)


def test_parameters_that_the_seed_does_not_determine_are_refused():
    def init(key):
        return {"w": np.random.normal(size=(FEATURES, 2))}  # noqa: NPY002

    with pytest.raises(fedbc.InputError, match="other parameters for the same key"):
        run(linear(2, loss=cross_entropy, init=init), devices(classes))

    def seeded(key):
        np.random.seed(3)  # noqa: NPY002
        return init(key)

    run(linear(2, loss=cross_entropy, init=seeded), devices(classes))


def test_python_numbers_are_parameters_too():
    model = Model(
        lambda key: {"w": np.zeros((FEATURES, 1)), "b": 0.0},
        lambda params, x: x @ params["w"] + params["b"],
        half_squared_error,
        None,
    )
    assert run(model, devices(targets)).global_model["b"].dtype == np.float32


def test_a_word_by_itself_says_what_to_evaluate():
    model, federation = fedbc.models.logistic(FEATURES, CLASSES), devices(classes)
    assert "local_accuracy" not in run(model, federation, evaluate="global").history
    with pytest.raises(fedbc.InputError, match="evaluate=None is not accepted: give a list"):
        run(model, federation, evaluate=None)
    spec = fedbc.RunSpec({"name": "fedavg"}, run={"evaluate": "local"})
    assert spec.to_dict()["run"]["evaluate"] == ["local"]


def test_what_is_no_path_is_refused(tmp_path):
    result = run(fedbc.models.logistic(FEATURES, CLASSES), devices(classes))
    for call in (lambda: result.save(5), lambda: fedbc.load(5), lambda: fedbc.load("")):
        with pytest.raises(fedbc.InputError, match=r"path=.* is not accepted: give a path"):
            call()
    with pytest.raises(fedbc.InputError, match="checkpoint=5 is not accepted"):
        run(fedbc.models.logistic(FEATURES, CLASSES), devices(classes), checkpoint=5)


def test_a_loss_of_all_with_all_is_refused_though_its_shape_is_right():
    """Outputs (n, 1) less targets (n,) are n × n; their mean over the last axis has one value per example again."""
    rng = np.random.default_rng(0)
    pairs = [(x, x[:, 0]) for x in rng.normal(size=(2, 9, 3))]
    federation = fedbc.data.federation(pairs, pairs)

    def begin(loss):
        model = fedbc.models.Model(
            lambda key: {"w": jnp.zeros((3, 1))}, lambda p, x: x @ p["w"], loss=loss, correct=None
        )
        return fedbc.simulate(fedbc.FedAvg(lr=0.1), model, federation, rounds=1)

    with pytest.raises(fedbc.InputError, match=r"loss gives an example .* by itself but .* beside another one"):
        begin(lambda outputs, y: jnp.mean((outputs - y) ** 2, axis=-1))
    assert begin(lambda outputs, y: jnp.mean((outputs - y[:, None]) ** 2, axis=-1)).rounds == 1
