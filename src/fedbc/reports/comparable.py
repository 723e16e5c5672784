"""Whether runs can be compared: they finished, on one federation, over as many rounds, measured on the same sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedbc import data, storage
from fedbc.data.federation import Federation
from fedbc.errors import InputError
from fedbc.models.base import Model
from fedbc.runs import RunSpec, what_counts
from fedbc.simulation.description import checksum
from fedbc.simulation.ending import COLUMN
from fedbc.simulation.result import Result

Methods = Mapping[str, Sequence[Result]]


def seed_of(result: Result) -> int:
    """The run's seed."""
    return int(result.spec["run"].get("seed", 0))


def split_of(result: Result) -> int:
    """Which division into training and test sets the run has; 0 is the one that the data come with."""
    return int(result.spec["run"].get("resplit", 0))


def run_in_words(name: str, result: Result) -> str:
    """A run in a sentence."""
    split = f", split {split_of(result)}" if split_of(result) else ""
    return f"{name}, seed {seed_of(result)}{split}"


def validation_of(result: Result) -> float | None:
    """The share of training data that the run was measured on instead of the test sets; None for the test sets."""
    share: float | None = result.spec["run"].get("validation")
    return share


def without_diverged(methods: Methods) -> tuple[dict[str, list[Result]], list[str]]:
    """The runs that finished, and a sentence for each that diverged: its numbers are of before, and say nothing."""
    failures = [
        f"{run_in_words(name, r)}: {r.diverged}" for name, rs in methods.items() for r in rs if r.diverged is not None
    ]
    kept = {name: [r for r in rs if r.diverged is None] for name, rs in methods.items()}
    found = {name: rs for name, rs in kept.items() if rs}
    if failures and not found:
        raise InputError(f"every run diverged, so there is nothing to compare: {failures[0]}")
    return found, failures


def check_comparable(methods: Methods, *, any_rounds: bool = False) -> None:
    """An InputError that says in what the runs differ, if it makes their numbers two different things."""
    runs = {run_in_words(name, r) if i else name: r for name, rs in methods.items() for i, r in enumerate(rs)}
    _check_same_federation(runs)
    _check_alike(
        {name: _sets(validation_of(r)) for name, r in runs.items()},
        "measured on different data",
        "compare runs with the same --validation",
    )
    ends_by_rule = all(COLUMN in r.history for r in runs.values())  # a target, patience: of unequal length on purpose
    if not (any_rounds or ends_by_rule):
        _check_alike(
            {name: f"{r.rounds} rounds" for name, r in runs.items()},
            "of unequal length",
            "go on with the shorter (fedbc run --resume RUN --rounds N), or allow it (any_rounds=True, --any-rounds)",
        )


def _sets(share: float | None) -> str:
    return "the test sets" if share is None else f"validation sets of {share:g} of the training data"


def _check_alike(found: Mapping[str, str], what: str, do: str) -> None:
    (first, one), *others = found.items()
    for name, other in others:
        if other != one:
            raise InputError(f"the runs are {what}: {first} has {one}, {name} has {other}; {do}")


def _check_same_federation(runs: Mapping[str, Result]) -> None:
    full = {name: dict(r.spec.get("data", {})) for name, r in runs.items()}
    tables = {name: what_counts("data", table) for name, table in full.items()}
    if len({"checksum" in table for table in tables.values()}) > 1:
        full = tables = {name: {"checksum": _checksum_of(r)} for name, r in runs.items()}
    (first, one), *others = tables.items()
    for name, table in others:
        for key in dict.fromkeys(["name", *one, *table]):
            if one.get(key) != table.get(key):
                raise InputError(
                    f"{first} and {name} were run on different federations: data {key} is {full[first].get(key)!r} and "
                    f"{full[name].get(key)!r}; compare runs on one federation"
                )


def _checksum_of(result: Result) -> str | None:
    """Of the run's data: the simulator describes them by it, a specification names how to build them."""
    table = result.spec.get("data", {})
    if "checksum" in table:
        return str(table["checksum"])
    built = build_part(result, "data")
    return checksum(built) if built is not None else None


def check_is_theirs(federation: Federation, runs: Iterable[Result]) -> None:
    """An InputError if the runs were made with other data: single devices would be scored on foreign examples."""
    first = next(iter(runs))  # all of them have the same, as was checked before
    known, own = _checksum_of(first), checksum(federation)
    if known is not None and known != own:
        raise InputError(
            f"federation={federation!r} is not what the runs were made with: its checksum is {own}, theirs is {known}"
        )


def check_fits(model: Model, result: Result, name: str) -> None:
    """An InputError if a run's parameters are not the model's."""
    like = jax.eval_shape(model.init, jax.random.key(0))
    empty = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), like)  # has a shape, and no memory
    wanted, found = ({key: a.shape for key, a in storage.named(tree).items()} for tree in (empty, result.global_model))
    if wanted != found:
        raise InputError(
            f"model={model.name} is not what {name} was run with: it has parameters {_shapes(wanted)}, the run "
            f"{_shapes(found)}"
        )


def _shapes(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in parameters.items())


def measured_on(result: Result, federation: Federation) -> Federation:
    """The federation with the sets that the run's scores are of."""
    return data.trained_on(federation, result.spec["run"])


def build_part(result: Result, part: str) -> Any:
    """The data or the model that a run's specification names; None where it only describes them."""
    try:
        return RunSpec.from_dict(result.spec).build_part(part)
    except InputError:
        return None
