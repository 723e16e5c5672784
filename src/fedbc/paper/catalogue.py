"""Every experiment by name: which runs it consists of, in the order in which they are worth most.

A run is a method in a setting with a seed. Runs with the same specification are one run, whichever experiment asks for
it. The budget is what two cores can do; the rest of an experiment comes with `full`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedbc.errors import unknown
from fedbc.experiments.spec import RunSpec
from fedbc.experiments.sweep import fingerprint
from fedbc.paper import methods
from fedbc.paper.methods import METHODS, Arguments

SEEDS = (1, 2, 3, 4, 5)
"""Reported; the first one's curves are kept for the figures. Hyper-parameters are chosen on others (`tuning`)."""
FIRST_SEED = SEEDS[0]
EPOCHS = (1, 5, 10, 25, 50)
CLASSES = (1, 2, 3)
EXPONENTS = (1.1, 1.2, 1.3, 1.4, 1.5)
TOLERANCES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 10.0)
ACTING_DUAL_RATE = 0.01
"""For the sweep of fixed tolerances: the largest of the grid, because a tiny one leaves no constraint to sweep."""
DRAWS = (1, 2, 3, 4, 5)
MORE_ROUNDS = 300
"""To see whether rounds explain CIFAR-10's levels in the paper's tables, which do not say how many there were."""
WITH_MORE_ROUNDS = {"epochs": 1, "classes": 1}
"""Where that is seen, for every exponent: with one class a device our levels are the furthest below."""

ON_SHAKESPEARE = ({"epochs": 1, "stride": 10, "rounds": 40}, {"epochs": 5, "stride": 10, "rounds": 12})
"""Within the budget: 20 to 30 core minutes a run, whatever E."""

Setting = Mapping[str, Any]
Choices = Mapping[str, Mapping[str, Arguments]]
"""The chosen algorithm's table by tuning group and method."""


@dataclass(frozen=True)
class Run:
    """One run of an experiment; without a specification as long as its hyper-parameters are not chosen."""

    method: str
    protocol: str
    setting: Setting
    seed: int
    spec: RunSpec | None

    @property
    def identity(self) -> object:
        """The same for runs that are one run, even before their hyper-parameters are chosen."""
        return self.hash or (self.method, self.protocol, str(self.setting), self.seed)

    @cached_property
    def hash(self) -> str | None:
        """The specification's fingerprint."""
        return fingerprint(self.spec) if self.spec is not None else None

    def is_in(self, **setting: Any) -> bool:
        """Whether it belongs to a setting, of which a part may be given."""
        return all(self.setting.get(k) == v for k, v in setting.items())


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
    protocol: str
    methods: tuple[str, ...]
    settings: tuple[Setting, ...]
    """what the budget covers, most wanted first"""
    rest: tuple[Setting, ...]
    """what `full` adds"""
    seeds: tuple[int, ...]
    full_seeds: tuple[int, ...]
    build: Callable[[Setting, int, Arguments], RunSpec]
    group: Callable[[Setting], str]
    """the tuning group of a setting"""
    minutes: float = 0
    """a first guess of a run's core minutes, until runs have been timed"""
    extra: Callable[[Setting], dict[str, Any]] = field(default=lambda setting: {})
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
        return method.derived(arguments) if arguments is not None else None
    if not method.grid:
        return dict(method.fixed)
    return choice.get(key)


def synthetic(setting: Setting, seed: int, algorithm: Arguments) -> RunSpec:
    """The synthetic federation: everything is measured in every round."""
    data = {"name": "synthetic", "devices": setting.get("devices", 30), "seed": setting.get("draw", 1)}
    run = {"rounds": 200, "epochs": setting["epochs"], "sample": 10, "seed": seed}
    return RunSpec(algorithm, data, run=run)


def images(name: str, protocol: str) -> Callable[[Setting, int, Arguments], RunSpec]:
    """MNIST or CIFAR-10 over 20 devices; the reference protocol splits in class order, and drops out on MNIST.

    Local models are evaluated where the table of local accuracy needs them, so that it shares its runs with the table
    of global accuracy.
    """

    def build(setting: Setting, seed: int, algorithm: Arguments) -> RunSpec:
        split = "ordered" if protocol == "reference" else "shuffled"
        data = {"name": name, "classes": setting["classes"], "exponent": setting["exponent"], "split": split}
        model = {"name": "mlp", "dropout": 0.5} if (name, protocol) == ("mnist", "reference") else {}
        # The paper does not say how many rounds; its code's comments have 100. With E = 5 two cores allow half of that.
        rounds = setting.get("rounds", 100 if setting["epochs"] == 1 else 50)
        run: dict[str, Any] = {"rounds": rounds, "epochs": setting["epochs"], "sample": 10, "seed": seed}
        run |= {"evaluate": ["global"], "evaluate_every": 5}
        if (name, setting["epochs"]) == ("cifar10", 5) and algorithm["name"] in _LOCAL_ALGORITHMS:
            on = "test" if protocol == "reference" else "train"
            run["evaluate"] = ["global", "local"]
            # Per-FedAvg's model is z adapted; in the reference it is the device's own.
            of = "global" if algorithm["name"] == "perfedavg" and protocol == "paper" else "local"
            run["fine_tune"] = {"steps": 1, "lr": 0.01, "batch_size": 20, "on": on, "of": of}
        return RunSpec(algorithm, data, model, run)

    return build


