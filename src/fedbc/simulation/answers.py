"""What the models of a result answer: predictions for new examples, and how good they are on given ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedbc import checks, storage
from fedbc import metrics as measures
from fedbc.data import Federation, encode
from fedbc.data.federation import canonical
from fedbc.data.frames import device_words, labelled
from fedbc.errors import InputError, Notice

if TYPE_CHECKING:
    import pandas as pd

    from fedbc.models import Model
    from fedbc.simulation.result import Result

Array = np.ndarray
Metric = Callable[[Array, Array], float]
"""Of true labels and predictions, as scikit-learn's are."""
Metrics = Mapping[str, Metric] | Sequence[str]
"""Functions by the names of their columns, or names of `fedbc.metrics`."""
AT_ONCE = 4096
"""Examples that are computed in one call."""


class Answers:
    """The models of a result, ready to be asked."""

    def __init__(self, result: Result) -> None:
        self.result, self.meaning = result, result.meaning
        self.model: Model = result.part("model")
        like = jax.eval_shape(self.model.init, jax.random.key(0))
        self.z = storage.restored(like, storage.named(result.global_model))
        self.own = None
        if result.participants_models is not None:
            self.own = storage.restored(like, storage.named(result.participants_models))
        self.slot = {int(device): i for i, device in enumerate(result.participants)}
        self._apply = jax.jit(lambda params, x: self.model.outputs(params, self._decoded(x)))
        self._decoder: Any = None

    def models_of(self, device: Any) -> Any:
        """The parameters of a device's own model, by its name or number; z for None, and for who never took part."""
        if device is None:
            pooled = len(self.result.multipliers) == 1
            if self.model.statistics == "local" and not pooled:
                raise InputError(
                    f"the global model of {self.model.name} has no running statistics, they stayed with the devices: "
                    'name a device, or train with statistics="averaged"'
                )
            return self.z
        number = self.meaning.device_number(device, len(self.result.multipliers))
        if self.own is None:
            raise InputError("the local models of a deployment stay on their devices: ask the global model")
        slot = self.slot.get(number)
        return self.z if slot is None else jax.tree.map(lambda a: a[slot], self.own)

    def examples(self, x: Any) -> Array:
        """What was given, as the federation stores examples; rows of a table are encoded."""
        if self.meaning.encoding is not None and not isinstance(x, np.ndarray | list | tuple | jax.Array):
            return encode(self.meaning.encoding, x)
        found = canonical(np.asarray(x))
        if found.dtype == object or found.ndim == 0:
            raise InputError(f"x of type {type(x).__name__} is not accepted: give an array of examples, or a table")
        wanted = self._shape()
        if wanted is not None and found.shape[1:] != wanted:
            raise InputError(f"x has examples of shape {found.shape[1:]}, but the model learned from {wanted}")
        if np.issubdtype(found.dtype, np.floating) and not np.isfinite(found).all():
            raise InputError("x has NaN or Inf: all values must be finite")
        return found

    def outputs(self, x: Array, params: Any) -> Array:
        """The model's outputs for stored examples."""
        parts = []
        for begin in range(0, len(x), AT_ONCE):
            some = x[begin : begin + AT_ONCE]
            # A few sizes only, so that few programs are compiled.
            size = min(AT_ONCE, 1 << max(4, (len(some) - 1).bit_length()))
            padded = np.concatenate([some, np.repeat(some[-1:], size - len(some), axis=0)])
            parts.append(np.asarray(self._apply(params, padded))[: len(some)])
        if not parts:
            raise InputError("x has no examples")
        return np.concatenate(parts)

    def chosen(self, outputs: Array) -> Array:
        """The prediction: the class of the largest output by name or number, or the quantity."""
        if not self.is_classification:
            return outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
        best = outputs.argmax(axis=-1)
        names = self.meaning.class_names
        return np.asarray(names)[np.minimum(best, len(names) - 1)] if names else best

    @property
    def is_classification(self) -> bool:
        """Whether the answer is a class."""
        return self.model.correct is not None

    def _shape(self) -> tuple[int, ...] | None:
        if self.meaning.encoding is not None:
            return (len(self.meaning.encoding.features),)
        federation = self._federation()
        return federation.train.x.shape[1:] if federation is not None else None

    def _decoded(self, x: jax.Array) -> jax.Array:
        if self.meaning.encoding is not None:
            return x
        federation = self._federation()
        return federation.decode(federation.shared, x) if federation is not None else x

    def _federation(self) -> Federation | None:
        """What says how examples are stored; None where a specification only describes the data."""
        if self._decoder is None:
            try:
                self._decoder = (self.result.part("data"),)
            except InputError:
                self._decoder = (None,)
        return self._decoder[0]


def predict(result: Result, x: Any, device: Any = None, probabilities: bool = False) -> Array:
    """See `Result.predict`."""
    asked = Answers(result)
    examples = asked.examples(x)
    if device is None or isinstance(device, str) or np.ndim(device) == 0:
        outputs = asked.outputs(examples, asked.models_of(device))
    else:
        outputs = _row_by_row(asked, examples, list(device))
    if not probabilities:
        return asked.chosen(outputs)
    if not asked.is_classification:
        raise InputError("probabilities=True needs classes, but the model predicts quantities")
    scaled = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    return scaled / scaled.sum(axis=-1, keepdims=True)


