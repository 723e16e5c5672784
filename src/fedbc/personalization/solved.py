"""Every device's path, solved and chosen from: for small models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.personalization.choice import Scores, choose
from fedbc.personalization.folds import FEW, FOLDS, folds
from fedbc.personalization.path import Own, Paths, Walked
from fedbc.simulation import batches
from fedbc.simulation.lanes import Lanes

Array = np.ndarray


class Chosen(NamedTuple):
    """What a device chose, and what it would have alone."""

    personal: Array
    """its model, as one row of numbers"""
    own: Array
    """the best one that knows nothing of z"""
    tolerance: float
    """gamma; infinite where the model knows nothing of z"""
    multiplier: float
    """lambda; infinite for z itself"""
    residual: float
    """‖∇f_i(x) + 2 lambda (x - centre)‖, the accuracy that was reached"""


def solve(
    model: Model,
    federation: Federation,
    z: Any,
    origin: Any,
    *,
    seed: int,
    accuracy: float,
    most: int,
    lanes: Lanes,
    known: frozenset[int] | set[int] = frozenset(),
) -> Iterator[tuple[int, Chosen]]:
    """The devices' choices, a few at a time, the largest first; those of `known` devices are not made."""
    train = federation.train
    fold_of = folds(train, seed, ordered=federation.ordered)
    data = lanes.put(batches.host_data(train, federation.shared))
    shared_folds = lanes.put(fold_of)
    start = np.stack([np.asarray(ravel_pytree(p)[0]) for p in (z, origin)])
    sizes = train.sizes
    order = [d for d in np.argsort(-sizes, kind="stable").tolist() if d not in known]
    for count, group in ((1, [d for d in order if sizes[d] > FEW]), (FOLDS, [d for d in order if sizes[d] <= FEW])):
        if not group:
            continue
        paths = Paths(model, federation, count, accuracy=accuracy, most=most)
        walk = lanes.compiled(paths.walk)
        for begin in range(0, len(group), lanes.count):
            devices = group[begin : begin + lanes.count]
            # A lane without a device takes one of a single example, for its time is the others'.
            places = [*devices, *[devices[-1]] * (lanes.count - len(devices))]
            size = np.where(np.arange(lanes.count) < len(devices), sizes[places], 1)
            own = Own(
                train.offsets[places].astype(np.int32),
                size.astype(np.int32),
                np.repeat(start[None], lanes.count, axis=0),
            )
            parts = walk(own, shared_folds, data)
            whole = jax.tree.map(lambda *a: np.concatenate([np.asarray(p) for p in a]), *parts)
            for place, device in enumerate(devices):
                walked = jax.tree.map(lambda a, place=place: a[place], whole)
                rows = slice(train.offsets[device], train.offsets[device + 1])
                yield device, pick(walked, start, int((fold_of[rows] >= 0).sum()))


def pick(walked: Walked, start: Array, examples: int) -> Chosen:
    """One device's choice: z, a point of the path from z, or one of the path that knows nothing of z."""
    walked = jax.tree.map(np.asarray, walked)
    points = len(walked.multiplier)
    scores = Scores(np.asarray(walked.total, float), np.asarray(walked.products, float), examples)
    number = choose(scores)
    alone = np.arange(1 + points, 1 + 2 * points)
    among = Scores(scores.total[alone], scores.products[np.ix_(alone, alone)], examples)
    own = choose(among)
    models = np.asarray(walked.models).reshape(2 * points, -1)
    own_model = models[points + own]
    if number == 0:
        return Chosen(start[0], own_model, 0.0, np.inf, 0.0)
    side, point = divmod(number - 1, points)
    with_z = side == 0
    return Chosen(
        models[number - 1],
        own_model,
        float(walked.drift[0, point]) if with_z else np.inf,
        float(walked.multiplier[point]) if with_z else 0.0,
        float(walked.residual[side, point]),
    )
