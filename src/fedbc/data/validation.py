"""Validation data held out from training, so that choices are made without the test sets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedbc import checks
from fedbc.data.federation import Array, Federation, Split
from fedbc.errors import InputError

_PURPOSE = 6
"""Keeps the draw apart from those of a run with the same seed (`fedbc.simulation.schedule`)."""


def held_out(federation: Federation, share: float, seed: int = 0) -> Federation:
    """The same devices, with a share of each one's training examples in the place of its test set.

    share: of a device's training examples, rounded down; a device that has too few for one keeps all of them for
        training and takes no part in local scores. `facts["too_small"]` says how many devices that are.
    seed: of the draw, which is by device. Where a device's test examples are its last ones (`ordered`, as for
        texts), its last training examples are held out instead.

    The test sets are not part of what is returned.
    """
    taken = held_out_sizes(federation, share)
    checks.integer("seed", seed, at_least=0)
    train, offsets = federation.train, federation.train.offsets
    kept = np.ones(len(train.y), bool)
    for device in np.flatnonzero(taken).tolist():
        size, some = int(train.sizes[device]), int(taken[device])
        if federation.ordered:
            rows: Any = np.arange(size - some, size)
        else:
            rows = np.random.default_rng([seed, _PURPOSE, device]).choice(size, some, replace=False, shuffle=False)
        kept[offsets[device] + rows] = False
    facts = {**federation.facts, "validation": share, "too_small": int((taken == 0).sum())}
    return replace(
        federation,
        train=_some(train, kept, train.sizes - taken),
        test=_some(train, ~kept, taken),
        name=f"{federation.name}, validation {share:g}",
        facts=facts,
    )


def held_out_sizes(federation: Federation, share: float) -> Array:
    """How many examples each device holds out; a federation in which none can is an InputError."""
    checks.number("validation", share, above=0, below=1)
    sizes = federation.train.sizes
    taken = np.floor(share * sizes + 1e-9).astype(np.int64)  # so that 30 % of 10 is 3, in spite of binary fractions
    if not taken.any():
        raise InputError(
            f"validation={share:g} leaves nothing to validate on: the largest device has {sizes.max()} training "
            f"examples, give a share of at least {1 / sizes.max():.2g}"
            if sizes.max() > 1
            else f"validation={share:g} cannot be held out: every device has a single training example"
        )
    return taken


def _some(split: Split, rows: Array, sizes: Array) -> Split:
    return Split(split.x[rows], split.y[rows], np.concatenate([[0], np.cumsum(sizes)]).astype(split.offsets.dtype))
