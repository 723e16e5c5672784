"""Declared ranges, clipping, rounding; sums modulo 2^64 that do not wrap; the simulator with `secure=True`."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbc
from fedbc.algorithms import ALGORITHMS, latest, multiplied, weighted
from fedbc.algorithms.fedavg import FedAvg
from fedbc.algorithms.ranges import MOST_BITS, Limits, Number, Vector, fraction_bits, largest_multiple
from fedbc.algorithms.secured import Parts
from fedbc.cli import main
from fedbc.errors import InputError
from fedbc.secure.vectors import Field, Layout
from fedbc.simulation.shapes import Shapes

LIMITS = Limits(clip=10.0, examples=1000, number=1e4)


def bounded(name):
    """The method, with a finite lambda_max where it has one."""
    method = ALGORITHMS[name]
    return method(lambda_max=10.0) if "lambda_max" in {f.name for f in dataclasses.fields(method)} else method()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_is_summed_securely_to_the_plain_sum(name, make_federation, tiny_model):
    """z after a secure run equals the plain one's, up to rounding and that of 32-bit sums."""
    three = make_federation(sizes=(20, 20, 15))
    options = {"rounds": 2, "seed": 5, "evaluate": (), "sample": 2, "batch_size": None, "debug": True}
    plain = fedbc.simulate(bounded(name), tiny_model, three, **options)
    secure = fedbc.simulate(bounded(name), tiny_model, three, secure=True, **options)
    for a, b in zip(jax.tree.leaves(plain.global_model), jax.tree.leaves(secure.global_model), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)
    assert secure.devices.clipped.tolist() == [0] * 4


def test_the_error_of_rounding_alone():
    """In float64, where nothing else rounds: a sum of n at 40 bits is off by n 2^-41 at most, and the mean by 2^-41."""
    rng = np.random.default_rng(0)
    assert fraction_bits(10.0, 100, "it") == MOST_BITS
    layout = Layout({"w": Field((1000,), 10.0, 40)})
    values = rng.uniform(-10, 10, (100, 1000))
    total = np.sum([layout.encode({"w": v}) for v in values], axis=0, dtype=np.uint64)
    error = np.abs(layout.decode(total)["w"] - values.sum(axis=0)).max()
    assert 0 < error < 100 * 2.0**-41 + 1e-12


@pytest.mark.parametrize("devices", [1, 2, 3, 100, 10_000])
@pytest.mark.parametrize("largest", [1e-3, 1.0, 10.0, 12345.678, 2.0**20, 1e9])
def test_the_modulus_does_not_wrap_at_the_edge(devices, largest):
    """Every device at the end of the range; with one more bit the sum could turn its sign."""
    bits = fraction_bits(largest, devices, "it")
    most = largest_multiple(largest, bits)
    assert devices * most < 2**63
    layout = Layout({"w": Field((2,), largest, bits)})
    one = layout.encode({"w": np.array([largest, -largest])})
    assert abs(int(one.view(np.int64)[0])) <= most
    total = one * np.uint64(devices)
    found = layout.decode(total)["w"]
    np.testing.assert_allclose(found, [devices * largest, -devices * largest], rtol=1e-12, atol=devices * 2.0**-bits)
    if bits < MOST_BITS:
        assert max(devices, 2) * largest_multiple(largest, bits + 1) >= 2**63


def test_a_range_that_leaves_no_digits_is_refused():
    with pytest.raises(InputError, match="fedavg's part 'weighted' cannot be summed securely: its range of 1e\\+18"):
        Parts(FedAvg(), Shapes.of(FedAvg(), MODEL).summand, Limits(1e15, 1000, 1e4), 100)
    with pytest.raises(InputError, match="its range is not finite"):
        fraction_bits(math.inf, 3, "it")


def test_values_out_of_range_or_not_finite_are_held_to_it():
    layout = Layout({"w": Field((4,), 1.0, 40)})
    found = layout.decode(layout.encode({"w": np.array([5.0, -np.inf, np.nan, 0.5])}))["w"]
    np.testing.assert_allclose(found, [1, -1, 0, 0.5], atol=1e-11)
    with pytest.raises(ValueError, match="w has 3 numbers, not 4"):
        layout.encode({"w": np.zeros(3)})


MODEL = fedbc.models.logistic(4, 3)
Z = MODEL.init(jax.random.key(0))


def sent(method, summand, limits=LIMITS):
    parts = Parts(method, summand, limits, 10)
    one = parts.send(Z, summand, {"loss": jnp.asarray(2.0), "odd": jnp.asarray(math.inf)})
    return parts, one


def shifted(norm):
    """A model at this distance from z."""
    number = sum(leaf.size for leaf in jax.tree.leaves(Z))
    return jax.tree.map(lambda a: a + norm / math.sqrt(number), Z)


def test_a_move_is_clipped_to_the_stated_norm_times_its_weight():
    for norm, counted in ((9.9, 0.0), (40.0, 1.0)):
        parts, one = sent(FedAvg(), weighted.summand(shifted(norm), jnp.asarray(30.0)))
        moved = math.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(one.parts["weighted"])))
        assert moved == pytest.approx(30 * min(norm, 10.0), rel=1e-5)
        assert float(one.clipped["weighted"]) == counted
        back = weighted.average(parts.receive(Z, one))
        assert float(fedbc.trees.sqdist(back, shifted(min(norm, 10.0)))) < 1e-8


