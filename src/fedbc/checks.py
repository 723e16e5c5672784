"""Checks of arguments. Each returns the value it was given, or raises an InputError that names argument and value."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedbc.errors import InputError, unknown

__all__ = ["choice", "integer", "number", "one_per_device", "path", "tolerance", "words"]


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    infinite: bool = False,
) -> float:
    """A real number within bounds; NaN never passes, infinity only if `infinite`."""
    wanted = "a number"
    parts = []
    if above is not None:
        parts.append(f"> {above:g}")
    if at_least is not None:
        parts.append(f">= {at_least:g}")
    if below is not None:
        parts.append(f"< {below:g}")
    if at_most is not None:
        parts.append(f"<= {at_most:g}")
    if parts:
        wanted += " " + " and ".join(parts)
    if not infinite:
        wanted = "a finite" + wanted[1:]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{name}={value!r} is not accepted: give {wanted}")
    v = float(value)
    good = not math.isnan(v) and (infinite or math.isfinite(v))
    good = good and (above is None or v > above) and (at_least is None or v >= at_least)
    good = good and (below is None or v < below) and (at_most is None or v <= at_most)
    if not good:
        raise InputError(f"{name}={value!r} is not accepted: give {wanted}")
    return v


def integer(name: str, value: object, *, at_least: int | None = None, at_most: int | None = None) -> int:
    """A whole number within bounds."""
    wanted = "a whole number"
    parts = []
    if at_least is not None:
        parts.append(f">= {at_least}")
    if at_most is not None:
        parts.append(f"<= {at_most}")
    if parts:
        wanted += " " + " and ".join(parts)
    good = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if good:
        v = int(value)  # type: ignore[call-overload]
        good = (at_least is None or v >= at_least) and (at_most is None or v <= at_most)
    if not good:
        raise InputError(f"{name}={value!r} is not accepted: give {wanted}")
    return v


def choice(name: str, value: object, options: Iterable[str]) -> str:
    """One of a few words."""
    known = list(options)
    if value not in known:
        raise unknown(name, value, known)
    return str(value)


def one_or_more(name: str, value: object, *, at_least: float, infinite: bool = False) -> float | tuple[float, ...]:
    """A number, or several."""
    several = from_array(value)
    if isinstance(several, str) or not isinstance(several, Iterable):
        return number(name, several, at_least=at_least, infinite=infinite)
    return tuple(
        number(f"{name}[{i}]", from_array(v), at_least=at_least, infinite=infinite) for i, v in enumerate(several)
    )


def from_array(value: Any) -> Any:
    """An array's numbers as Python's, whichever library's array it is; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def one_per_device(name: str, values: Sequence[object], devices: int) -> None:
    """Values that were given one by one are as many as the devices."""
    if len(values) != devices:
        raise InputError(
            f"{name} has {len(values)} values but the federation has {devices} "
            f"{'device that trains' if devices == 1 else 'devices that train'}: "
            "give one number, or one number per device"
        )


def words(name: str, value: object, options: Iterable[str]) -> tuple[str, ...]:
    """Some of a few words; one by itself is a list of one."""
    if not isinstance(value, str | Iterable):
        raise InputError(f"{name}={value!r} is not accepted: give a list with some of {', '.join(sorted(options))}")
    return tuple(choice(name, word, options) for word in ([value] if isinstance(value, str) else value))


def path(name: str, value: object) -> Path:
    """The path of a file or a folder."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise InputError(f"{name}={value!r} is not accepted: give a path")
    return Path(value)


def tolerance(value: object) -> float | str | tuple[float, ...]:
    """Check a tolerance gamma: 'learned', a number, or one number per device."""
    if isinstance(value, str):
        if value != "learned":
            raise InputError(f"tolerance={value!r} is not accepted: give 'learned', a number, or one number per device")
        return value
    return one_or_more("tolerance", value, at_least=0, infinite=True)
