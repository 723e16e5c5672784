"""What the charts of a comparison share: colours of methods, the page's parameters, slim data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from fedbc.drawing import COLOURS, MORE, places
from fedbc.reports.page import MANY
from fedbc.runs import CATALOG

HIDDEN, DEVICE = "hidden", "device"
"""The parameters that the page's controls set: the methods switched off, and the device picked."""

HEIGHT = 260


def colour_places(methods: Mapping[str, str]) -> dict[str, int]:
    """Which of a page's colours each method or run has; `methods` says which algorithm each is."""
    return places(list(methods), methods, list(CATALOG["algorithm"]), len(COLOURS) + len(MORE))


def by_method(methods: Mapping[str, str], present: Sequence[str] | None = None) -> alt.Color:
    """The method's colour, with a legend of those that are `present`, unless they are too many for one.

    The page's palette decides which colour it is, so that it follows light and dark; the places in the scale's domain
    that no method has are blank.
    """
    scale, legend = alt.Scale(domain=domain(methods)), _legend(methods, present)
    return alt.Color("method:N", title=None, scale=scale, legend=legend)


def shape_by_method(methods: Mapping[str, str]) -> alt.Shape:
    """The method's shape; its legend is one with that of the colours."""
    scale, legend = alt.Scale(domain=domain(methods)), _legend(methods, None)
    return alt.Shape("method:N", title=None, scale=scale, legend=legend)


def _legend(methods: Mapping[str, str], present: Sequence[str] | None) -> alt.Legend | None:
    shown = list(present if present is not None else methods)
    return alt.Legend(symbolOpacity=1, values=shown) if len(methods) <= MANY else None


def domain(methods: Mapping[str, str]) -> list[str]:
    """Of a scale over methods: each at the place of its colour, blanks elsewhere."""
    by_place: dict[int, list[str]] = {}
    for name, place in colour_places(methods).items():
        by_place.setdefault(place, []).append(name)
    room, turns = len(COLOURS) + len(MORE), max(map(len, by_place.values()), default=1)
    # The palette begins again after its last colour, and so does the domain where a colour has several names.
    places_and_turns = [(place, turn) for turn in range(turns) for place in range(room)]
    return [(by_place.get(place, [])[turn:] or [f"\u200b{turn} {place}"])[0] for place, turn in places_and_turns]


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
