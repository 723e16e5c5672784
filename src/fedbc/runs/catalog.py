"""The names that a specification may use, with their options: read off the classes and functions themselves."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedbc import data, models
from fedbc.algorithms import ALGORITHMS
from fedbc.algorithms.base import Algorithm
from fedbc.errors import InputError, unknown
from fedbc.runs import own

A = TypeVar("A", bound=Algorithm)


_KINDS = {
    "int": "INTEGER",
    "float": "NUMBER",
    "str": "TEXT",
    "Sequence[float]": "LIST",
    "Sequence[int]": "LIST",
    "Sequence[str]": "LIST",
    "FineTune": "NAME=VALUE,…",
    "Mapping[str, Any]": "NAME=VALUE,…",
    "None": "none",
}


@dataclass(frozen=True)
class Option:
    """One argument of an entry."""

    name: str
    annotation: str
    default: Any
    help: str

    @property
    def is_flag(self) -> bool:
        """Whether it is yes or no."""
        return self.annotation == "bool"

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default in (inspect.Parameter.empty, dataclasses.MISSING)

    @property
    def kind(self) -> str:
        """What it takes, as help spells it: NUMBER, INTEGER, TEXT, LIST, or NAME=VALUE, and words such as none."""
        annotated = [kind.strip() for kind in self.annotation.split("|")]
        words = [word for kind, word in _KINDS.items() if kind in annotated]
        return "|".join(dict.fromkeys(words)) or "VALUE"

    def from_plain(self, value: Any) -> Any:
        """A value from JSON or TOML, where sequences are lists, and JSON's infinity and TOML's None are words."""
        if isinstance(value, list):
            return tuple(value)
        if value == "none" and "None" in self.annotation:
            return None
        return math.inf if value == "inf" and "float" in self.annotation else value

    def parse(self, text: str) -> Any:
        """A value from the command line's text; what does not look like the type asked for is an InputError."""
        kinds = [kind.strip() for kind in self.annotation.split("|")]
        if "None" in kinds and text.lower() == "none":
            return None
        if "Sequence[float]" in kinds and "," in text:
            return tuple(_number(self.name, part, float) for part in text.split(","))
        if "Sequence[int]" in kinds and "," in text:
            return [_number(self.name, part, int) for part in text.split(",")]
        if "Sequence[str]" in kinds:
            return tuple(text.split(","))
        if "Mapping[str, Any]" in kinds and "str" in kinds:
            return text  # a name with arguments, such as "adam,b1=0.8", which whoever takes it reads
        if "FineTune" in kinds or "Mapping[str, Any]" in kinds:
            return dict(_assignment(self.name, part) for part in text.split(","))
        for kind, parser in (("int", int), ("float", float)):
            if kind in kinds:
                try:
                    return parser(text)
                except ValueError:
                    continue
        if "str" in kinds:
            return text
        wanted = "a whole number" if "int" in kinds else "a number"
        if "None" in kinds:
            wanted += ", or none"
        raise InputError(f"{self.name}={text!r} is not accepted: give {wanted}")


def _assignment(name: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{name} has {text!r}: give assignments separated by commas, such as steps=1,lr=0.01,on=train")
    for parser in (int, float):
        try:
            return key, parser(value)
        except ValueError:
            continue
    return key, value


def _number(name: str, text: str, parser: type) -> Any:
    try:
        return parser(text)
    except ValueError:
        raise InputError(f"{name} has {text!r} in its list: give numbers separated by commas") from None


@dataclass(frozen=True)
class Entry:
    """Something that can be named in a specification."""

    kind: str
    name: str
    build: Callable[..., Any]
    summary: str
    options: Mapping[str, Option]

    def make(self, arguments: Mapping[str, Any]) -> Any:
        """Build it; an argument it does not have is an InputError."""
        for name in arguments:
            if name not in self.options:
                raise unknown(f"{self.kind} {self.name}: argument", name, self.options or ["(none)"])
        return self.build(**{name: self.options[name].from_plain(value) for name, value in arguments.items()})


def _of_dataclass(kind: str, name: str, cls: Any) -> Entry:
    options = {
        f.name: Option(f.name, str(f.type), f.default, f.metadata.get("help", "")) for f in dataclasses.fields(cls)
    }
    return Entry(kind, name, cls, _first_line(cls), options)


def _of_function(kind: str, function: Callable[..., Any], name: str | None = None) -> Entry:
    options = {
        p.name: Option(p.name, str(p.annotation), p.default, argument_help(function, p.name))
        for p in inspect.signature(function).parameters.values()
    }
    return Entry(kind, name or function.__name__, function, _first_line(function), options)


def argument_help(function: Callable[..., Any], name: str) -> str:
    """What a function's docstring says of an argument, in a paragraph that starts with its name and a colon."""
    found = re.search(rf"^{name}: (.+(?:\n {{4,}}.+)*)", inspect.getdoc(function) or "", re.MULTILINE)
    return re.sub(r"\s+", " ", found.group(1)).rstrip(".") if found else ""


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0].rstrip(".")


DATASETS = (data.synthetic, data.mnist, data.cifar10, data.shakespeare)
MODELS = (models.logistic, models.mlp, models.cnn, models.lstm, models.linear)
OWN_DATA = _of_function("data", data.read, own.OWN)
OWN_MODEL = _of_function("model", own.load_model, own.OWN)

CATALOG: dict[str, dict[str, Entry]] = {
    "algorithm": {name: _of_dataclass("algorithm", name, cls) for name, cls in ALGORITHMS.items()},
    "data": {f.__name__: _of_function("data", f) for f in DATASETS} | {own.OWN: OWN_DATA},
    "model": {f.__name__: _of_function("model", f) for f in MODELS} | {own.OWN: OWN_MODEL},
}
"""What a specification may name: algorithms, data sets and models, each with its arguments."""

PLUGINS = {
    **dict.fromkeys(("reference-qfedavg", "reference-scaffold", "reference-pfedme"), "fedbc.paper.reference"),
    "probe-damped-scaffold": "fedbc.paper.probes",
}
"""Algorithms that files may name but nobody is offered, and the module that registers each when it is first named."""

_UNLISTED: dict[str, Entry] = {}


def register(cls: type[A]) -> type[A]:
    """Let specifications name an algorithm that is not offered; a decorator of its class."""
    _UNLISTED[cls.name] = _of_dataclass("algorithm", cls.name, cls)
    return cls


def entry(kind: str, name: object) -> Entry:
    """Look a name up; an unknown one is an InputError with the nearest match."""
    if kind == "algorithm" and name in PLUGINS:
        importlib.import_module(PLUGINS[str(name)])
        return _UNLISTED[str(name)]
    if name not in CATALOG[kind]:
        raise unknown(kind, name, CATALOG[kind])
    return CATALOG[kind][str(name)]
