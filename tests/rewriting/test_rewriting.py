"""Programs with convolutions and pooling compute the same when they are rewritten, whatever their form."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedbc
from fedbc.rewriting import direct, rewritten

DRAW = np.random.default_rng(0)
PLAIN = {"window_strides": (1, 1), "padding": "SAME"}


def numbers(*shape):
    return jnp.asarray(DRAW.normal(size=shape), jnp.float32)


def case(x, w, form, **arguments):
    """A convolution of random numbers."""
    return pytest.param(x, w, form, {"padding": "SAME", "window_strides": (1,) * (len(x) - 2), **arguments})


LAST, FIRST = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
CONVOLUTIONS = {
    "channels last": case((4, 9, 8, 3), (5, 5, 3, 7), LAST),
    "channels first": case((4, 3, 9, 8), (7, 3, 5, 5), FIRST),
    "valid": case((2, 9, 8, 3), (3, 5, 3, 7), LAST, padding="VALID"),
    "strided": case((2, 9, 8, 3), (3, 3, 3, 20), LAST, window_strides=(2, 3)),
    "strided point": case((2, 8, 8, 3), (1, 1, 3, 4), LAST, window_strides=(2, 2), padding="VALID"),
    "dilated": case((2, 12, 11, 3), (3, 3, 3, 4), LAST, rhs_dilation=(2, 3)),
    "dilated and strided": case((2, 12, 11, 3), (3, 2, 3, 4), LAST, rhs_dilation=(2, 1), window_strides=(1, 2)),
    "transposed": case((2, 5, 6, 3), (3, 4, 3, 4), LAST, lhs_dilation=(2, 2), padding=((1, 2), (3, 0))),
    "transposed, strided": case(
        (2, 5, 6, 3), (3, 4, 3, 4), LAST, lhs_dilation=(3, 2), window_strides=(2, 1), padding=((2, 1), (0, 2))
    ),
    "cropped": case((2, 9, 8, 3), (3, 3, 3, 4), LAST, padding=((-1, 2), (0, -2))),
    "depthwise": case((2, 9, 8, 6), (3, 3, 1, 6), LAST, feature_group_count=6),
    "depthwise, channels first": case((2, 6, 9, 8), (6, 1, 3, 3), FIRST, feature_group_count=6),
    "depthwise, strided": case((2, 9, 8, 20), (3, 3, 1, 20), LAST, feature_group_count=20, window_strides=(2, 2)),
    "depthwise, dilated": case((2, 9, 8, 6), (3, 3, 1, 6), LAST, feature_group_count=6, rhs_dilation=(2, 2)),
    "depthwise, several": case((2, 9, 8, 6), (3, 3, 1, 12), LAST, feature_group_count=6),
    "groups": case((2, 9, 8, 8), (3, 3, 4, 6), LAST, feature_group_count=2),
    "groups of examples": case((4, 9, 8, 3), (3, 3, 3, 6), LAST, batch_group_count=2),
    "one dimension": case((3, 30, 4), (5, 4, 6), ("NWC", "WIO", "NWC"), window_strides=(2,)),
    "one dimension, depthwise": case((3, 30, 4), (5, 1, 4), ("NWC", "WIO", "NWC"), feature_group_count=4),
    "three dimensions": case((2, 5, 6, 7, 2), (3, 2, 3, 2, 4), ("NDHWC", "DHWIO", "NDHWC"), window_strides=(1, 2, 1)),
    "many outputs": case((2, 9, 12, 18), (3, 3, 18, 83), LAST),
    "large windows": case((2, 20, 20, 3), (16, 15, 3, 5), LAST, padding="VALID"),
}


def in_a_loop(function):
    """Twice in a loop, where the cliff is; the second time with other numbers."""

    def looped(*arguments):
        shapes = jax.eval_shape(function, *arguments)
        start = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def turn(k, total):
            return jax.tree.map(jnp.add, total, function(*(a * (1 + k) for a in arguments)))

        return lax.fori_loop(0, 2, turn, start)

    return looped


def agree(function, *arguments):
    """The function, its gradient and its gradient's gradient, in a loop."""

    def gradient(*arguments):
        slopes = jnp.cos(jnp.arange(jax.eval_shape(function, *arguments).size, dtype=jnp.float32))
        return jax.grad(lambda *a: jnp.vdot(function(*a).ravel(), slopes), tuple(range(len(arguments))))(*arguments)

    def second(*arguments):
        return jax.grad(lambda *a: sum(jnp.sum(jnp.sin(g)) for g in gradient(*a)), 0)(*arguments)

    everything = in_a_loop(lambda *arguments: (function(*arguments), gradient(*arguments), second(*arguments)))
    wanted, got = jax.jit(everything)(*arguments), jax.jit(rewritten(everything))(*arguments)
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        scale = float(jnp.abs(one).max()) + 1e-6
        np.testing.assert_allclose(np.asarray(other) / scale, np.asarray(one) / scale, atol=1e-4)


