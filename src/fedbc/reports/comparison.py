"""Several methods on one federation, side by side: which runs belong together, and their numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedbc.data.federation import Federation
from fedbc.errors import InputError
from fedbc.models.base import Model
from fedbc.reports.tables import SCORES, Column, Table
from fedbc.simulation.result import Result, load

if TYPE_CHECKING:
    from fedbc.reports.charts import Chart
    from fedbc.reports.page import Page

Given = Result | str | Path
"""A result, or the folder that holds one."""


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods on one federation, some seeds each.

    In a notebook: `table` is a frame, `words` says what differs, `charts` holds Altair's charts by name, and
    `write(folder)` writes the page, the figures and the tables.
    """

    methods: Mapping[str, Sequence[Result]]
    """the runs of each method, one a seed"""
    federation: Federation | None = field(default=None, repr=False)
    model: Mapping[str, Model] | None = field(default=None, repr=False)
    """of each method; without federation and models there are no accuracies of single devices"""
    failures: Sequence[str] = ()
    """what became of runs that are missing"""

    @property
    def names(self) -> list[str]:
        """The methods, in the order in which they were given."""
        return list(self.methods)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a run: method, seed and the run's summary."""
        return pd.DataFrame(
            [{"method": name, "seed": seed_of(r), **r.summary()} for name, rs in self.methods.items() for r in rs]
        )

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a method: means over its seeds, and standard deviations in columns that end in `_std`."""
        rows = []
        for name in self.names:
            own = self.runs[self.runs["method"] == name].drop(columns=["method", "seed"])
            spread = own.std(ddof=1).add_suffix("_std")
            rows.append({"method": name, "seeds": len(own), **own.mean(), **spread})
        return pd.DataFrame(rows)

    @property
    def summary(self) -> Table:
        """The table as it is shown: the scores that some method has."""
        shown = [c for c in SCORES if c.key in self.table and self.table[c.key].notna().any()]
        columns = [Column("method", "method"), Column("seeds", "seeds", 0)]
        columns += [Column(c.key, c.heading, c.digits, _spread_of(c), c.factor) for c in shown]
        last = f"Means over the last {self.last} rounds" if self.last else "Last rounds"
        caption = (
            f"{last}, ± standard deviation over seeds. Global accuracy: the global model z on all devices' test sets; "
            "local: each device's own model x_i on its own; variance and worst device: z on each device's test set. A "
            "difference within two standard deviations of it over seeds is called within the spread."
        )
        return Table("summary", "The methods in numbers", self.table, columns, caption)

    @property
    def last(self) -> int | None:
        """Over how many rounds a run's summary is a mean."""
        return int(self.runs["last_rounds"].iloc[0]) if "last_rounds" in self.runs else None

    @cached_property
    def words(self) -> list[str]:
        """What differs, in plain words."""
        from fedbc.reports.differences import sentences

        return sentences(self.runs, self.names)

    @cached_property
    def devices(self) -> pd.DataFrame:
        """One row a method, seed and device: accuracies after the last round, duals, drift, shares in the mean."""
        from fedbc.reports.bydevice import device_rows, scorers

        scored = scorers(self.federation, self.model or {})
        parts = [
            device_rows(r, self.federation, scored.get(name)).assign(method=name, seed=seed_of(r))
            for name, results in self.methods.items()
            for r in results
        ]
        frame = pd.concat(parts, ignore_index=True)
        return frame[["method", "seed", *(c for c in frame.columns if c not in ("method", "seed"))]]

    def page(self) -> Page:
        """The whole comparison as a page."""
        from fedbc.reports.comparisonpage import page

        return page(self)

    @property
    def charts(self) -> dict[str, Chart]:
        """Its charts by name; `.chart` of each is Altair's."""
        return {chart.name: chart for chart in self.page().charts}

    def write(self, folder: str | Path) -> Path:
        """Write index.html, figures/ (PNG, SVG) and tables/ (CSV, LaTeX) into a folder; the page's path is returned."""
        from fedbc.reports.comparisonpage import write

        return write(self, Path(folder))

    def _repr_html_(self) -> str:
        from fedbc.reports.comparisonpage import notebook_html

        return notebook_html(self)


def _spread_of(column: Column) -> str | None:
    """Wall times vary with what else the machine does, which is of no interest."""
    return None if column.key == "seconds" else f"{column.key}_std"


