"""Every experiment by name: which runs it consists of, in the order in which they are worth most.

A run is a method in a setting with a seed. Runs with the same specification are one run, whichever experiment asks for
it. The budget is what two cores can do; the rest of an experiment comes with `full`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fedbc.errors import unknown
from fedbc.paper import methods
from fedbc.paper.experiment import Dataset, Experiment, Setting, heading
from fedbc.paper.methods import Protocol
from fedbc.paper.specifications import (
    BELOW,
    CHANGES,
    ON_SHAKESPEARE,
    images,
    shakespeare,
    shuffled,
    suspected,
    synthetic,
)
from fedbc.selection.grids import DUAL_RATES

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


MANY_DRAWS = tuple(range(1, 21))


MORE_ROUNDS = 300
"""To see whether rounds explain CIFAR-10's levels in the paper's tables, which do not say how many there were."""


WITH_MORE_ROUNDS = {"epochs": 1, "classes": 1}
"""Where that is seen, for every exponent: with one class a device our levels are the furthest below."""


SUSPICIONS = "cifar10-suspicions"
DAMPED = "cifar10-damped"
"""Whether SCAFFOLD collapses because large devices follow small ones' corrections for hundreds of steps."""
SHUFFLED = "mnist-e1-shuffled"
"""Whether FedBC's lead under the reference protocol comes from its split in class order."""


def _grid(epochs: int, classes: Iterable[int], exponents: Iterable[float]) -> tuple[Setting, ...]:
    return tuple({"epochs": epochs, "classes": c, "exponent": e} for c in classes for e in exponents)


_BUDGET: dict[tuple[Dataset, int, Protocol], tuple[tuple[int, ...], tuple[float, ...], int]] = {
    (Dataset.CIFAR10, 1, Protocol.PAPER): (CLASSES, EXPONENTS, 3),
    (Dataset.CIFAR10, 5, Protocol.PAPER): ((1, 3), (1.2, 1.4), 3),
    **{(Dataset.MNIST, e, Protocol.PAPER): (CLASSES, EXPONENTS, 5) for e in (1, 5)},
    **{(Dataset.CIFAR10, e, Protocol.REFERENCE): ((1, 3), (1.2,), 1) for e in (1, 5)},
    **{(Dataset.MNIST, e, Protocol.REFERENCE): (CLASSES, (1.2, 1.4), 1) for e in (1, 5)},
}
"""C, exponents and the number of seeds; under the reference protocol enough to see whether it explains the numbers."""


def images_experiment(data: Dataset, epochs: int, protocol: Protocol = Protocol.PAPER, *, local: bool = False) -> str:
    """The name of the experiment behind a table on images."""
    kind = "-local" if local else ""
    return f"{data}{kind}-e{epochs}" + (f"-{protocol}" if protocol is Protocol.REFERENCE else "")


def counterpart(name: str) -> str:
    """The same experiment on images under the reference protocol."""
    return f"{name}-{Protocol.REFERENCE}"


