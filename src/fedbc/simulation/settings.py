"""How a run is carried out, apart from algorithm, model and data; and the checks that all four fit together."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from fedbc import checks
from fedbc.algorithms.base import Algorithm
from fedbc.algorithms.finetune import FineTune
from fedbc.data.federation import Federation
from fedbc.data.validation import held_out_sizes
from fedbc.errors import InputError
from fedbc.models.base import Model
from fedbc.simulation.evaluation import DEFAULT, EVALUATIONS


@dataclass(frozen=True)
class Settings:
    """The arguments of `fedbc.simulate` that determine a run; `simulate` says what each means."""

    epochs: int = 1
    batch_size: int | None = 20
    sample: int | None = None
    pooled: bool = False
    seed: int = 0
    evaluate: tuple[str, ...] = DEFAULT
    evaluate_every: int = 1
    fine_tune: FineTune | None = None
    lanes: int | None = None
    validation: float | None = None

    def __post_init__(self) -> None:
        checks.integer("epochs", self.epochs, at_least=1)
        checks.integer("seed", self.seed, at_least=0)
        checks.integer("evaluate_every", self.evaluate_every, at_least=1)
        for name in ("batch_size", "sample", "lanes"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), at_least=1)
        if self.validation is not None:
            checks.number("validation", self.validation, above=0, below=1)
        for what in self.evaluate:
            checks.choice("evaluate", what, EVALUATIONS)
        if self.fine_tune is not None and not isinstance(self.fine_tune, FineTune):
            raise InputError(f"fine_tune={self.fine_tune!r} is not accepted: give a fedbc.FineTune")
        if self.pooled and self.sample is not None:
            raise InputError(
                f"sample={self.sample} cannot be given with pooled=True: there is one device, with all the data"
            )

    def check(self, algorithm: Algorithm, model: Model, federation: Federation) -> None:
        """Raise an InputError if these cannot be run together; computes next to nothing."""
        for name, value, kind, example in (
            ("algorithm", algorithm, Algorithm, "fedbc.FedBC(lr=0.01)"),
            ("model", model, Model, "fedbc.models.logistic(60, 10)"),
            ("federation", federation, Federation, "fedbc.data.synthetic()"),
        ):
            if not isinstance(value, kind):
                raise InputError(f"{name}={value!r} is not accepted: give a {kind.__name__}, for example {example}")
        if self.sample is not None and self.sample > federation.devices:
            raise InputError(
                f"sample={self.sample} is not accepted: the federation has {federation.devices} devices, "
                f"give a whole number from 1 to {federation.devices}"
            )
        if self.validation is not None:
            held_out_sizes(federation, self.validation)
        algorithm.check_population(1 if self.pooled else federation.devices)
        _check_fit(model, federation)


def _check_fit(model: Model, federation: Federation) -> None:
    """The model takes the federation's examples, and has a logit for every label."""
    x = jax.ShapeDtypeStruct((2, *federation.train.x.shape[1:]), federation.train.x.dtype)
    decoded = jax.eval_shape(federation.decode, federation.shared, x)
    try:
        params = jax.eval_shape(model.init, jax.random.key(0))
        outputs = jax.eval_shape(model.outputs, params, decoded)
    except Exception as error:
        raise InputError(
            f"model {model.name} does not take examples of shape {decoded.shape[1:]} of data {federation.name}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if federation.classes is not None and model.correct is not None and outputs.shape[-1] < federation.classes:
        raise InputError(
            f"model {model.name} has {outputs.shape[-1]} outputs but data {federation.name} has "
            f"{federation.classes} classes: give a model with at least {federation.classes} outputs"
        )
