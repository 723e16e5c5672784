"""A picture of a partition: how many examples each device has, and of which classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedbc.data.federation import Federation, Split
from fedbc.drawing import COLOURS, FAINT, INK, as_it_is, check_format, need, save_figure
from fedbc.errors import InputError

_TRAIN, _TEST = COLOURS[0], COLOURS[5]
_NAMED_DEVICES, _NAMED_CLASSES = 30, 20  # beyond these, numbers and names in the picture would not be legible


def picture(federation: Federation, path: str | Path) -> Path:
    """Draw a federation's partition to a file (.png, .svg or .pdf).

    Above: the training and test examples of each device. Below, for a classification problem: the share of each class
    among the device's examples, with the numbers of examples where there is room for them.
    """
    # Not at the top: Matplotlib takes a second to import. A Figure by itself needs no display and no global state.
    matplotlib: Any = need("matplotlib")
    from matplotlib.figure import Figure

    target = Path(path)
    check_format(target)
    if not target.parent.is_dir():
        raise InputError(f"path={str(path)!r} is not accepted: the folder {target.parent} does not exist")

    devices, classes = federation.devices, federation.classes
    width = float(np.clip(2.2 + 0.42 * devices, 6, 13))
    below = 0.0 if classes is None else float(np.clip(0.3 * classes, 1.2, 7))
    figure = Figure(figsize=(width, 2.9 + below), layout="constrained")
    figure.suptitle(as_it_is(_title(federation)), x=0.01, ha="left", fontsize=12, color=INK)
    if classes is None:
        sizes = figure.subplots()
    else:
        sizes, shares = figure.subplots(2, sharex=True, height_ratios=(1.9, below))
        _draw_classes(figure, shares, federation, classes)
    _draw_sizes(sizes, federation)
    bottom = sizes if classes is None else shares
    owner = federation.encoding.device if federation.encoding is not None else "device"
    bottom.set_xlabel(as_it_is(owner), color=INK)
    if devices <= _NAMED_DEVICES:
        slanted: dict[str, Any] = (
            {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if federation.device_names else {}
        )
        bottom.set_xticks(range(devices), [as_it_is(str(name)) for name in federation.device_labels], **slanted)
    # The same federation gives the same bytes: no date, no random identifiers.
    with matplotlib.rc_context({"svg.hashsalt": "fedbc"}):
        no_date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(target.suffix.lower(), {})
        return save_figure(figure, target, metadata=no_date)


def class_counts(split: Split, classes: int) -> np.ndarray:
    """How many examples of each class (column) each device (row) has."""
    devices = len(split.sizes)
    owner = np.repeat(np.arange(devices), split.sizes)
    return np.bincount(owner * classes + split.y, minlength=devices * classes).reshape(devices, classes)


def _title(federation: Federation) -> str:
    total = len(federation.train.y) + len(federation.test.y)
    return f"{federation.name}: {total:,} examples on {federation.devices} devices"


def _draw_sizes(axes: Any, federation: Federation) -> None:
    devices = np.arange(federation.devices)
    train, test = federation.train.sizes, federation.test.sizes
    axes.bar(devices, train, 0.8, color=_TRAIN, label="training")
    bars = axes.bar(devices, test, 0.8, bottom=train, color=_TEST, label="test")
    if federation.devices <= _NAMED_DEVICES:
        axes.bar_label(bars, [f"{n:,}" for n in train + test], padding=2, fontsize=7, color=INK)
        axes.margins(y=0.1)
    axes.set_ylabel("examples", color=INK)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.grid(visible=True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlim(-0.6, federation.devices - 0.4)
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, ncols=2)


def _draw_classes(figure: Any, axes: Any, federation: Federation, classes: int) -> None:
    counts = class_counts(federation.train, classes) + class_counts(federation.test, classes)
    shares = counts / counts.sum(axis=1, keepdims=True)
    top = shares.max()
    grid = classes <= _NAMED_CLASSES and federation.devices <= _NAMED_DEVICES
    # Vector shapes only where the cells are few: a fine mesh is smaller and sharper as an image.
    mesh = axes.pcolormesh(
        np.arange(federation.devices + 1) - 0.5,
        np.arange(classes + 1) - 0.5,
        shares.T,
        cmap="Blues",
        vmin=0,
        vmax=top,
        edgecolors="white" if grid else "none",
        linewidth=1.5 if grid else 0,
        rasterized=not grid,
    )
    if grid:
        for device, c in zip(*np.nonzero(counts), strict=True):
            light = shares[device, c] > 0.55 * top
            axes.text(
                device,
                c,
                f"{counts[device, c]}",
                ha="center",
                va="center",
                fontsize=6,
                color="white" if light else INK,
            )
    axes.set_ylim(classes - 0.5, -0.5)
    axes.set_ylabel("class", color=INK)
    if classes <= _NAMED_CLASSES:
        axes.set_yticks(range(classes), list(map(as_it_is, federation.class_labels)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=30, format=lambda share, _: f"{share:.0%}")
    bar.set_label("share of the device's examples", color=INK, fontsize=8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=0)
