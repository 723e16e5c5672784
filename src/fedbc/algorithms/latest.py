"""The mean, over all devices that ever took part, of what each of them sent last; kept up to date by a sum.

Methods whose server averages over *all* devices (FedPD, L2GD) cannot see the devices that sit a round out. The
server keeps the sum of everyone's last message, and a device adds the change of its own. Everyone taking part, this is
the plain mean; under sampling, absent devices count with what they sent last, so that a fixed point of the method with
full participation stays one. A device that never took part counts for nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedbc import trees
from fedbc.algorithms.base import Params, Scalar
from fedbc.algorithms.ranges import Limits, Number, Vector
from fedbc.errors import InputError

CHANGES = 4
"""From one of a device's rounds to its next it may have been away: its change is allowed so many times the norm of
x - z."""


class Latest(NamedTuple):
    """At the server the sum of the last messages and of their senders; as a summand, one device's change of both."""

    total: Params
    senders: Scalar


def start(like: Params) -> Latest:
    """Nobody took part yet."""
    return Latest(trees.zeros_like(like), jnp.zeros((), float))


def change(new: Params, old: Params, joined: Scalar) -> Latest:
    """What a device adds: its new message less its old one, if it `joined` (1) before, and itself if not (0)."""
    return Latest(trees.axpy(-joined, old, new), 1 - joined)


def check_senders(change: Latest) -> None:
    """An InputError if a device joins otherwise than once, or not at all."""
    if float(change.senders) not in (0, 1):
        raise InputError(f"it joins as {float(change.senders):g} devices")


def ranges(limits: Limits) -> Any:
    """The ranges of `Latest`: a model that joins is sent as its difference from z, a change as it is."""
    total: Any = Vector(CHANGES * limits.clip, around="senders")
    senders: Any = Number(0, 1)
    return Latest(total, senders)


def add(kept: Latest, total: Latest) -> Latest:
    """The server's sum after a round."""
    return trees.add(kept, total)


def mean(kept: Latest) -> Params:
    """The mean over the devices that took part so far."""
    return trees.mean(kept.total, kept.senders)