def test_a_weight_is_clipped_and_the_move_with_it():
    _, one = sent(FedAvg(), weighted.summand(shifted(1.0), jnp.asarray(4000.0)))
    assert float(one.parts["weight"]) == 1000
    assert float(one.clipped["weight"]) == 1
    assert math.sqrt(float(fedbc.trees.sqnorm(one.parts["weighted"]))) == pytest.approx(1000, rel=1e-5)


def test_what_is_not_finite_counts_as_no_move():
    broken = jax.tree.map(lambda a: a * jnp.nan, Z)
    _, one = sent(FedAvg(), weighted.summand(broken, jnp.asarray(4.0)))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(one.parts["weighted"]))
    assert float(one.clipped["weighted"]) == 1
    assert (float(one.told["loss"]), float(one.squares["loss"])) == (2, 4)
    assert (float(one.told["odd"]), float(one.clipped["told"])) == (1e4, 1)


def test_a_positive_lambda_min_needs_no_plain_model():
    method = fedbc.FedBC(lambda_min=0.01, lambda_max=1.0, multiplier=0.5)
    parts, one = sent(method, multiplied.share(shifted(1.0), jnp.asarray(0.5)))
    assert set(one.parts) == {"weighted", "weight", "devices"}
    assert float(fedbc.trees.sqdist(method.update(Z, parts.receive(Z, one), jnp.asarray(3.0)), shifted(1.0))) < 1e-10
    _, both = sent(fedbc.FedBC(lambda_max=1.0), multiplied.share(shifted(1.0), jnp.asarray(0.0)))
    assert "plain" in both.parts


class Added(NamedTuple):
    move: object
    extra: object


@dataclasses.dataclass(frozen=True)
class Own(FedAvg):
    """A method of a user's own with a part that it says nothing of."""

    name = "own"

    def ranges(self, limits):
        return Added(Vector(limits.clip), None)


def test_a_part_without_a_range_is_refused_by_its_name():
    with pytest.raises(InputError, match="own cannot be summed securely: its part 'extra' has no declared range"):
        Parts(Own(), Added(Z, jnp.zeros(())), LIMITS, 3)

    @dataclasses.dataclass(frozen=True)
    class Silent(FedAvg):
        name = "silent"

        def ranges(self, limits):
            return None

    with pytest.raises(InputError, match="silent cannot be summed securely: its part 'weighted, weight'"):
        Parts(Silent(), Shapes.of(Silent(), MODEL).summand, LIMITS, 3)


@pytest.mark.parametrize(
    ("method", "limits", "match"),
    [
        (
            fedbc.FedBC(),
            LIMITS,
            "the part 'weight', lambda_i, has no declared range .* give a finite lambda_max",
        ),
        (fedbc.FedBC(bounds="theory"), LIMITS, "and bounds='given'"),
        (fedbc.FedAvg(), LIMITS._replace(examples=0), "run.most-examples"),
    ],
)
def test_parts_whose_range_is_an_argument_say_which(method, limits, match):
    with pytest.raises(InputError, match=match):
        Parts(method, Shapes.of(method, MODEL).summand, limits, 3)


def test_what_cannot_be_summed_securely_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["run", "fedbc", "--secure", "--devices", "6", "--rounds", "1"])
    assert "the part 'weight', lambda_i, has no declared range" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_averaged_statistics_have_no_range(make_federation):
    from fedbc.algorithms.statistics import Summand, WithStatistics

    summand = Summand(weighted.summand(Z, jnp.ones(())), Z, jnp.ones(()))
    with pytest.raises(InputError, match="its part 'statistics' has no declared range"):
        Parts(WithStatistics(FedAvg(), averaged=True), summand, LIMITS, 3)


def test_a_change_of_a_share_is_sent_around_z():
    """FedBC's server over all devices: what joins is a model less z, what changes is a change."""
    method = fedbc.FedBC(server="all", lambda_max=2.0)
    share = multiplied.kept_share(shifted(1.0), jnp.asarray(0.5))
    old = multiplied.kept_share(shifted(2.0), jnp.asarray(1.5))
    for joined in (0.0, 1.0):
        change = latest.change(share, old, jnp.asarray(joined))
        parts, one = sent(method, change)
        for a, b in zip(jax.tree.leaves(parts.receive(Z, one)), jax.tree.leaves(change), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        assert sum(float(v) for n, v in one.clipped.items() if n != "told") == 0


def test_clipping_shows_in_the_simulator(make_federation, tiny_model):
    three = make_federation(sizes=(20, 20, 15))
    run = fedbc.simulate(fedbc.FedAvg(lr=0.5), tiny_model, three, rounds=1, secure=True, secure_clip=1e-3, evaluate=())
    assert run.devices.clipped.tolist() == [1, 1, 1]
    free = fedbc.simulate(fedbc.FedAvg(lr=0.5), tiny_model, three, rounds=1, evaluate=())
    assert float(fedbc.trees.sqdist(run.global_model, free.global_model)) > 1e-6
    with pytest.raises(InputError, match="secure_clip"):
        fedbc.simulate(fedbc.FedAvg(), tiny_model, three, rounds=1, secure=True, secure_clip=0)


def test_numbers_and_vectors_know_their_range():
    parts = Parts(fedbc.SCAFFOLD(lr=0.1), Shapes.of(fedbc.SCAFFOLD(), MODEL).summand, LIMITS, 3)
    assert parts.largest == {"move": 10, "weight": 1, "c": 100, "new_weight": 1, "new_members": 1}
    assert isinstance(parts.ranges["weight"], Number)