def compare(
    results: Mapping[str, Given | Sequence[Given]] | Sequence[Given],
    *,
    federation: Federation | None = None,
    model: Model | None = None,
) -> Comparison:
    """Compare runs of several methods on one federation.

    results: for each method its result, or several with different seeds; or a plain list, whose runs are put together
        where they differ in nothing but the seed. A folder's path stands for the run in it.
    federation, model: what the runs were made with. Needed for accuracies of single devices and the partition's
        picture where the runs' specifications do not say how to build them, as with your own data.
    """
    if isinstance(results, Mapping):
        methods = {str(name): _loaded(given) for name, given in results.items()}
    else:
        methods = grouped(_loaded(results))
    if not methods or not all(methods.values()):
        raise InputError(f"results={results!r} is not accepted: give at least one result")
    check_same_federation({name: r for name, rs in methods.items() for r in rs[:1]} | _numbered(methods))
    built = federation if federation is not None else built_part(next(iter(methods.values()))[0], "data")
    models = dict.fromkeys(methods, model) if model is not None else built_models(methods)
    return Comparison(methods, built, models)


def _loaded(given: Given | Sequence[Given]) -> list[Result]:
    several = [given] if isinstance(given, Result | str | Path) else list(given)
    return [g if isinstance(g, Result) else load(g) for g in several]


def _numbered(methods: Mapping[str, Sequence[Result]]) -> dict[str, Result]:
    return {f"{name}, seed {seed_of(r)}": r for name, rs in methods.items() for r in rs[1:]}


def seed_of(result: Result) -> int:
    """The run's seed."""
    return int(result.spec["run"].get("seed", 0))


def grouped(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results that differ in nothing but their seed, under a name that says how each group differs from the others.

    A run that is there twice counts once.
    """
    groups: dict[str, dict[int, Result]] = {}
    for result in results:
        key = json.dumps(settings_of(result), sort_keys=True, default=str)
        groups.setdefault(key, {}).setdefault(seed_of(result), result)
    names = _labels([settings_of(next(iter(group.values()))) for group in groups.values()])
    return {name: list(group.values()) for name, group in zip(names, groups.values(), strict=True)}


def settings_of(result: Result) -> dict[str, Any]:
    """What makes a method: everything in the specification but data, seed, lanes and versions, as one flat table."""
    return {
        f"{part}.{key}": value
        for part in ("algorithm", "model", "run")
        for key, value in result.spec.get(part, {}).items()
        if (part, key) not in (("run", "seed"), ("run", "lanes"))
    }


def _labels(settings: list[dict[str, Any]]) -> list[str]:
    """The algorithms' names; where several groups share one, with the values in which these differ."""
    algorithms = [str(s["algorithm.name"]) for s in settings]
    labels = []
    for own, algorithm in zip(settings, algorithms, strict=True):
        same = [s for s, a in zip(settings, algorithms, strict=True) if a == algorithm]
        keys = [k for k in own if len({str(s.get(k)) for s in same}) > 1]
        labels.append(", ".join([algorithm, *(f"{k.split('.', 1)[1]} {own[k]}" for k in keys)]))
    return labels


def check_same_federation(results: Mapping[str, Result]) -> None:
    """Runs on different data cannot be compared: an InputError that says in what they differ."""
    tables = {name: dict(r.spec.get("data", {})) for name, r in results.items()}
    if len({"checksum" in table for table in tables.values()}) > 1:
        tables = {name: _by_checksum(results[name], table) for name, table in tables.items()}
    (first, one), *others = tables.items()
    for name, table in others:
        for key in dict.fromkeys([*one, *table]):
            if one.get(key) != table.get(key):
                raise InputError(
                    f"{first} and {name} were run on different federations: data {key} is {one.get(key)!r} and "
                    f"{table.get(key)!r}; compare runs on one federation"
                )


def _by_checksum(result: Result, table: dict[str, Any]) -> dict[str, Any]:
    """The simulator's own description of the data, where a run folder names them."""
    from fedbc.simulation.simulate import checksum

    built = built_part(result, "data") if "checksum" not in table else None
    return {"checksum": checksum(built) if built is not None else table.get("checksum")}


def built_part(result: Result, part: str) -> Any:
    """The data or the model that a run's specification names; None where it only describes them."""
    from fedbc.experiments.spec import RunSpec

    try:
        return RunSpec.from_dict(result.spec).build_part(part)
    except InputError:
        return None


def built_models(methods: Mapping[str, Sequence[Result]]) -> dict[str, Model] | None:
    """The model of each method, the same object where they have the same; None if one cannot be built."""
    known: dict[str, Any] = {}
    models = {}
    for name, results in methods.items():
        key = json.dumps(results[0].spec.get("model"), sort_keys=True, default=str)
        if key not in known:
            known[key] = built_part(results[0], "model")
        models[name] = known[key]
    return None if any(m is None for m in models.values()) else models


def finite(values: Any) -> np.ndarray:
    """As floats, with NaN for what is not finite."""
    array = np.asarray(values, float)
    return np.where(np.isfinite(array), array, np.nan)
