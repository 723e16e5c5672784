"""FedBC's server: the mean of local models weighted by their multipliers, over the sampled devices or over all.

    server "sampled"   z = Σ lambda_i x_i / Σ lambda_i over the devices of the round (the paper's Algorithm 1)
    server "all"       the same over every device that ever took part, with its last lambda_i x_i (the paper's equation
                       before devices are sampled): the server keeps the sums, a device adds the change of its own

Where every lambda_i is 0 the mean is 0/0 on paper: the plain mean takes its place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedbc import trees
from fedbc.algorithms import following, latest
from fedbc.algorithms.base import Params, Scalar
from fedbc.algorithms.following import Followed
from fedbc.algorithms.ranges import Limits, Number, Unused, Vector
from fedbc.errors import InputError

ROUNDING = 1e-5
"""How far a device's product lambda x may be from the server's, relative to its size."""


class Device(NamedTuple):
    """What a FedBC device keeps."""

    x: Params
    multiplier: Scalar
    tolerance: Scalar
    smoothness: Scalar | None = None
    """L_i as measured so far; only for bounds="theory\""""
    joined: Any = None
    """whether (1) it took part before; only for server="all\""""
    seen: Any = None
    """the last round that it took part in; only for absent="follow\""""


def joining(method: Any, z: Params, tolerance: Scalar) -> Device:
    """A device that takes part for the first time."""
    unknown = jnp.zeros(()) if method.bounds == "theory" else None
    joined = jnp.zeros((), float) if method.server == "all" else None
    seen = jnp.zeros((), jnp.int32) if method.absent == "follow" else None
    return Device(z, jnp.asarray(method.multiplier, float), tolerance, unknown, joined, seen)


class Total(NamedTuple):
    """The sum that the server sees."""

    weighted: Params
    """Σ lambda_i x_i"""
    weight: Scalar
    """Σ lambda_i"""
    plain: Params
    """Σ x_i, for the case that every lambda_i is 0"""
    devices: Scalar
    weighing: Any = None
    """how many lambda_i are above 0; only for server="all\", where rounding leaves a rest of Σ lambda_i"""


class Everyone(NamedTuple):
    """The state of a server "all"."""

    z: Params
    sent: latest.Latest
    """of `Total`"""


Server = Params | Everyone | Followed
"""FedBC's state at the server: z alone, or with what `server` or `absent` ask for."""


def share(x: Params, multiplier: Scalar) -> Total:
    """One device's part: (lambda_i x_i, lambda_i, x_i, 1)."""
    return Total(trees.scale(multiplier, x), multiplier, x, jnp.ones_like(multiplier))


def kept_share(x: Params, multiplier: Scalar) -> Total:
    """The same for a server that keeps the sum."""
    return share(x, multiplier)._replace(weighing=(multiplier > 0).astype(multiplier.dtype))


def without_rest(kept: Total) -> Total:
    """0 where no lambda_i is above 0 any more: what rounding leaves of a sum of changes would make the mean."""
    some = kept.weighing > 0
    weighted, weight = trees.where(some, (kept.weighted, kept.weight), trees.zeros_like((kept.weighted, kept.weight)))
    return kept._replace(weighted=weighted, weight=weight)


def mean(total: Total) -> Params:
    """Σ lambda_i x_i / Σ lambda_i, or the plain mean where Σ lambda_i = 0."""
    some = total.weight > 0
    weighted = trees.mean(total.weighted, jnp.where(some, total.weight, 1))
    return trees.where(some, weighted, trees.mean(total.plain, total.devices))


def ranges(limits: Limits, method: Any) -> Any:
    """The ranges of a share, or of the change of one: x is sent as its difference from z.

    With lambda_i > 0 the plain mean is never needed, and x_i does not travel a second time.
    """
    low, high = method.lambda_min, method.lambda_max
    if high == math.inf:
        raise InputError(
            f"{method.name}: the part 'weight', lambda_i, has no declared range for a secure sum: give a finite "
            "lambda_max" + (", and bounds='given'" if method.bounds == "theory" else "")
        )
    total: Any
    if method.server == "all":
        twice = latest.CHANGES * limits.clip
        moves = Vector(twice * high, around="weight"), Vector(twice, around="devices")
        total = Total(moves[0], Number(-high, high), moves[1], Number(0, 1), Number(-1, 1))  # type: ignore[arg-type]
        return latest.Latest(total, Number(0, 1))  # type: ignore[arg-type]
    plain: Any = Unused("weighted") if low > 0 else Vector(limits.clip, "devices", "devices")
    return Total(Vector(limits.clip, "weight", "weight"), Number(low, high), plain, Number(1, 1))  # type: ignore[arg-type]


def start(z: Params, server: str) -> Server:
    """Nobody has sent anything yet."""
    return Everyone(z, latest.start(kept_share(z, jnp.zeros((), float)))) if server == "all" else z


def global_model(server: Server) -> Params:
    """z"""
    return server.z if isinstance(server, Everyone | Followed) else server


def updated(server: Server, total: Total | latest.Latest) -> Server:
    """With what the devices of a round sent; to a server "all", its changes."""
    if isinstance(server, Everyone):
        assert isinstance(total, latest.Latest)
        sent = latest.add(server.sent, total)
        sent = sent._replace(total=without_rest(sent.total))
        return Everyone(mean(sent.total), sent)
    assert isinstance(total, Total)
    z = mean(total)
    return following.moved(server, z) if isinstance(server, Followed) else z


def summand(x: Params, multiplier: Scalar, old: Device | None) -> Total | latest.Latest:
    """A device's part; where `old` says what it sent before, its change."""
    if old is None:
        return share(x, multiplier)
    return latest.change(kept_share(x, multiplier), kept_share(old.x, old.multiplier), old.joined)


def check_share(summand: Total | latest.Latest, low: float, high: float) -> None:
    """lambda_i is within its bounds, up to rounding, lambda_i x_i is the product, and the device counts once.

    Of a change alone nothing is known.
    """
    if isinstance(summand, latest.Latest):
        return
    multiplier, slack = float(summand.weight), 1e-6
    if not low * (1 - slack) <= multiplier <= high * (1 + slack):
        raise InputError(f"its lambda is {multiplier:g}, out of the bounds {low:g} to {high:g}")
    if float(summand.devices) != 1:
        raise InputError(f"it counts as {float(summand.devices):g} devices")
    product = trees.scale(summand.weight, summand.plain)
    apart = float(trees.sqdist(summand.weighted, product))
    if not apart <= ROUNDING**2 * float(trees.sqnorm(product)):
        raise InputError("its lambda x is not the product of its lambda and its x")
