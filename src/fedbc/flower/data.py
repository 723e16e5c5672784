"""One device's data: what a user's data function gives, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Context

from fedbc.data.federation import Federation, Pair, Split, federation
from fedbc.errors import InputError

OneDevice = tuple[Pair, Pair] | Federation
LoadData = Callable[[int, Context], OneDevice]
"""From the device's number and Flower's context to its training and test pairs (x, y), or a federation of one device"""


def one_device(whole: Federation, device: int) -> Federation:
    """The federation of a single device of another one, as if it had been loaded alone."""

    def own(split: Split) -> Split:
        x, y = split.of(device)
        return Split(x, y, np.asarray([0, len(y)]))

    return replace(
        whole,
        train=own(whole.train),
        test=own(whole.test),
        name=f"{whole.name}, device {device}",
        device_names=whole.names_of([device]),
    )


def check_one_device(loaded: OneDevice, device: int) -> Federation:
    """What a data function gave for this device, as a federation of it alone."""
    if isinstance(loaded, Federation):
        alone = loaded
    elif isinstance(loaded, Sequence) and len(loaded) == 2:
        alone = _join_pairs(*loaded, f"device {device}")
    else:
        raise InputError(f"the data function gave a {type(loaded).__name__}: give ((x, y), (x, y)), train and test")
    if alone.devices != 1:
        raise InputError(f"the data function gave {alone.devices} devices: give this device's data only")
    return alone


def _join_pairs(train: Pair, test: Pair, name: str) -> Federation:
    """A federation of one device; it may have no test examples, but must have training examples."""
    if len(test[1]):
        return federation([train], [test], name=name)
    alone = federation([train], [train], name=name)
    nothing = Split(alone.train.x[:0], alone.train.y[:0], np.asarray([0, 0]))
    return replace(alone, test=nothing)


def device_number(node_config: Any, devices: int | None = None) -> int:
    """The SuperNode's partition id; one that is missing or out of range is an InputError."""
    number = node_config.get("partition-id")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InputError(
            f"partition-id={number!r} is not accepted: start the SuperNode with --node-config 'partition-id=0', "
            "the device's number from 0"
        )
    if devices is not None and number >= devices:
        raise InputError(f"partition-id={number} is not accepted: the run has devices 0 to {devices - 1}")
    return number
