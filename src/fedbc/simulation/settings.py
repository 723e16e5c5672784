"""How a run is carried out, apart from algorithm, model and data; and the checks that all four fit together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbc import checks
from fedbc.algorithms.base import Algorithm
from fedbc.algorithms.domains import Domain, GivenDomain, domain_from
from fedbc.algorithms.finetune import FineTune
from fedbc.algorithms.keeping import Keeping
from fedbc.algorithms.optimizers import OWN, Given, describe, optimizer_from
from fedbc.algorithms.ranges import Limits
from fedbc.algorithms.schedules import GivenSchedule, check_factors, completed, schedule_from
from fedbc.algorithms.secured import Parts, Secured
from fedbc.algorithms.solver import Solver
from fedbc.algorithms.statistics import with_statistics
from fedbc.data.federation import Federation
from fedbc.data.splits import check_resplit
from fedbc.data.unseen import unseen_devices
from fedbc.data.validation import held_out_sizes
from fedbc.errors import InputError
from fedbc.models.adapters import adapter_of
from fedbc.models.base import Model
from fedbc.simulation.amounts import OnePerDevice, canonical
from fedbc.simulation.ending import Ending
from fedbc.simulation.evaluation import DEFAULT, EVALUATIONS
from fedbc.simulation.fit import check_fit
from fedbc.simulation.shapes import Shapes
from fedbc.simulation.stopping import Stopping

LARGEST_NUMBER = 1e4
"""The most that a diagnostic, such as a loss, can be in a secure sum."""
SCHEDULED = ("lr_schedule", "dual_schedule")


@dataclass(frozen=True)
class Settings:
    """The arguments of `fedbc.simulate` that determine a run; `simulate` says what each means."""

    epochs: int | str | OnePerDevice = 1
    batch_size: int | None = 20
    sample: int | None = None
    pooled: bool = False
    seed: int = 0
    evaluate: tuple[str, ...] = DEFAULT
    evaluate_every: int = 1
    fine_tune: FineTune | None = None
    lanes: int | None = None
    validation: float | None = None
    steps: int | str | OnePerDevice | None = None
    epsilon: float | Sequence[float] | None = None
    check_every: int | None = None
    domain: GivenDomain = None
    target_accuracy: float | None = None
    patience: int | None = None
    time_budget: float | None = None
    optimizer: Given = OWN
    keep_optimizer: bool = False
    clip: float | None = None
    weight_decay: float = 0.0
    lr_schedule: GivenSchedule = None
    dual_schedule: GivenSchedule = None
    unseen: float | Sequence[int] | None = None
    secure: bool = False
    secure_clip: float = 10.0
    resplit: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epochs", canonical("epochs", self.epochs))
        if self.steps is not None:
            object.__setattr__(self, "steps", canonical("steps", self.steps))
            if self.epochs != 1:
                raise InputError(f"steps={self.steps} cannot be given with epochs={self.epochs}: give one of them")
        checks.integer("seed", self.seed, at_least=0)
        checks.integer("resplit", self.resplit, at_least=0)
        checks.integer("evaluate_every", self.evaluate_every, at_least=1)
        for name in ("batch_size", "sample", "lanes"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), at_least=1)
        if self.validation is not None:
            checks.number("validation", self.validation, above=0, below=1)
        object.__setattr__(self, "evaluate", checks.words("evaluate", self.evaluate, EVALUATIONS))
        if self.clip is not None:
            checks.number("clip", self.clip, above=0)
        checks.number("weight_decay", self.weight_decay, at_least=0)
        if not isinstance(self.keep_optimizer, bool):
            raise InputError(f"keep_optimizer={self.keep_optimizer!r} is not accepted: give True or False")
        if not isinstance(self.secure, bool):
            raise InputError(f"secure={self.secure!r} is not accepted: give True or False")
        checks.number("secure_clip", self.secure_clip, above=0)
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", checks.one_or_more("epsilon", self.epsilon, at_least=0))
        if self.check_every is not None:
            checks.integer("check_every", self.check_every, at_least=1)
            if self.epsilon is None:
                raise InputError(f"check_every={self.check_every} has nothing to check: give epsilon")
        _ = self.ending
        domain_from(self.domain)
        optimizer_from(self.optimizer)
        for name in SCHEDULED:
            schedule_from(name, completed(name, getattr(self, name), 1))
        if self.fine_tune is not None and not isinstance(self.fine_tune, FineTune):
            raise InputError(f"fine_tune={self.fine_tune!r} is not accepted: give a fedbc.FineTune")
        if self.unseen is not None and not isinstance(self.unseen, float | int):
            object.__setattr__(self, "unseen", tuple(self.unseen))
        if self.pooled and self.unseen is not None:
            raise InputError(f"unseen={self.unseen!r} cannot be given with pooled=True: there is one device")
        if self.pooled and self.sample is not None:
            raise InputError(
                f"sample={self.sample} cannot be given with pooled=True: there is one device, with all the data"
            )

    def completed(self, rounds: int) -> Settings:
        """With what depends on the number of rounds of the run."""
        schedules: dict[str, Any] = {name: completed(name, getattr(self, name), rounds) for name in SCHEDULED}
        for name, schedule in schedules.items():
            if callable(schedule):  # those by name are known to be good
                check_factors(name, schedule, rounds)
        return dataclasses.replace(self, **schedules)

    @functools.cached_property
    def solver(self) -> Solver:
        """The local solver that a method is given."""
        return Solver(
            optimizer=optimizer_from(self.optimizer),
            keep_optimizer=self.keep_optimizer,
            clip=self.clip,
            weight_decay=self.weight_decay,
            domain=domain_from(self.domain),
            epsilon=self.epsilon,  # type: ignore[arg-type]
            lr_schedule=schedule_from("lr_schedule", self.lr_schedule),
            dual_schedule=schedule_from("dual_schedule", self.dual_schedule),
        )

    @functools.cached_property
    def ending(self) -> Ending:
        """When the run ends before its last round."""
        return Ending(self.target_accuracy, self.patience, self.time_budget)

    @property
    def stopping(self) -> Stopping | None:
        """When local training ends before K_i steps."""
        return None if self.epsilon is None else Stopping(self.epsilon, self.check_every)

    def give(self, algorithm: Algorithm, model: Model) -> Algorithm:
        """The method with its local solver, for the model."""
        given = algorithm.with_solver(self.solver)
        if self.keep_optimizer:
            given = Keeping(given)
        # A single device's statistics are those of all.
        return with_statistics(given, "averaged" if self.pooled and model.statistics else model.statistics)

    def securely(self, algorithm: Algorithm, model: Model, federation: Federation) -> Algorithm:
        """The method with what a secure sum does to its summands, if that is wanted; it comes after `give`."""
        if not self.secure:
            return algorithm
        largest = int(np.max(federation.train.sizes))
        limits = Limits(self.secure_clip, largest, LARGEST_NUMBER)
        parts = Parts(algorithm, Shapes.of(algorithm, model).summand, limits, self.sample or federation.devices)
        return Secured(algorithm, parts)

    def described(self) -> dict[str, Any]:
        """Plain values, for a specification."""
        domain = self.domain.described() if isinstance(self.domain, Domain) else self.domain
        return {name: describe(value) for name, value in dataclasses.asdict(self).items()} | {"domain": domain}

    def check(self, algorithm: Algorithm, model: Model, federation: Federation) -> None:
        """Raise an InputError if these cannot be run together; computes next to nothing."""
        check_together(algorithm, model, federation)
        devices = federation.devices
        if self.unseen is not None:
            devices -= len(unseen_devices(federation, self.unseen, self.seed))
        if self.sample is not None and self.sample > devices:
            raise InputError(
                f"sample={self.sample} is not accepted: the federation has {devices} devices"
                f"{'' if self.unseen is None else ' that train'}, give a whole number from 1 to {devices}"
            )
        check_resplit(federation, self.resplit)
        if self.validation is not None:
            held_out_sizes(federation, self.validation)
        algorithm.check_solver(self.solver)
        if model.statistics is not None and (self.epsilon is not None or self.domain is not None):
            part = "epsilon" if self.epsilon is not None else "domain"
            raise InputError(
                f"{part} does not apply to {model.name}: it keeps running statistics beside its parameters"
            )
        self.ending.check(self.evaluate, accuracy=model.correct is not None)
        for name in ("epochs", "steps", "epsilon"):
            if isinstance(getattr(self, name), tuple):
                checks.one_per_device(name, getattr(self, name), 1 if self.pooled else devices)
        algorithm.check_population(1 if self.pooled else devices)
        self.securely(self.give(algorithm, model), model, federation)  # refuses a part without a range


def check_together(algorithm: Algorithm, model: Model, federation: Federation) -> None:
    """Raise an InputError unless these are what they should be, and the model takes the federation's examples."""
    for name, value, kind, example in (
        ("algorithm", algorithm, Algorithm, "fedbc.FedBC(lr=0.01)"),
        ("model", model, Model, "fedbc.models.logistic(60, 10)"),
        ("federation", federation, Federation, "fedbc.data.synthetic()"),
    ):
        if not isinstance(value, kind):
            example = adapter_of(value) or example
            shown = " ".join(repr(value).split())
            raise InputError(f"{name}={shown} is not accepted: give a {kind.__name__}, for example {example}")
    check_fit(model, federation)
