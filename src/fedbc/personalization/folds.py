"""Which of a device's own training examples its choice is made on."""

from __future__ import annotations

import numpy as np

from fedbc.data.federation import Split

Array = np.ndarray
FOLDS = 5
"""Of cross-validation, where examples are few."""
FEW = 1000
"""A device with more training examples holds a fifth of them out, once."""
NEVER = -1
"""The fold of an example that always trains."""
_PURPOSE = 7
"""Keeps the draw apart from those of a run with the same seed (`fedbc.simulation.schedule`)."""


def folds(split: Split, seed: int, *, ordered: bool = False, few: int = FEW) -> Array:
    """The fold of each training example, from 0; NEVER where it is not held out.

    ordered: neighbouring examples overlap, as those of texts: folds are then stretches, and what is held out once is
        the last one.
    few: devices with more examples hold out a fifth, once.
    """
    fold_of = np.full(len(split.y), NEVER, np.int32)
    for device, size in enumerate(split.sizes.tolist()):
        if size < 2:  # it could not train and be judged
            continue
        place = np.arange(size)
        if not ordered:
            place = np.random.default_rng([seed, _PURPOSE, device]).permutation(size)
        own = fold_of[split.offsets[device] : split.offsets[device + 1]]
        stretch = place * FOLDS // size if size >= FOLDS else place
        own[:] = stretch if size <= few else np.where(stretch == FOLDS - 1, 0, NEVER)
    return fold_of
