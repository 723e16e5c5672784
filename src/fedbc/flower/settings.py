"""How a deployment is carried out: the run-config's tables `run` and `algorithm` as checked values.

Flower's run-config holds plain values only. The keys that start with `run.` and `algorithm.` are read here; all others
belong to the app. Where a value may be None in Python, 0 stands for it: `run.sample = 0` is all devices,
`run.batch-size = 0` full-batch descent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedbc import checks
from fedbc.algorithms.base import Algorithm
from fedbc.algorithms.solver import Part
from fedbc.algorithms.statistics import with_statistics
from fedbc.errors import InputError, unknown
from fedbc.models.base import Model
from fedbc.privacy.private import Private
from fedbc.runs.catalog import entry
from fedbc.simulation.evaluation import DEFAULT
from fedbc.simulation.settings import Settings

POSITIVE = ("rounds", "devices", "epochs", "evaluate_every", "min_devices", "round_seconds", "attempts")
"""Settings that are at least 1; other whole numbers may be 0."""
RunConfig = Mapping[str, Any]
AlgorithmSource = Algorithm | Callable[[RunConfig], Algorithm]
ModelSource = Model | Callable[[RunConfig], Model]

LOCAL = (*(str(part) for part in Part), "check_every", "lr_schedule", "dual_schedule", "steps")
"""Arguments about local training that a deployment does not have."""


def setting(default: Any, help: str) -> Any:
    """A setting with its default and the comment that a generated app shows."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Deployment:
    """The settings of a run on real devices."""

    rounds: int = setting(20, "rounds of communication")
    devices: int = setting(3, "how many devices the federation has, numbered from 0 by their partition-id")
    sample: int = setting(0, "devices a round; 0 is all of them")
    epochs: int = setting(1, "passes of a device over its data in a round")
    batch_size: int = setting(20, "examples per local step; 0 is full-batch descent")
    seed: int = setting(0, "determines the initial model, the samples and the batches")
    evaluate: str = setting(",".join(DEFAULT), "what to measure: global, local, train, lagrangian")
    evaluate_every: int = setting(1, "measure every so many rounds, and after the last")
    min_devices: int = setting(1, "a round needs at least so many devices, and so many good answers")
    join_seconds: int = setting(60, "how long the first round waits for all devices")
    wait_seconds: int = setting(600, "how long a round waits for the minimum before the run gives up")
    round_seconds: int = setting(600, "how long devices may take to train, or to evaluate, in a round")
    attempts: int = setting(3, "how often a round with too few good answers is tried before the run gives up")
    move_limit: float = setting(0.0, "how far one device's answer alone may move the server's state; 0 is no limit")
    move_factor: float = setting(100.0, "the same, as a multiple of the median of the other devices'; 0 is no limit")
    most_examples: int = setting(0, "how many training examples a device may say that it has; 0 is no limit")
    diagnostics: bool = setting(True, "devices tell lambda, gamma, drift and loss beside their summand")
    keys: str = setting("keys", "the folder of the devices' public keys, on the machine of the ServerApp")
    secure: bool = setting(False, "secure aggregation: the server learns sums over devices only")
    secure_clip: float = setting(10.0, "the norm to which a device's x - z is clipped in a secure sum")
    personalize: bool = setting(False, "after the last round devices personalise z, for themselves")
    out: str = setting("runs/deployment", "the run folder, on the machine of the ServerApp")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type == "int":
                checks.integer(field.name, getattr(self, field.name), at_least=int(field.name in POSITIVE))
        for name in ("move_limit", "move_factor"):
            checks.number(name, getattr(self, name), at_least=0)
        checks.number("secure_clip", self.secure_clip, above=0)
        if self.secure:
            self._check_secure()
        checks.integer("sample", self.sample, at_most=self.devices)
        checks.integer("min_devices", self.min_devices, at_most=self.sample or self.devices)
        if "gradient" in self.what:
            raise InputError("evaluate has 'gradient': a deployment does not measure it, devices would send gradients")
        if "lagrangian" in self.what and not self.diagnostics:
            raise InputError("evaluate has 'lagrangian', which needs diagnostics=true: devices tell lambda and drift")
        self.as_simulated()  # the rest of the checks

    def _check_secure(self) -> None:
        """What needs single uploads does not go with secure sums."""
        if self.min_devices < 2:
            raise InputError(
                f"min_devices={self.min_devices} is not accepted with secure=true: a sum of one device is its upload; "
                "give at least 2"
            )
        if self.move_limit:
            raise InputError(
                f"move_limit={self.move_limit:g} is not accepted with secure=true: the server sees no single upload to "
                "judge; by secure_clip each device bounds its own"
            )

    @property
    def what(self) -> tuple[str, ...]:
        """What is measured."""
        return tuple(part.strip() for part in self.evaluate.split(",") if part.strip())

    def as_simulated(self) -> Settings:
        """The simulator's settings of the same run."""
        return Settings(
            epochs=self.epochs,
            batch_size=self.batch_size or None,
            sample=self.sample or None,
            seed=self.seed,
            evaluate=self.what,
            evaluate_every=self.evaluate_every,
        )

    @classmethod
    def from_config(cls, config: RunConfig) -> Deployment:
        """From the keys `run.*` of a run-config; unknown ones are an InputError with the nearest match."""
        known = {field.name.replace("_", "-"): field for field in dataclasses.fields(cls)}
        given = under("run.", config)
        for name, value in given.items():
            if name.replace("-", "_") in LOCAL:
                raise InputError(
                    f"run.{name} is an argument of the simulator: in a deployment devices train by the method's own "
                    "gradient descent, run.epochs long"
                )
            if name not in known:
                raise unknown("run-config: run argument", name, known)
            wanted = {"int": int, "bool": bool, "str": str, "float": float}[str(known[name].type)]
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise InputError(f"run.{name}={value!r} is not accepted: give a value of type {wanted.__name__}")
        return cls(**{known[name].name: value for name, value in given.items()})


def under(prefix: str, config: RunConfig) -> dict[str, Any]:
    """The keys that start with a prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}


def for_model(algorithm: Algorithm, model: Model) -> Algorithm:
    """The method as server and devices run it for a model: with its running statistics, if it keeps some."""
    if model.statistics is not None and isinstance(algorithm, Private):
        raise InputError(
            f"model {model.name} keeps running statistics, which a private deployment does not carry: take layers "
            "without, such as GroupNorm, or fedbc.torch.flower, which keeps a module's on each device"
        )
    return with_statistics(algorithm, model.statistics)


def algorithm_from(config: RunConfig) -> Algorithm:
    """The algorithm of the keys `algorithm.*`: `algorithm.name`, and its hyper-parameters by their names."""
    table = {name.replace("-", "_"): value for name, value in under("algorithm.", config).items()}
    if "name" not in table:
        raise InputError('run-config: algorithm.name is missing, such as algorithm.name = "fedbc"')
    return entry("algorithm", table.pop("name")).make(table)


def resolve(source: Any, config: RunConfig) -> Any:
    """An algorithm or model that was given as such, or as a function of the run-config."""
    return source if isinstance(source, Algorithm | Model) else source(config)