_LOCAL_ALGORITHMS = ("fedbc", "perfedavg", "pfedme", "reference-pfedme", "perfedbc")


def shakespeare(setting: Setting, seed: int, algorithm: Arguments) -> RunSpec:
    """138 roles; the budget thins their examples, so that all of their words and the sizes' proportions stay.

    (The first 100 examples of each role, which are 180 characters, would teach less in the same time: after 40 rounds
    with E = 1 FedAvg was at 20 %, with a tenth of all examples at 37 %; and all devices would be of one size.)
    """
    data = {"name": "shakespeare", "max_samples": setting.get("cap"), "stride": setting["stride"]}
    run = {"rounds": setting["rounds"], "epochs": setting["epochs"], "sample": 10, "seed": seed}
    return RunSpec(algorithm, data, run=run | {"evaluate": ["global"], "evaluate_every": 10})


def heading(setting: Setting) -> str:
    """A setting as tables and figures name it."""
    names = {"epochs": "E", "classes": "C"}
    return ", ".join(f"{names.get(k, k)} = {v}" for k, v in setting.items())


def _grid(epochs: int, classes: Iterable[int], exponents: Iterable[float]) -> tuple[Setting, ...]:
    return tuple({"epochs": epochs, "classes": c, "exponent": e} for c in classes for e in exponents)


_BUDGET: dict[tuple[str, int, str], tuple[tuple[int, ...], tuple[float, ...], int]] = {
    ("cifar10", 1, "paper"): (CLASSES, EXPONENTS, 3),
    ("cifar10", 5, "paper"): ((1, 3), (1.2, 1.4), 3),
    **{("mnist", e, "paper"): (CLASSES, EXPONENTS, 5) for e in (1, 5)},
    **{("cifar10", e, "reference"): ((1, 3), (1.2,), 1) for e in (1, 5)},
    **{("mnist", e, "reference"): (CLASSES, (1.2, 1.4), 1) for e in (1, 5)},
}
"""C, exponents and the number of seeds; under the reference protocol enough to see whether it explains the numbers."""


def _image_experiment(
    data: str, epochs: int, protocol: str, keys: tuple[str, ...], minutes: float, *, local: bool = False
) -> Experiment:
    every = _grid(epochs, CLASSES, EXPONENTS)
    classes, exponents, seeds = _BUDGET[data, epochs, protocol]
    settings = _grid(epochs, classes, exponents)
    kind = "-local" if local else ""
    shown = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[data]
    what = "local accuracy" if local else "global accuracy"
    return Experiment(
        name=f"{data}{kind}-e{epochs}" + ("-reference" if protocol == "reference" else ""),
        title=f"{shown}, {what}, E = {epochs}, {protocol} protocol",
        protocol=protocol,
        methods=keys,
        settings=settings,
        rest=tuple(s for s in every if s not in settings),
        seeds=SEEDS[:seeds],
        full_seeds=SEEDS,
        build=images(data, protocol),
        # On two cores CIFAR-10's hyper-parameters are chosen once, at E = 1.
        group=lambda setting: f"mnist-e{epochs}" if data == "mnist" else "cifar10-e1",
        minutes=minutes,
    )


_PERSONAL = ("perfedavg", "pfedme")
_PERSONAL_REFERENCE = ("perfedavg-reference", "pfedme-reference")
_LOCAL = ("fedbc", *methods.PERSONAL)
_LOCAL_REFERENCE = ("fedbc-reference", *methods.PERSONAL_REFERENCE)


