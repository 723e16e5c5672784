"""Values that are a name with arguments, in one line of text or a table: "adam,b1=0.8" is {name = "adam", b1 = 0.8}."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedbc.errors import InputError, unknown

__all__ = ["call", "parse"]


def parse(what: str, value: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of such a value; `what` is the argument that it was given for."""
    if isinstance(value, Mapping):
        table = dict(value)
        if not isinstance(table.get("name"), str):
            raise InputError(f"{what}={value!r} is not accepted: a table needs a name, such as {{name = 'cosine'}}")
        return table.pop("name"), table
    name, *rest = (part.strip() for part in value.split(","))
    arguments = {}
    for part in rest:
        key, equals, text = part.partition("=")
        if not equals or key in arguments:
            raise InputError(f"{what}={value!r} is not accepted: give a name, then key=value after commas")
        arguments[key.strip()] = _plain(text.strip())
    return name, arguments


def _plain(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def call(what: str, value: Any, choices: Mapping[str, Callable[..., Any]]) -> Any:
    """What the named choice makes of its arguments; a wrong name or argument is told with the nearest match."""
    name, arguments = parse(what, value)
    if name not in choices:
        raise unknown(what, name, choices)
    known = inspect.signature(choices[name]).parameters
    for key in arguments:
        if key not in known:
            raise unknown(f"{what}: argument of {name}", key, known or ["(none)"])
    for key, argument in known.items():
        if argument.default is inspect.Parameter.empty and key not in arguments:
            raise InputError(f"{what}={value!r} lacks {key}: give it, such as {what}='{name},{key}=...'")
    return choices[name](**arguments)