@pytest.mark.parametrize(("x", "w", "form", "arguments"), CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_convolutions_of_every_kind_and_their_derivatives(x, w, form, arguments):
    agree(
        lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=form, **arguments), numbers(*x), numbers(*w) / 10
    )


WITHOUT = ("channels first", "strided", "transposed", "depthwise", "groups of examples", "one dimension")


@pytest.mark.parametrize(("x", "w", "form", "arguments"), [CONVOLUTIONS[name] for name in WITHOUT], ids=WITHOUT)
def test_convolutions_without_a_compiler(x, w, form, arguments, monkeypatch):
    monkeypatch.setattr(direct, "serves", lambda *arguments: False)
    agree(
        lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=form, **arguments), numbers(*x), numbers(*w) / 10
    )


WINDOWS = {
    "apart": ((1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "apart, with a rest": ((1, 2, 3, 1), (1, 2, 3, 1), "VALID"),
    "apart, padded": ((1, 2, 3, 1), (1, 2, 3, 1), ((0, 0), (1, 1), (1, 2), (0, 0))),
    "overlapping": ((1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "by one": ((1, 3, 2, 1), (1, 1, 1, 1), "SAME"),
    "with gaps": ((1, 2, 2, 1), (1, 3, 3, 1), "VALID"),
    "whole image": ((1, 9, 8, 1), (1, 1, 1, 1), "VALID"),
    "large": ((1, 9, 8, 1), (1, 1, 2, 1), "SAME"),
    "channels first": ((1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
}


@pytest.mark.parametrize(("sizes", "strides", "padding"), WINDOWS.values(), ids=WINDOWS.keys())
@pytest.mark.parametrize("kind", ["maximum", "mean"])
def test_pooling_of_every_kind_and_its_derivative(sizes, strides, padding, kind):
    x = numbers(3, 9, 8, 4)
    start, function = (-jnp.inf, lax.max) if kind == "maximum" else (0.0, lax.add)
    agree(lambda x: lax.reduce_window(x, start, function, sizes, strides, padding), x)


def test_of_equal_places_the_first_is_the_maximum():
    x = jnp.zeros((1, 4, 4, 1))
    for stride in (1, 2):

        def gradient(x, stride=stride):
            pooled = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, stride, stride, 1), "VALID")  # noqa: E731
            return jax.grad(lambda x: pooled(x).sum())(x)

        assert (jax.jit(rewritten(gradient))(x) == jax.jit(gradient)(x)).all()


def test_sums_on_both_sides_of_an_axis_that_stays():
    x = numbers(3, 5, 6, 4, 2)
    agree(lambda x: jnp.sum(x, (1, 2, 4)), x)
    assert "optimization_barrier" in str(jax.make_jaxpr(rewritten(lambda x: jnp.sum(x, (1, 2, 4))))(x))


def small_network(x, params):
    h = lax.conv_general_dilated(x, params["conv"], **PLAIN, dimension_numbers=LAST)
    h = lax.reduce_window(jax.nn.relu(h), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return h.reshape(len(x), -1) @ params["out"]


def test_what_is_nested_is_found():
    """In branches, loops, calls, and under jax.checkpoint: no convolution keeps a form that XLA computes slowly."""
    x, params = numbers(2, 8, 8, 3), {"conv": numbers(3, 3, 3, 4), "out": numbers(64, 5)}

    def loss(params, x):
        network = jax.checkpoint(jax.jit(small_network))
        return jnp.sum(jax.lax.cond(x.sum() > 0, network, lambda x, p: 2 * network(x, p), x, params) ** 2)

    def steps(params, x):
        def step(params, x):
            return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params, x)), None

        return jax.lax.scan(step, params, jnp.stack([x, x]))[0]

    text = str(jax.make_jaxpr(rewritten(steps))(params, x))
    forms = [line for line in text.splitlines() if "dimension_numbers=ConvDimensionNumbers" in line]
    canonical = "ConvDimensionNumbers(lhs_spec=(0, 3, 1, 2), rhs_spec=(3, 2, 0, 1), out_spec=(0, 3, 1, 2))"
    assert "select_and_scatter_add" in str(jax.make_jaxpr(steps)(params, x))
    assert "select_and_scatter_add" not in text
    assert forms or "ffi_call" in text
    assert all(canonical in line for line in forms)


def test_a_program_without_convolutions_stays_as_it_is():
    def function(x):
        return jax.lax.fori_loop(0, 3, lambda k, y: jnp.tanh(y @ y) + k, x)

    x = numbers(4, 4)
    assert str(jax.make_jaxpr(rewritten(function))(x)) == str(jax.make_jaxpr(function)(x))


def test_there_is_no_cliff_in_a_loop():
    """CPU seconds of a gradient step in a loop and alone; it was 30 times."""
    x, params = numbers(20, 16, 16, 16), {"conv": numbers(5, 5, 16, 32) / 10, "out": numbers(8 * 8 * 32, 10) / 10}

    def step(params, x):
        gradient = jax.grad(lambda p: jnp.sum(small_network(x, p) ** 2))(params)
        return jax.tree.map(lambda w, g: w - 1e-6 * g, params, gradient)

    alone = jax.jit(step)
    loop = jax.jit(rewritten(lambda params, x: jax.lax.fori_loop(0, 4, lambda k, p: step(p, x), params)))

    def seconds(program):
        jax.block_until_ready(program(params, x))
        times = []
        for _ in range(5):
            began = time.process_time()
            jax.block_until_ready(program(params, x))
            times.append(time.process_time() - began)
        return min(times)

    assert seconds(loop) / 4 < 4 * seconds(alone)


def test_a_run_of_a_convolutional_network_resumes_to_the_same_bits(tmp_path):
    import flax.linen as flax

    class Network(flax.Module):
        @flax.compact
        def __call__(self, x):
            x = flax.max_pool(flax.relu(flax.Conv(8, (3, 3), name="conv")(x)), (2, 2), strides=(2, 2))
            return flax.Dense(3)(x.reshape(len(x), -1))

    model = fedbc.models.from_flax(Network(), jnp.zeros((1, 8, 8, 2)))
    devices = [(DRAW.normal(size=(n, 8, 8, 2)).astype(np.float32), DRAW.integers(0, 3, n)) for n in (7, 12, 5)]
    federation = fedbc.data.federation(devices, devices)
    how = {"batch_size": 4, "lanes": 2, "seed": 1}
    whole = fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, rounds=4, **how)
    fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, rounds=2, checkpoint=tmp_path, **how)
    resumed = fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, rounds=4, checkpoint=tmp_path, resume=True, **how)
    for one, other in zip(*map(jax.tree.leaves, (whole.global_model, resumed.global_model)), strict=True):
        assert (one == other).all()
    # The same by hand, where nothing is compiled or rewritten, and by full batches.
    by_hand = fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, rounds=1, debug=True, **how)
    once = fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, rounds=1, **how)
    for one, other in zip(*map(jax.tree.leaves, (once.global_model, by_hand.global_model)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    fedbc.simulate(fedbc.FedBC(lr=0.1), model, federation, rounds=1, batch_size=None, seed=1)
