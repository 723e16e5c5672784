"""Devices kept out of training, to see how a federation serves those that come later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedbc import checks
from fedbc.data.federation import Array, Federation, subset
from fedbc.errors import InputError

_PURPOSE = 8
"""Keeps the draw apart from those of a run with the same seed (`fedbc.simulation.schedule`)."""


def unseen_devices(federation: Federation, unseen: float | Sequence[int], seed: int = 0) -> Array:
    """The devices that are kept out: those of a list, or a share of all, drawn by `seed`; in ascending order."""
    devices = federation.devices
    if isinstance(unseen, Sequence | np.ndarray):
        for number in unseen:
            checks.integer("unseen device", number, at_least=0, at_most=devices - 1)
        chosen = np.unique(np.asarray(unseen, int))
        if not 0 < len(chosen) < devices or len(chosen) < len(unseen):
            raise InputError(
                f"unseen={list(unseen)!r} is not accepted: give different devices, fewer than the {devices} there are"
            )
        return chosen
    share = checks.number("unseen", unseen, above=0, below=1)
    count = int(share * devices + 1e-9)
    if count < 1:
        raise InputError(
            f"unseen={unseen:g} keeps none of {devices} devices out: give a share of at least {1 / devices:.2g}"
        )
    return np.sort(np.random.default_rng([seed, _PURPOSE]).choice(devices, count, replace=False))


def apart(federation: Federation, unseen: float | Sequence[int], seed: int = 0) -> tuple[Federation, Federation]:
    """The devices that train, and those that come later, as two federations; devices keep their names or numbers."""
    later = unseen_devices(federation, unseen, seed)
    labels = tuple(str(label) for label in federation.device_labels)
    named = replace(federation, device_names=labels)
    rest = np.setdiff1d(np.arange(federation.devices), later)
    return subset(named, rest), subset(named, later)