def _row_by_row(asked: Answers, examples: Array, devices: Sequence[Any]) -> Array:
    """Each example by the model of its own device."""
    if len(devices) != len(examples):
        raise InputError(f"device has {len(devices)} names but x has {len(examples)} examples: give one for each")
    keys = np.asarray([repr(d) for d in devices])
    parts: dict[str, Array] = {}
    rows = {key: np.flatnonzero(keys == key) for key in dict.fromkeys(keys)}
    for key, own in rows.items():
        parts[key] = asked.outputs(examples[own], asked.models_of(devices[own[0]]))
    first = next(iter(parts.values()))
    out = np.empty((len(examples), *first.shape[1:]), first.dtype)
    for key, own in rows.items():
        out[own] = parts[key]
    return out


def answer_table(result: Result, frame: pd.DataFrame, device: Any, local: bool) -> pd.DataFrame:
    """See `Result.answer_table`."""
    asked = Answers(result)
    encoding, names = asked.meaning.encoding, asked.meaning.device_names
    if encoding is None:
        raise InputError("the run did not learn from a table: use result.predict with an array of examples")
    taken = {"prediction", "probability", "model"} & set(frame.columns)
    if taken:
        raise InputError(f"the table has a column {sorted(taken)[0]!r} already, which is to be added: rename it")
    x = asked.examples(frame)
    whose: list[Any] = [device] * len(x)
    if local:
        if encoding.device not in frame:
            raise InputError(f"the table has no column {encoding.device!r}, which says whose model is to answer")
        owners = device_words(encoding, frame)
        whose = [owner if owner in names else None for owner in owners]
        strange = [owner for owner, known in zip(owners, whose, strict=True) if known is None]
        if strange:
            said = "no device" if strange[0] is None else repr(strange[0])
            warnings.warn(
                f"{len(strange)} of {len(owners)} rows are of devices that the run did not have, first {said}: the "
                "global model answers them",
                Notice,
                stacklevel=3,
            )
    outputs = _row_by_row(asked, x, whose)
    told = frame.assign(prediction=asked.chosen(outputs))
    if asked.is_classification:
        scaled = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        told = told.assign(probability=np.round(scaled.max(axis=-1) / scaled.sum(axis=-1), 4))
    return told.assign(model=["global" if w is None else str(w) for w in whose])


ALL = "all devices"
"""The row of the examples of all devices together."""


def evaluate(
    result: Result, data: Any = None, metrics: Metrics | None = None, *, together: bool = False
) -> pd.DataFrame:
    """See `Result.evaluate`."""
    import pandas as pd

    if metrics is not None and not isinstance(metrics, Mapping):
        metrics = checks.words("metrics", metrics, measures.METRICS)
    asked = Answers(result)
    rows: list[dict[str, Any]] = []
    answers: dict[str, list[Array]] = {}
    labels: dict[str, list[Array]] = {}
    sets = _sets(asked, data)
    for device, x, y in sets:
        row: dict[str, Any] = {"device": device, "examples": len(y)}
        for which, params in _models(asked, device):
            outputs = asked.outputs(x, params) if len(y) else None
            row |= _named(which, _scores(asked, outputs, y, metrics or {}))
            if together and outputs is not None:
                answers.setdefault(which, []).append(outputs)
                labels.setdefault(which, []).append(y)
        rows.append(row)
    if answers:
        row = {"device": ALL, "examples": sum(len(y) for _, _, y in sets)}
        for which, parts in answers.items():
            scores = _scores(asked, np.concatenate(parts), np.concatenate(labels[which]), metrics or {})
            row |= _named(which, scores)
        rows.append(row)
    return pd.DataFrame(rows)


def _named(which: str, scores: Mapping[str, float]) -> dict[str, float]:
    return {f"{which}_{name}": value for name, value in scores.items()}


def _models(asked: Answers, device: Any) -> list[tuple[str, Any]]:
    """z, and the device's own model where there is one."""
    found = [("global", asked.z)]
    if asked.own is not None:
        try:
            found.append(("local", asked.models_of(device)))
        except InputError:  # a device that the run did not have
            return found
    return found


def _scores(asked: Answers, outputs: Array | None, y: Array, metrics: Metrics) -> dict[str, float]:
    names = [*(["accuracy"] if asked.is_classification else []), "loss", *metrics]
    if outputs is None:
        return dict.fromkeys(names, float("nan"))
    scores: dict[str, float] = {}
    if asked.model.correct is not None:
        scores["accuracy"] = float(np.mean(np.asarray(asked.model.correct(outputs, y))))  # type: ignore[arg-type]
    scores["loss"] = float(np.mean(np.asarray(asked.model.loss(outputs, y))))  # type: ignore[arg-type]
    truth = np.asarray(asked.meaning.class_names)[y] if asked.is_classification and asked.meaning.class_names else y
    truth = truth[:, 0] if truth.ndim == 2 and truth.shape[1] == 1 else truth
    if not isinstance(metrics, Mapping):
        wanted = measures.chosen(metrics, classes=asked.is_classification)
        numbers = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        return scores | measures.scores(wanted, numbers, outputs, classes=asked.is_classification)
    return scores | {name: float(metric(truth, asked.chosen(outputs))) for name, metric in metrics.items()}


def _sets(asked: Answers, data: Any) -> list[tuple[Any, Array, Array]]:
    """Device, examples and labels: of a federation's test sets, or of a table's rows."""
    federation = asked.result.part("data") if data is None else data
    if isinstance(federation, Federation):
        whole = federation.origin or federation
        return [(label, *whole.test.of(i)) for i, label in enumerate(whole.device_labels)]
    encoding = asked.meaning.encoding
    if encoding is None:
        raise InputError(f"data of type {type(data).__name__} is not accepted: give a fedbc.data.Federation")
    owners, labels = labelled(encoding, data, asked.meaning.class_names)
    x = asked.examples(data)
    return [(name, x[owners == name], labels[owners == name]) for name in dict.fromkeys(owners.tolist())]
