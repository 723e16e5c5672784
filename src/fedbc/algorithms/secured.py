"""Any method as devices send it under masks: parts within their ranges, rounded to multiples, diagnostics as sums.

    device:  each part of the summand is clipped to its declared range (`fedbc.algorithms.ranges`), and rounded to the
             nearest multiple of 2^-b; beside them go each diagnostic, its square, and which parts had to be clipped
    server:  from the sum of these, z Σ w is put back where it was taken off, and the method's own update follows

`Parts` does this for a deployment, where the multiples become numbers modulo 2^64 (`fedbc.secure.vectors`), and for the
simulator, where `Secured` wraps the method: rounding and clipping cost the same there, and nothing is encrypted.

What is clipped is lost to methods that keep books on both sides: where a server adds up changes (FedPD, L2GD, c of
SCAFFOLD, FedBC with server="all"), device and server differ by it from then on. It is counted, so that the norm can be
raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedbc import checks, trees
from fedbc.algorithms.base import Algorithm, Context, Duals, Finished, Params, Scalar
from fedbc.algorithms.ranges import (
    Limits,
    Number,
    Range,
    Unused,
    Vector,
    beside,
    bits_with_noise,
    declared,
    fraction_bits,
    members,
)
from fedbc.algorithms.statistics import trained
from fedbc.algorithms.wrapping import Wrapping
from fedbc.errors import InputError


class Sent(NamedTuple):
    """What a device sends, and the sum of such."""

    parts: dict[str, Any]
    """the summand's parts by their names"""
    told: dict[str, Scalar]
    """the diagnostics"""
    squares: dict[str, Scalar]
    """and their squares, for variances over devices"""
    clipped: dict[str, Scalar]
    """1 where a part, or any of the diagnostics (`told`), was out of its range"""
    devices: Scalar
    """1"""


class Parts:
    """How a method's summand is sent, by so many devices at most."""

    def __init__(self, algorithm: Algorithm, summand: Any, limits: Limits, devices: int) -> None:
        """`summand` has the form of the method's summand, such as its shapes."""
        self.limits, self.form = limits, algorithm.ranges(limits)
        found = list(declared(self.form, summand, algorithm.name))
        self.ranges: dict[str, Range] = {name: range for name, range, _ in found}
        self.largest = {n: self._largest(n) for n, range in self.ranges.items() if not isinstance(range, Unused)}
        whose = f"{algorithm.name}'s part"
        self.noise = {n: getattr(self.ranges[n], "noise", 0.0) for n in self.largest}
        self.bits = {
            n: bits_with_noise(most, self.noise[n], devices, f"{whose} {n!r}") for n, most in self.largest.items()
        }
        number = limits.number
        self.told_bits = fraction_bits(number, devices, "a diagnostic")
        self.square_bits = fraction_bits(number**2, devices, "a diagnostic's square")

    def _largest(self, name: str) -> float:
        """The most that any number of a part can be."""
        range = self.ranges[name]
        if isinstance(range, Number):
            return max(abs(range.low), abs(range.high))
        assert isinstance(range, Vector)
        return range.most * (self._largest(beside(name, range.weight)) if range.weight else 1.0)

    def send(self, z: Params, summand: Any, info: Mapping[str, Scalar]) -> Sent:
        """What a device sends."""
        given = {name: value for name, _, value in declared(self.form, summand, "")}
        parts, clipped = {}, {}
        for name in self.largest:
            parts[name], outside = self._clipped(name, given, z)
            clipped[name] = jnp.zeros(()) if self.noise[name] else outside  # what noise hides is not told as it is
        number = self.limits.number
        values = {name: jnp.asarray(value, float) for name, value in info.items()}
        told = {name: jnp.clip(jnp.nan_to_num(value, nan=0.0), -number, number) for name, value in values.items()}
        beyond = [jnp.logical_not(told[name] == values[name]) for name in told]
        clipped["told"] = jnp.any(jnp.asarray(beyond)).astype(float) if beyond else jnp.zeros(())
        return Sent(
            {name: _rounded(part, self.bits[name]) for name, part in parts.items()},
            {name: _rounded(value, self.told_bits) for name, value in told.items()},
            {name: _rounded(value**2, self.square_bits) for name, value in told.items()},
            clipped,
            jnp.ones(()),
        )

    def receive(self, z: Params, total: Sent) -> Any:
        """The sum of the summands, from the sum of what was sent."""
        whole: dict[str, Any] = {}
        for name, part in total.parts.items():
            range = self.ranges[name]
            around = range.around if isinstance(range, Vector) else None
            whole[name] = trees.axpy(total.parts[beside(name, around)], z, part) if around else part
        return self._formed(self.form, whole, ())

    def _formed(self, form: Any, whole: dict[str, Any], path: tuple[str, ...]) -> Any:
        name = ".".join(path)
        if form is None:
            return None
        if isinstance(form, Unused):
            return trees.zeros_like(whole[beside(name, form.like)])
        if isinstance(form, Number | Vector):
            return whole[name]
        inner = {field: self._formed(part, whole, (*path, field)) for field, part in (members(form) or {}).items()}
        return type(form)(**inner)

    def _number(self, name: str, given: dict[str, Any]) -> Scalar:
        """A number of the summand, within its range."""
        range = self.ranges[name]
        assert isinstance(range, Number)
        value = jnp.asarray(given[name], float)
        return jnp.clip(jnp.nan_to_num(value, nan=range.low), range.low, range.high)

    def _clipped(self, name: str, given: dict[str, Any], z: Params) -> tuple[Any, Scalar]:
        """A part within its range, and whether (1) it was not."""
        range = self.ranges[name]
        if isinstance(range, Number):
            value = self._number(name, given)
            return value, jnp.where(value == given[name], 0.0, 1.0)
        assert isinstance(range, Vector)
        part = given[name]
        if range.around:
            part = trees.axpy(-jnp.asarray(given[beside(name, range.around)], float), z, part)
        most: Any = range.most
        if range.weight:
            sibling = beside(name, range.weight)
            old, weight = jnp.asarray(given[sibling], float), self._number(sibling, given)
            part = trees.scale(jnp.where(old > 0, weight / jnp.where(old > 0, old, 1.0), 1.0), part)
            most = most * weight
        norm = jnp.sqrt(trees.sqnorm(part))
        good = jnp.isfinite(norm)
        factor = jnp.where(good & (norm > most), most / jnp.where(norm > 0, norm, 1.0), 1.0)
        largest = self.largest[name]
        finite = jax.tree.map(lambda a: jnp.where(good, a, 0), part)
        part = jax.tree.map(lambda a: jnp.clip(factor * a, -largest, largest), finite)
        return part, jnp.where(norm <= most, 0.0, 1.0)