def _by_epochs(setting: Setting) -> str:
    return f"synthetic-e{setting['epochs']}"


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "synthetic",
            "Synthetic data, 30 devices, E = 1 to 50",
            "paper",
            (*methods.SOUND, "qfedavg-reference", "scaffold-reference", "fedbc-reference", "fedbc-letter"),
            tuple({"epochs": e} for e in (5, 1, 10, 25, 50)),
            (),
            SEEDS,
            SEEDS,
            synthetic,
            _by_epochs,
            0.1,
        ),
        Experiment(
            "synthetic-gamma",
            "Synthetic data, FedBC with a fixed tolerance gamma, the same for all devices, dual_lr 0.01 (teaser)",
            "paper",
            ("fedbc",),
            tuple({"epochs": 5, "tolerance": t} for t in TOLERANCES),
            (),
            SEEDS,
            SEEDS,
            synthetic,
            _by_epochs,
            0.1,
            lambda setting: {"tolerance": setting["tolerance"], "dual_lr": ACTING_DUAL_RATE},
        ),
        Experiment(
            "synthetic-devices",
            "Synthetic data, 30, 70 and 100 devices, E = 5",
            "paper",
            (*methods.SOUND, "qfedavg-reference", "scaffold-reference", "fedbc-reference"),
            tuple({"epochs": 5, "devices": d} for d in (30, 70, 100)),
            (),
            SEEDS,
            SEEDS,
            synthetic,
            _by_epochs,
            0.15,
        ),
        Experiment(
            "synthetic-draws",
            "Synthetic data, five draws of the data, E = 5 (hyper-parameters of draw 1)",
            "paper",
            (*methods.SOUND, "qfedavg-reference", "scaffold-reference", "fedbc-reference", "fedbc-letter"),
            tuple({"epochs": 5, "draw": d} for d in DRAWS),
            (),
            SEEDS,
            SEEDS,
            synthetic,
            _by_epochs,
            0.1,
        ),
        _image_experiment("cifar10", 1, "paper", methods.SOUND, 3.5),
        _image_experiment("mnist", 1, "paper", methods.SOUND, 0.6),
        _image_experiment("cifar10", 5, "paper", (*methods.SOUND, *_PERSONAL), 9),
        _image_experiment("cifar10", 5, "paper", _LOCAL, 12, local=True),
        _image_experiment("cifar10", 1, "reference", methods.REFERENCE, 3.5),
        Experiment(
            "shakespeare",
            "Shakespeare, 138 devices, E = 1 and 5",
            "paper",
            (*methods.SOUND, "qfedavg-reference", "scaffold-reference"),
            ON_SHAKESPEARE,
            tuple({"epochs": e, "stride": 1, "rounds": 200} for e in (1, 5)),
            SEEDS[:1],
            SEEDS,
            shakespeare,
            lambda setting: "shakespeare-e1",
            12.5,
        ),
        _image_experiment("mnist", 5, "paper", methods.SOUND, 1.4),
        _image_experiment("cifar10", 5, "reference", (*methods.REFERENCE, *_PERSONAL_REFERENCE), 9),
        _image_experiment("cifar10", 5, "reference", _LOCAL_REFERENCE, 12, local=True),
        Experiment(
            "cifar10-coefficients",
            "CIFAR-10, FedBC's coefficients for C = 1, 2, 3 at exponent 1.2, E = 5",
            "paper",
            ("fedbc",),
            _grid(5, CLASSES, (1.2,)),
            (),
            SEEDS[:1],
            SEEDS[:1],
            images("cifar10", "paper"),
            lambda setting: "cifar10-e1",
            9,
        ),
        Experiment(
            "cifar10-rounds",
            f"CIFAR-10, three times the rounds: {heading(WITH_MORE_ROUNDS)}",
            "paper",
            ("fedavg", "fedbc"),
            tuple({**WITH_MORE_ROUNDS, "exponent": e, "rounds": MORE_ROUNDS} for e in EXPONENTS),
            (),
            SEEDS[:1],
            SEEDS[:1],
            images("cifar10", "paper"),
            lambda setting: "cifar10-e1",
            11,
        ),
        Experiment(
            "cifar10-rates",
            f"CIFAR-10, Per-FedAvg and Per-FedBC at the outer rate that the paper states, {methods.STATED_OUTER_RATE}",
            "paper",
            methods.STATED,
            _grid(5, *_BUDGET["cifar10", 5, "paper"][:2]),
            (),
            SEEDS[:1],
            SEEDS[:1],
            images("cifar10", "paper"),
            lambda setting: "cifar10-e1",
            7,
        ),
        Experiment(
            "mnist-weights",
            f"MNIST, FedBC's weights without its pull: E = 5, dual rate {methods.DUAL_RATES[0]:g}",
            "paper",
            ("fedbc-weights",),
            _grid(5, CLASSES, EXPONENTS),
            (),
            SEEDS[:3],
            SEEDS,
            images("mnist", "paper"),
            lambda setting: "mnist-e5",
            1.4,
        ),
        _image_experiment("mnist", 1, "reference", methods.REFERENCE, 0.8),
        _image_experiment("mnist", 5, "reference", methods.REFERENCE, 1.8),
    )
}


def experiment(name: str) -> Experiment:
    """Look an experiment up; an unknown name is an InputError with the nearest match."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
