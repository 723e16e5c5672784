"""Other splits of the same examples into training and test sets, to see how much a difference owes to one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedbc import checks
from fedbc.data.federation import Array, Federation, Split
from fedbc.data.unseen import apart
from fedbc.data.validation import held_out
from fedbc.errors import InputError

_PURPOSE = 9
"""Keeps the draw apart from those of a run with the same seed (`fedbc.simulation.schedule`)."""


def resplit(federation: Federation, number: int) -> Federation:
    """The same devices with the same examples, divided anew: as many for training and for the test as before.

    number: 0 is the division that the data come with; any other number is a draw of its own, device by device.

    How a table's columns were scaled stays as it is. Where neighbouring examples overlap, as those of texts
    (`ordered`), parts of test examples would be trained on: an InputError.
    """
    checks.integer("resplit", number, at_least=0)
    if number == 0:
        return federation
    check_resplit(federation, number)
    train, test = federation.train, federation.test
    sizes = np.stack([train.sizes, test.sizes])
    from_train, from_test = [], []  # rows of both splits, the test's counted on
    for device in range(federation.devices):
        own = np.concatenate(
            [
                np.arange(train.offsets[device], train.offsets[device + 1]),
                len(train.y) + np.arange(test.offsets[device], test.offsets[device + 1]),
            ]
        )
        tested = np.zeros(len(own), bool)
        rng = np.random.default_rng([number, _PURPOSE, device])
        tested[rng.choice(len(own), sizes[1, device], replace=False, shuffle=False)] = True
        from_train.append(own[~tested])
        from_test.append(own[tested])
    x, y = np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y])

    def some(parts: list[Array], like: Split) -> Split:
        rows = np.concatenate(parts)
        return Split(x[rows], y[rows], like.offsets)

    return replace(
        federation,
        train=some(from_train, train),
        test=some(from_test, test),
        name=f"{federation.name}, split {number}",
        facts={**federation.facts, "resplit": number},
    )


def check_resplit(federation: Federation, number: int) -> None:
    """An InputError if the examples cannot be divided anew."""
    if number and federation.ordered:
        raise InputError(
            f"resplit={number} is not accepted for {federation.name}: its neighbouring examples overlap, so that "
            "another split would train on parts of test examples"
        )
    if number and federation.owned is not None:
        raise InputError(
            f"resplit={number} is not accepted where machines share a run: each has the rows of its own only"
        )


def of_run(federation: Federation, run: Mapping[str, Any]) -> Federation:
    """The training sets of a run, and the sets that it is measured on, by its [run] table: another split, or validation
    data."""
    federation = resplit(federation, int(run.get("resplit") or 0))
    share = run.get("validation")
    return federation if share is None else held_out(federation, share, int(run.get("seed", 0)))


def trained_on(federation: Federation, run: Mapping[str, Any]) -> Federation:
    """The same, without the devices that the run keeps out of training."""
    whole, unseen = of_run(federation, run), run.get("unseen")
    return whole if unseen is None else apart(whole, unseen, int(run.get("seed", 0)))[0]


def measured_examples(federation: Federation, run: Mapping[str, Any]) -> Array:
    """Which examples a run is measured on: for each row of its test sets a number that all splits have in common."""
    first = len(federation.train.y)

    def numbered(split: Split, begin: int) -> Split:
        return Split(begin + np.arange(len(split.y)), split.y, split.offsets)

    marked = replace(federation, train=numbered(federation.train, 0), test=numbered(federation.test, first))
    return of_run(marked, run).test.x
