"""How much local work a device does in a round: its epochs or its steps (K_i).

    20           the same for all
    [3, 5, ...]  one per device
    (1, 5)       from a draw between the two, both included, anew for each device and round; as text "1-5"

A draw is a function of (seed, round, device), like all draws of a run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from fedbc import checks
from fedbc.errors import InputError

Array = np.ndarray
Given = int | str | Sequence[int]
"""What an argument may be."""


class OnePerDevice(tuple[Any, ...]):
    """Values by device; a plain pair is a draw."""


def canonical(name: str, value: Any) -> int | str | OnePerDevice:
    """An amount as settings keep it: a number, text for a draw, or one number per device."""
    value = checks.from_array(value)
    advice = f"{name}={value!r} is not accepted: give a whole number >= 1, one per device, or a draw such as '1-5'"
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", value)
        if found is None:
            raise InputError(advice)
        value = (int(found[1]), int(found[2]))
    if isinstance(value, tuple) and not isinstance(value, OnePerDevice):
        if len(value) != 2:
            raise InputError(f"{advice}; a list is one per device, a pair is a draw")
        low = checks.integer(f"{name}: the lower end of the draw", value[0], at_least=1)
        high = checks.integer(f"{name}: the upper end of the draw", value[1], at_least=low)
        return f"{low}-{high}"
    if isinstance(value, Sequence):
        numbers = (checks.from_array(v) for v in value)
        return OnePerDevice(checks.integer(f"{name}[{i}]", v, at_least=1) for i, v in enumerate(numbers))
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(advice)
    return int(value)


def ends(amount: int | str | OnePerDevice) -> tuple[int, int]:
    """The least and the most of an amount that is no list."""
    if isinstance(amount, str):
        low, high = re.findall(r"\d+", amount)
        return int(low), int(high)
    assert isinstance(amount, int)
    return amount, amount


def most(amount: int | str | OnePerDevice, devices: int) -> Array:
    """The most that each device may have to do."""
    if isinstance(amount, OnePerDevice):
        return np.asarray(amount, int)
    return np.full(devices, ends(amount)[1])


def amounts_of(amount: int | str | OnePerDevice, devices: Array, numbers: Array) -> Array:
    """What these devices do; `numbers` are their random 64-bit numbers of the round."""
    if isinstance(amount, OnePerDevice):
        return np.asarray(amount, int)[devices]
    low, high = ends(amount)
    upper = numbers >> np.uint64(32)  # 32 bits that are spread over the span
    return (
        (low + ((upper * np.uint64(high - low + 1)) >> np.uint64(32)).astype(int))
        if high > low
        else np.full(len(devices), low)
    )
