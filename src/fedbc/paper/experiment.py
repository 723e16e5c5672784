"""What an experiment is: a run is a method in a setting with a seed, an experiment a named set of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from fedbc.paper.methods import METHODS, Arguments, Protocol
from fedbc.runs import RunSpec


class Dataset(StrEnum):
    """A data set, by its name in specifications."""

    SYNTHETIC = "synthetic"
    MNIST = "mnist"
    CIFAR10 = "cifar10"
    SHAKESPEARE = "shakespeare"

    @property
    def shown(self) -> str:
        """Its name in tables and figures."""
        return {"mnist": "MNIST", "cifar10": "CIFAR-10", "shakespeare": "Shakespeare"}.get(self.value, "Synthetic data")


Setting = Mapping[str, Any]


Build = Callable[[Setting, int, Arguments], RunSpec]
"""Makes a run's specification from a setting, a seed and the algorithm's table."""


Choices = Mapping[str, Mapping[str, Arguments]]
"""The chosen algorithm's table by tuning group and method."""


@dataclass(frozen=True)
class Run:
    """One run of an experiment; without a specification as long as its hyper-parameters are not chosen."""

    method: str
    protocol: Protocol
    setting: Setting
    seed: int
    spec: RunSpec | None

    @property
    def identity(self) -> object:
        """The same for runs that are one run, even before their hyper-parameters are chosen."""
        return self.hash or (self.method, self.protocol, str(self.setting), self.seed)

    @cached_property
    def hash(self) -> str | None:
        """The specification's identity."""
        return self.spec.identity if self.spec is not None else None

    def is_in(self, **setting: Any) -> bool:
        """Whether it belongs to a setting, of which a part may be given."""
        return all(self.setting.get(k) == v for k, v in setting.items())


def nothing(setting: Setting) -> dict[str, Any]:
    """No further arguments."""
    del setting
    return {}


@dataclass(frozen=True)
class Part:
    """Which of an experiment's runs are meant; by default those of the budget."""

    full: bool = False
    """also what the budget leaves out"""
    seeds: int | None = None
    """only the first so many"""
    settings: int | None = None
    """only the first so many"""
    methods: tuple[str, ...] = ()
    """only these; all if none is named"""


@dataclass(frozen=True)
class Experiment:
    """A named set of runs."""

    name: str
    title: str
    data: Dataset
    protocol: Protocol
    methods: tuple[str, ...]
    settings: tuple[Setting, ...]
    """what the budget covers, most wanted first"""
    rest: tuple[Setting, ...]
    """what `full` adds"""
    seeds: tuple[int, ...]
    full_seeds: tuple[int, ...]
    build: Build
    group: Callable[[Setting], str]
    """the tuning group of a setting"""
    minutes: float = 0
    """a first guess of a run's core minutes, until runs have been timed"""
    extra: Callable[[Setting], dict[str, Any]] = field(default=nothing)
    """arguments of the algorithm that the setting determines"""

    def runs(self, choices: Choices, part: Part | None = None) -> list[Run]:
        """The runs of a part; each seed with everything before the next."""
        part = part or Part()
        settings = ((*self.settings, *self.rest) if part.full else self.settings)[: part.settings]
        seeds = (self.full_seeds if part.full else self.seeds)[: part.seeds]
        keys = [key for key in self.methods if not part.methods or key in part.methods]
        return [self._run(key, s, seed, choices) for seed in seeds for s in settings for key in keys]

    def _run(self, key: str, setting: Setting, seed: int, choices: Choices) -> Run:
        arguments = chosen(choices.get(self.group(setting), {}), key)
        spec = self.build(setting, seed, {**arguments, **self.extra(setting)}) if arguments is not None else None
        return Run(key, self.protocol, setting, seed, spec)


def chosen(choice: Mapping[str, Arguments], key: str) -> Arguments | None:
    """A method's algorithm table from a group's choices; None if it is not chosen yet."""
    method = METHODS[key]
    if method.like is not None:
        arguments = chosen(choice, method.like)
        return {**arguments, **method.change(arguments)} if arguments is not None else None
    if not method.grid:
        return dict(method.fixed)
    return choice.get(key)


def heading(setting: Setting) -> str:
    """A setting as tables and figures name it."""
    names = {"epochs": "E", "classes": "C"}
    return ", ".join(f"{names.get(k, k)} = {v}" for k, v in setting.items())