def _image_experiment(
    data: Dataset, epochs: int, protocol: Protocol, keys: tuple[str, ...], minutes: float, *, local: bool = False
) -> Experiment:
    every = _grid(epochs, CLASSES, EXPONENTS)
    classes, exponents, seeds = _BUDGET[data, epochs, protocol]
    settings = _grid(epochs, classes, exponents)
    what = "local accuracy" if local else "global accuracy"
    return Experiment(
        name=images_experiment(data, epochs, protocol, local=local),
        title=f"{data.shown}, {what}, E = {epochs}, {protocol} protocol",
        data=data,
        protocol=protocol,
        methods=keys,
        settings=settings,
        rest=tuple(s for s in every if s not in settings),
        seeds=SEEDS[:seeds],
        full_seeds=SEEDS,
        build=images(data, protocol),
        group=lambda setting: f"{data}-e{epochs}",
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
            Dataset.SYNTHETIC,
            Protocol.PAPER,
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
            Dataset.SYNTHETIC,
            Protocol.PAPER,
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
            Dataset.SYNTHETIC,
            Protocol.PAPER,
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
            Dataset.SYNTHETIC,
            Protocol.PAPER,
            (*methods.SOUND, "qfedavg-reference", "scaffold-reference", "fedbc-reference", "fedbc-letter"),
            tuple({"epochs": 5, "draw": d} for d in DRAWS),
            (),
            SEEDS,
            SEEDS,
            synthetic,
            _by_epochs,
            0.1,
        ),
        Experiment(
            "synthetic-consensus",
            "Synthetic data, FedBC with gamma = 0 at the rates chosen for FedBC",
            Dataset.SYNTHETIC,
            Protocol.PAPER,
            ("fedbc-consensus",),
            tuple({"epochs": e} for e in (5, 1, 10, 25, 50)),
            (),
            SEEDS,
            SEEDS,
            synthetic,
            _by_epochs,
            0.1,
        ),
        Experiment(
            "synthetic-plain",
            "Synthetic data, SCAFFOLD without momentum",
            Dataset.SYNTHETIC,
            Protocol.PAPER,
            ("scaffold-plain",),
            tuple({"epochs": e} for e in (5, 1, 10, 25, 50)),
            (),
            SEEDS,
            SEEDS,
            synthetic,
            _by_epochs,
            0.1,
        ),
        *(
            replace(
                _image_experiment(data, epochs, Protocol.PAPER, ("scaffold-plain",), minutes),
                name=f"{data}-plain-e{epochs}",
                title=f"{data.shown}, SCAFFOLD without momentum, E = {epochs}",
                seeds=SEEDS[:1],
            )
            for data, epochs, minutes in (
                (Dataset.MNIST, 1, 0.3),
                (Dataset.MNIST, 5, 0.4),
                (Dataset.CIFAR10, 1, 0.8),
                (Dataset.CIFAR10, 5, 1.9),
            )
        ),
        Experiment(
            "synthetic-many-draws",
            "Synthetic data, twenty draws of the data, E = 5, one seed each (hyper-parameters of draw 1)",
            Dataset.SYNTHETIC,
            Protocol.PAPER,
            ("fedavg-root", "fedbc"),
            tuple({"epochs": 5, "draw": d} for d in MANY_DRAWS),
            (),
            SEEDS[:1],
            SEEDS[:1],
            synthetic,
            _by_epochs,
            0.1,
        ),
        _image_experiment(Dataset.CIFAR10, 1, Protocol.PAPER, methods.SOUND, 3.5),
        _image_experiment(Dataset.MNIST, 1, Protocol.PAPER, methods.SOUND, 0.6),
        _image_experiment(Dataset.CIFAR10, 5, Protocol.PAPER, (*methods.SOUND, *_PERSONAL), 9),
        _image_experiment(Dataset.CIFAR10, 5, Protocol.PAPER, _LOCAL, 12, local=True),
        _image_experiment(Dataset.CIFAR10, 1, Protocol.REFERENCE, methods.REFERENCE, 3.5),
        Experiment(
            "shakespeare",
            "Shakespeare, 138 devices, E = 1 and 5",
            Dataset.SHAKESPEARE,
            Protocol.PAPER,
            (*methods.SOUND, "qfedavg-reference", "scaffold-reference"),
            ON_SHAKESPEARE,
            tuple({"epochs": e, "stride": 1, "rounds": 200} for e in (1, 5)),
            SEEDS[:1],
            SEEDS,
            shakespeare,
            lambda setting: "shakespeare-e1",
            12.5,
        ),
        _image_experiment(Dataset.MNIST, 5, Protocol.PAPER, methods.SOUND, 1.4),
        _image_experiment(Dataset.CIFAR10, 5, Protocol.REFERENCE, (*methods.REFERENCE, *_PERSONAL_REFERENCE), 9),
        _image_experiment(Dataset.CIFAR10, 5, Protocol.REFERENCE, _LOCAL_REFERENCE, 12, local=True),
        Experiment(
            "cifar10-coefficients",
            "CIFAR-10, FedBC's coefficients for C = 1, 2, 3 at exponent 1.2, E = 5",
            Dataset.CIFAR10,
            Protocol.PAPER,
            ("fedbc",),
            _grid(5, CLASSES, (1.2,)),
            (),
            SEEDS[:1],
            SEEDS[:1],
            images(Dataset.CIFAR10, Protocol.PAPER),
            lambda setting: "cifar10-e5",
            9,
        ),
        Experiment(
            "cifar10-rounds",
            f"CIFAR-10, three times the rounds: {heading(WITH_MORE_ROUNDS)}",
            Dataset.CIFAR10,
            Protocol.PAPER,
            ("fedavg", "fedbc"),
            tuple({**WITH_MORE_ROUNDS, "exponent": e, "rounds": MORE_ROUNDS} for e in EXPONENTS),
            (),
            SEEDS[:1],
            SEEDS[:1],
            images(Dataset.CIFAR10, Protocol.PAPER),
            lambda setting: "cifar10-e1",
            11,
        ),
        Experiment(
            "cifar10-rates",
            f"CIFAR-10, Per-FedAvg and Per-FedBC at the outer rate that the paper states, {methods.STATED_OUTER_RATE}",
            Dataset.CIFAR10,
            Protocol.PAPER,
            methods.STATED,
            _grid(5, *_BUDGET[Dataset.CIFAR10, 5, Protocol.PAPER][:2]),
            (),
            SEEDS[:1],
            SEEDS[:1],
            images(Dataset.CIFAR10, Protocol.PAPER),
            lambda setting: "cifar10-e5",
            7,
        ),
        Experiment(
            "cifar10-local-controls",
            "CIFAR-10, local accuracy of FedAvg's own models, Ditto and local training alone, E = 5",
            Dataset.CIFAR10,
            Protocol.PAPER,
            methods.LOCAL_CONTROLS,
            _grid(5, *_BUDGET[Dataset.CIFAR10, 5, Protocol.PAPER][:2]),
            (),
            SEEDS[:1],
            SEEDS,
            images(Dataset.CIFAR10, Protocol.PAPER, local=True),
            lambda setting: "cifar10-e5",
            2.5,
        ),
        Experiment(
            SUSPICIONS,
            "CIFAR-10, why our level is below the paper's with one class a device: FedAvg, E = 5, C = 1, exponent 1.2",
            Dataset.CIFAR10,
            Protocol.PAPER,
            ("fedavg",),
            tuple({**BELOW, "suspicion": name} for name in ("none", *CHANGES)),
            (),
            SEEDS[:1],
            SEEDS[:1],
            suspected,
            lambda setting: "cifar10-e5",
            2,
        ),
        Experiment(
            DAMPED,
            "CIFAR-10, SCAFFOLD without momentum, its corrections at full length and damped: E = 1",
            Dataset.CIFAR10,
            Protocol.PAPER,
            ("fedavg", "scaffold-plain", "scaffold-damped"),
            ({"epochs": 1, "classes": 2, "exponent": 1.3}, {"epochs": 1, "classes": 1, "exponent": 1.4}),
            (),
            SEEDS[:3],
            SEEDS[:3],
            images(Dataset.CIFAR10, Protocol.PAPER),
            lambda setting: "cifar10-e1",
            0.8,
        ),
        Experiment(
            SHUFFLED,
            "MNIST, E = 1, the reference protocol with a shuffled split",
            Dataset.MNIST,
            Protocol.REFERENCE,
            ("fedavg", "fedavg-uniform", "fedbc-reference"),
            _grid(1, CLASSES, (1.2, 1.4)),
            (),
            SEEDS[:1],
            SEEDS[:1],
            shuffled(Dataset.MNIST),
            lambda setting: "mnist-e1",
            0.4,
        ),
        Experiment(
            "mnist-weights",
            f"MNIST, FedBC's weights without its pull: E = 5, dual rate {DUAL_RATES[0]:g}",
            Dataset.MNIST,
            Protocol.PAPER,
            ("fedbc-weights",),
            _grid(5, CLASSES, EXPONENTS),
            (),
            SEEDS[:3],
            SEEDS,
            images(Dataset.MNIST, Protocol.PAPER),
            lambda setting: "mnist-e5",
            1.4,
        ),
        _image_experiment(Dataset.MNIST, 1, Protocol.REFERENCE, methods.REFERENCE, 0.8),
        _image_experiment(Dataset.MNIST, 5, Protocol.REFERENCE, methods.REFERENCE, 1.8),
    )
}
"""The paper's experiments, and ours on what lies behind its numbers, by name."""


def experiment(name: str) -> Experiment:
    """Look an experiment up; an unknown name is an InputError with the nearest match."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
