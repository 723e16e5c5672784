"""What the charts of a comparison share: colours of methods, the page's parameters, slim data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

HIDDEN, DEVICE = "hidden", "device"
"""The parameters that the page's controls set: the methods switched off, and the device picked."""

HEIGHT = 260


def by_method(names: Sequence[str], present: Sequence[str] | None = None) -> alt.Color:
    """The method's colour, with a legend of those that are `present`.

    The page's palette decides which colour it is, so that it follows light and dark.
    """
    legend = alt.Legend(symbolOpacity=1, values=list(present if present is not None else names))
    return alt.Color("method:N", title=None, scale=alt.Scale(domain=list(names)), legend=legend)


def picked(yes: float = 0.9, no: float = 0.12) -> Any:
    """Opacity: full for all while no device is picked, then for the picked one."""
    return alt.condition(f"{DEVICE} == null || datum.device == {DEVICE}", alt.value(yes), alt.value(no))


def with_parameters(*layers: alt.Chart, height: int = HEIGHT) -> Any:
    """Layers in one chart that follows the page's controls, as wide as its place; rows without a method always show."""
    shown = [layer.transform_filter(f"indexof({HIDDEN}, datum.method) < 0") for layer in layers]
    parameters = alt.param(name=HIDDEN, value=[]), alt.param(name=DEVICE, value=None)
    return alt.layer(*shown).add_params(*parameters).properties(width="container", height=height)


def slim(rows: pd.DataFrame) -> pd.DataFrame:
    """Numbers to five digits: a page need not carry more."""
    floats = [c for c in rows.columns if pd.api.types.is_float_dtype(rows[c])]
    return rows.assign(**{c: [_short(v) for v in rows[c]] for c in floats})


def _short(value: float) -> float:
    return float(f"{value:.5g}") if np.isfinite(value) else np.nan


def listed(words: Iterable[str]) -> str:
    """In a sentence."""
    *most, last = list(words)
    return f"{', '.join(most)} and {last}" if most else last
