"""Federations from what other libraries hold: PyTorch data sets, and the federated data sets of flwr-datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbc.data.federation import Federation, federation
from fedbc.data.frames import from_frame
from fedbc.data.partition import divide
from fedbc.errors import InputError

Array = np.ndarray


def from_torch(
    train: Sequence[Any],
    test: Sequence[Any] | None = None,
    *,
    test_share: float = 0.2,
    seed: int = 1,
    channels_last: bool = False,
    **rest: Any,
) -> Federation:
    """A federation from PyTorch data sets, one for each device, each of which gives pairs (x, y).

    test: one for each device, too; if not given, `test_share` of each device's examples, drawn by `seed`.
    channels_last: move the colours of images from the first place, as PyTorch has them, to the last, as JAX has them.
    rest: `classes`, `device_names`, `class_names` and what else `Federation` has.
    """
    pairs = [_examples(f"train[{i}]", one, channels_last) for i, one in enumerate(train)]
    if test is not None:
        return federation(pairs, [_examples(f"test[{i}]", one, channels_last) for i, one in enumerate(test)], **rest)
    halves = [divide(np.arange(len(y)), test_share, "shuffled", [seed, i]) for i, (_, y) in enumerate(pairs)]
    kept = [(x[own], y[own]) for (x, y), (own, _) in zip(pairs, halves, strict=True)]
    return federation(kept, [(x[h], y[h]) for (x, y), (_, h) in zip(pairs, halves, strict=True)], **rest)


def _examples(which: str, dataset: Any, channels_last: bool) -> tuple[Array, Array]:
    try:
        count = len(dataset)
    except TypeError:
        raise InputError(
            f"{which} is not accepted: a data set without a length cannot be divided into rounds"
        ) from None
    if count == 0:
        raise InputError(f"{which} has no examples")
    try:
        # By number: one that ends by an IndexError only, as PyTorch's do, could not be iterated over.
        xs, ys = zip(*(dataset[i] for i in range(count)), strict=True)
        x, y = np.stack([np.asarray(x) for x in xs]), np.stack([np.asarray(y) for y in ys])
    except (TypeError, ValueError) as error:
        raise InputError(f"{which} is not accepted: it must give pairs (x, y) of one shape ({error})") from None
    return np.moveaxis(x, 1, -1) if channels_last else x, y


def from_flwr(
    dataset: Any,
    *,
    label: str,
    image: str | None = None,
    split: str = "train",
    devices: int | None = None,
    test_share: float = 0.2,
    seed: int = 1,
    **rest: Any,
) -> Federation:
    """A federation from a `FederatedDataset` of flwr-datasets: its partitions are the devices.

    label: the column to predict.
    image: the column of images, if there are any; all other columns are then left out. Otherwise the columns are taken
        as `from_frame` takes them.
    split: the data set's split whose partitions are taken; `test_share` of each is for testing, drawn by `seed`.
    devices: how many partitions, the first ones; all if not given.
    rest: as `from_frame` has it, or `Federation` for images.
    """
    if not hasattr(dataset, "load_partition"):
        raise InputError(f"dataset={dataset!r} is not accepted: give a FederatedDataset of flwr-datasets")
    first = dataset.load_partition(0, split)  # its partitioner knows their number only now
    for name in (label, *([image] if image is not None else [])):
        if name not in first.column_names:
            raise InputError(f"column {name!r} is not among {', '.join(first.column_names)}")
    total = dataset.partitioners[split].num_partitions
    count = total if devices is None else devices
    if not 1 <= count <= total:
        raise InputError(f"devices={devices!r} is not accepted: the data set has {total} partitions")
    parts = [first, *(dataset.load_partition(i, split) for i in range(1, count))]
    names = getattr(first.features[label], "names", None)
    if image is None:
        return _from_columns(parts, names, label, test_share, seed, rest)
    pairs = [[(_pixels(row[image]), row[label]) for row in part] for part in parts]
    known: dict[str, Any] = {"class_names": tuple(names), "classes": len(names)} if names else {}
    return from_torch(pairs, None, test_share=test_share, seed=seed, **(known | rest))


def _pixels(image: Any) -> Array:
    """From -1 to 1, with the colours last."""
    values = np.asarray(image)
    values = values.astype(np.float32) * (2 / 255) - 1 if values.dtype == np.uint8 else values
    return values[..., None] if values.ndim == 2 else values


def _from_columns(
    parts: Sequence[Any], names: Sequence[str] | None, label: str, test_share: float, seed: int, rest: dict[str, Any]
) -> Federation:
    import pandas as pd

    frames = [part.to_pandas().assign(partition=str(i)) for i, part in enumerate(parts)]
    frame = pd.concat(frames, ignore_index=True)
    if names:
        frame[label] = [names[value] for value in frame[label]]
    return from_frame(frame, label=label, device="partition", test_share=test_share, seed=seed, **rest)