def _rounded(tree: Any, bits: int) -> Any:
    """The nearest multiples of 2^-bits; exact, as only the exponent changes before and after."""
    step = 2.0**bits
    return jax.tree.map(lambda a: jnp.round(jnp.asarray(a, float) * step) / step, tree)


class Server(NamedTuple):
    """The method's message, and z."""

    inner: Any
    z: Params


class Carry(NamedTuple):
    """The method's own, and z."""

    inner: Any
    z: Params


@dataclass(frozen=True)
class Secured(Wrapping):
    """A method in the simulator whose summands are clipped and rounded as a secure sum needs it."""

    name: ClassVar[str] = "secured"

    parts: Parts

    def __post_init__(self) -> None:
        checks.number("secure_clip", self.parts.limits.clip, above=0)
        if any(self.parts.noise.values()):
            raise InputError(
                "secure=True does not apply to a private method: on a real device noise comes after rounding; in the "
                "simulator look at the two one by one"
            )

    def broadcast(self, server: Any) -> Server:
        """The method's message, and z."""
        return Server(self.algorithm.broadcast(server), trained(self.algorithm, self.algorithm.global_model(server)))

    def init_device(self, params: Params, context: Context) -> Any:
        """The method's."""
        return self.algorithm.init_device(params, context)

    def local_model(self, device: Any) -> Params:
        """x_i"""
        return self.algorithm.local_model(device)

    def duals(self, device: Any) -> Duals | None:
        """The method's."""
        return self.algorithm.duals(device)

    def begin(self, message: Server, device: Any, context: Context) -> Carry:
        """As the method does."""
        return Carry(self.algorithm.begin(message.inner, device, context), message.z)

    def finish(self, carry: Carry) -> Finished:
        """The method's end, and what is sent of it; `clipped` counts the parts that were out of range."""
        done = self.algorithm.finish(carry.inner)
        sent = self.parts.send(carry.z, done.summand, done.info)
        counted = sum(value for name, value in sent.clipped.items() if name != "told")
        return Finished(done.device, sent, {**done.info, "clipped": jnp.asarray(counted, float)})

    def update(self, server: Any, total: Sent, population: Scalar) -> Any:
        """The method's, from the sum of what was sent."""
        z = trained(self.algorithm, self.algorithm.global_model(server))
        return self.algorithm.update(server, self.parts.receive(z, total), population)
