"""Several methods on one federation, side by side: which runs belong together, and their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedbc import checks, drawing, progress, storage
from fedbc.data import measured_examples
from fedbc.data.federation import Federation
from fedbc.errors import InputError
from fedbc.models.base import Model
from fedbc.personalization import Personalized, personalize
from fedbc.personalization import advice_table as advice_of
from fedbc.reports import comparable, metric_scores
from fedbc.reports.comparable import build_part, measured_on, seed_of, split_of, validation_of
from fedbc.reports.grouping import absent_name, build_models, grouped
from fedbc.reports.metric_scores import Metrics
from fedbc.reports.tables import Column, Table, shown_scores
from fedbc.runs import MethodRuns, RunSpec, check_workers, data_name, load, usual_folder
from fedbc.simulation.metrics import TEST_LOSSES, has_accuracy
from fedbc.simulation.result import Result

if TYPE_CHECKING:
    from fedbc.reports.charts import Chart
    from fedbc.reports.differences import Score
    from fedbc.reports.page import Page

Given = Result | str | Path
"""A result, or the folder that holds one."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of several methods on one federation, some seeds each.

    In a notebook: `table` is a frame, `words` says what differs, `charts` holds Altair's charts by name, and
    `write(folder)` writes the page, the figures and the tables.
    """

    methods: Mapping[str, Sequence[Result]]
    """the runs of each method, one for each seed and split"""
    federation: Federation | None = field(default=None, repr=False)
    model: Mapping[str, Model] | None = field(default=None, repr=False)
    """of each method; without federation and models there are no accuracies of single devices"""
    failures: Sequence[str] = ()
    """what became of runs that are missing"""
    personal: Mapping[str, Sequence[Personalized]] = field(default_factory=dict, repr=False)
    """each run personalised, if that was asked for"""
    metrics: Metrics | None = None
    """further metrics: names of `fedbc.metrics`, or functions of one's own"""

    @property
    def names(self) -> list[str]:
        """The methods, in the order in which they were given."""
        return list(self.methods)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run: method, seed, split of the data, the run's summary, and the metrics asked for."""
        found = pd.DataFrame(
            [
                {"method": name, "seed": seed_of(r), "split": split_of(r), **r.summary()}
                for name, rs in self.methods.items()
                for r in rs
            ]
        )
        if self.metrics is None:
            return found
        return found.merge(metric_scores.of_runs(self._measured, self.metrics), on=metric_scores.RUN)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per method: means over its runs, and standard deviations in columns that end in `_std`."""
        rows = []
        for name in self.names:
            own = self.runs[self.runs["method"] == name]
            counts = {"seeds": own["seed"].nunique(), "splits": own["split"].nunique()}
            own = own.drop(columns=["method", "seed", "split"]).select_dtypes("number")  # why a run ended is a word
            spread = own.std(ddof=1).add_suffix("_std")
            rows.append({"method": name, **counts, **own.mean(), **spread})
        return pd.DataFrame(rows)

    @property
    def over(self) -> str:
        """What means and spreads are taken over."""
        return "seeds and splits" if (self.table["splits"] > 1).any() else "seeds"

    @property
    def summary(self) -> Table:
        """The table as it is shown: the scores that some method has."""
        shown = shown_scores(self.table)
        columns = [Column("method", "method"), Column("seeds", "seeds", 0)]
        columns += [Column("splits", "splits", 0)] if "splits" in self.over else []
        columns += [Column(c.key, c.heading, c.digits, _spread_of(c), c.factor) for c in shown]
        last = f"Means over the last {self.last} rounds" if self.last else "Last rounds"
        fewest, most = self.runs["rounds"].min(), self.runs["rounds"].max()
        unequal = "" if fewest == most else f"The runs have {fewest} to {most} rounds. "
        over = self.over.replace(" and ", ", ")
        caption = (
            f"{unequal}{last}, ± standard deviation over {self.over}. Global: the global model z on all devices' "
            f"{self.sets} sets; local: each device's own model xᵢ on its own; variance and worst device: z on each "
            f"device's own. A difference within twice its error, from {over} and finite test sets, is not called clear."
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

        return sentences(self.runs, self.names, self._tested, self._more)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """How far each score's best method is ahead of the others, the errors of that, and whether it is clear."""
        from fedbc.reports.differences import table

        return table(self.runs, self.names, self._tested, self._more)

    @property
    def _more(self) -> list[Score]:
        """The metrics that methods are compared by, beside the usual scores."""
        return [] if self.metrics is None else metric_scores.scores(self.metrics)

    @cached_property
    def _measured(self) -> pd.DataFrame:
        """The metrics of each run, device by device and of all devices' examples together."""
        if self.federation is None or not self.model:
            raise InputError("the runs do not say how to build their data and model: give federation= and model=")
        parts = []
        for name, results in self.methods.items():
            for r in results:
                own = measured_on(r, self.federation)
                asked = replace(r, source={"model": self.model[name], "data": own}.__getitem__)
                rows = asked.evaluate(metrics=self.metrics, together=True)
                parts.append(rows.assign(method=name, seed=seed_of(r), split=split_of(r)))
        return pd.concat(parts, ignore_index=True)

    @property
    def metrics_table(self) -> Table | None:
        """The metrics asked for, as they are shown."""
        if self.metrics is None:
            return None
        return metric_scores.table(self.table, self.metrics, self.over, self.sets)

    def personalized(self, folder: str | Path | None = None, **how: Any) -> Comparison:
        """The comparison with each run's models personalised (`fedbc.personalize`), for `advice` and the page.

        folder: keeps the work, so that the same call goes on; `how` is passed to `fedbc.personalize`.
        """
        if self.federation is None or not self.model:
            raise InputError("the runs do not say how to build their data and model: give federation= and model=")
        federation, model = self.federation, self.model
        found = {}
        for name, results in self.methods.items():
            places = [None if folder is None else Path(folder) / _place(name, r) for r in results]
            found[name] = [
                personalize(result, model[name], federation, checkpoint=place, **how)
                for result, place in zip(results, places, strict=True)
            ]
        return replace(self, personal=found)

    @cached_property
    def advice(self) -> pd.DataFrame:
        """One row per method and device: what z, x_i, a model trained alone and the personalised model get right on its
        test set, the paired difference between the last and z, and what to use. Personalises, if that was not done."""
        if not self.personal:
            return self.personalized().advice
        parts = []
        for name, runs in self.personal.items():
            examples = None
            if self.federation is not None:
                examples = [measured_examples(self.federation, r.spec["run"]) for r in self.methods[name]]
            parts.append(advice_of(runs, examples).assign(method=name))
        frame = pd.concat(parts, ignore_index=True)
        return frame[["method", *(c for c in frame.columns if c != "method")]]

    @property
    def _tested(self) -> pd.DataFrame | None:
        """The accuracies of single devices, where they are known."""
        return self.devices if self.federation is not None and self.model else None

    @property
    def algorithms(self) -> dict[str, str]:
        """What each method runs: its colour goes by it."""
        return {name: str(rs[0].spec.get("algorithm", {}).get("name", name)) for name, rs in self.methods.items()}

    @property
    def sets(self) -> str:
        """What the scores are of: "test" or "validation" sets."""
        return "test" if validation_of(next(iter(self.methods.values()))[0]) is None else "validation"

    @property
    def has_accuracy(self) -> bool:
        """Whether answers are right or wrong; if not, as in regression, losses are compared."""
        return has_accuracy(self.table)

    @cached_property
    def devices(self) -> pd.DataFrame:
        """One row per method, run and device: scores after the last round, duals, drift, shares in the mean."""
        from fedbc.reports.device_rows import Scorers, device_rows

        scorers = Scorers(self.model or {})
        parts = []
        for name, results in self.methods.items():
            for r in results:
                own = measured_on(r, self.federation) if self.federation is not None else None
                parts.append(
                    device_rows(r, own, scorers.of(name, own)).assign(method=name, seed=seed_of(r), split=split_of(r))
                )
        frame = pd.concat(parts, ignore_index=True)
        first = metric_scores.RUN
        if self.metrics is not None:
            frame = frame.merge(metric_scores.of_devices(self._measured, self.metrics), on=[*first, "device"])
        return frame[[*first, *(c for c in frame.columns if c not in first)]]

    def page(self) -> Page:
        """The whole comparison as a page."""
        drawing.need()
        from fedbc.reports.comparison_page import page

        return page(self)

    @property
    def charts(self) -> dict[str, Chart]:
        """Its charts by name; `.chart` of each is Altair's."""
        return {chart.name: chart for chart in self.page().charts}

    def write(self, folder: str | Path) -> Path:
        """Write index.html, figures/ (PNG, SVG) and tables/ (CSV, LaTeX) into a folder; the page's path is returned."""
        from fedbc.reports.comparison_page import write

        _mark(Path(folder), self)
        return write(self, Path(folder))

    def __repr__(self) -> str:
        data = data_name(next(iter(self.methods.values()))[0].spec.get("data", {}))
        lines = [f"Comparison(on {data}; page: .write(folder), sentences: .words)"]
        for row in self.table.to_dict("records"):
            scores = [
                f"{' '.join(column.heading.split())} {row[column.key] * column.factor:.{column.digits}f}"
                for column in self.summary.columns
                if column.key in (*ACCURACIES, *TEST_LOSSES) and not np.isnan(row[column.key])
            ]
            lines.append(", ".join([f"{row['method']}, {row['seeds']} seeds", *scores]))
        return "\n  ".join([*lines, *(f"missing: {failure}" for failure in self.failures)])

    def _repr_html_(self) -> str:
        from fedbc.reports.comparison_page import notebook_html

        return notebook_html(self)


def _place(name: str, result: Result) -> str:
    """The folder of a run's personalisation."""
    split = f"-split-{split_of(result)}" if split_of(result) else ""
    return f"{name}-seed-{seed_of(result)}{split}"


def _spread_of(column: Column) -> str | None:
    """Wall times vary with what else the machine does, which is of no interest."""
    return None if column.key == "seconds" else f"{column.key}_std"


def compare(
    results: Mapping[str, Given | Sequence[Given]] | Sequence[Given],
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    any_rounds: bool = False,
    metrics: Metrics | None = None,
) -> Comparison:
    """Compare runs of several methods on one federation.

    Runs that diverged are left out, and said to be.

    results: for each method its result, or several with different seeds; or a plain list, whose runs are put together
        where they differ in nothing but the seed and the split. A folder's path stands for the run in it.
    federation, model: what the runs were made with. Needed for accuracies of single devices and the partition's
        picture where the runs' specifications do not say how to build them, as with your own data.
    any_rounds: whether runs of unequal length may be compared.
    metrics: names of `fedbc.metrics`, such as ["balanced_accuracy", "auc"], or functions of one's own, of true labels
        and predictions, by their names: shown beside the usual scores, of each device and of all.
    """
    if isinstance(results, Mapping):
        methods = {str(name): _loaded(given) for name, given in results.items()}
    else:
        loaded = _loaded(results)
        methods = grouped([r for r in loaded if r.diverged is None])
        for result in loaded:
            if result.diverged is not None:  # its rounds are of no account: it goes by its algorithm's name
                methods.setdefault(absent_name(result, methods), []).append(result)
    if not methods or not all(methods.values()):
        raise InputError("results is not accepted: give at least one result for each method")
    methods, failures = comparable.without_diverged(methods)
    comparable.check_comparable(methods, any_rounds=any_rounds)
    runs = [r for rs in methods.values() for r in rs]
    if federation is not None:
        comparable.check_is_theirs(federation, runs)
    if model is not None:
        for name, rs in methods.items():
            comparable.check_fits(model, rs[0], name)
    built = federation if federation is not None else build_part(runs[0], "data")
    models = dict.fromkeys(methods, model) if model is not None else build_models(methods)
    several = models.values() if models else ()
    for wanted in several:
        metric_scores.check(metrics, classes=wanted.correct is not None)
    return Comparison(methods, built, models, failures, metrics=metrics or None)


ACCURACIES = ("global_accuracy", "local_accuracy")

MARK = "comparison.json"
"""Tells a folder with a comparison from any other; it may be written anew."""


def is_comparison(folder: Path) -> bool:
    """Whether a folder holds a comparison, which may be written anew."""
    return (folder / MARK).exists()


def _mark(target: Path, comparison: Comparison | None) -> None:
    """Say, before the rest is written, that the folder is a comparison's; and when it is done, which runs are in it."""
    specs = [] if comparison is None else [r.spec for rs in comparison.methods.values() for r in rs]
    with storage.explained(target):
        target.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(target / MARK, storage.to_json({"runs": specs}))


def run_comparison(
    specs: Mapping[str, RunSpec],
    folder: str | Path | None = None,
    *,
    seeds: int = 1,
    splits: int = 1,
    metrics: Metrics | None = None,
    workers: int | None = None,
    ray: str | None = None,
    quiet: bool = False,
) -> Comparison:
    """Run methods on one federation, with several seeds each, and compare them.

    specs: one specification per method, by the name to show.
    folder: where the runs are kept, runs/compare-METHODS-DATA if not given; what is finished there is used again, what
        was begun goes on.
    seeds: how many, from each specification's own on.
    splits: over how many divisions of each device's examples into training and test sets: the one that the data come
        with, and others, drawn anew; each is run with every seed.
    metrics: as for `fedbc.compare`.
    workers, ray, quiet: as in `fedbc.sweep`.
    """
    checks.integer("seeds", seeds, at_least=1)
    checks.integer("splits", splits, at_least=1)
    check_workers(workers)
    if not specs:
        raise InputError("specs={} is not accepted: give a specification for each method")
    first = next(iter(specs.values()))
    target = Path(folder) if folder is not None else usual_folder("compare", *specs, first.data_name)
    federation, model = first.build_part("data"), first.build_part("model")
    metric_scores.check(metrics, classes=model.correct is not None)
    for spec in specs.values():
        spec.with_split(spec.split + splits - 1).check(spec.build_part("algorithm"), model, federation)
    methods = {
        name: [spec.with_seed(spec.seed + i).with_split(spec.split + k) for k in range(splits) for i in range(seeds)]
        for name, spec in specs.items()
    }
    if not is_comparison(target):
        storage.refuse_existing(target)
        _mark(target, None)
    kept = MethodRuns(target / "runs")
    with progress.shown(quiet=quiet) as display:
        every = [spec for several in methods.values() for spec in several]
        failures = kept.run(every, workers=workers, ray=ray, say=display.say)
    results = kept.results(methods)
    if not results:
        raise InputError(f"no run came to its end, so there is nothing to compare: {failures[0]}")
    comparable.check_comparable(results)
    return Comparison(results, federation, dict.fromkeys(results, model), failures, metrics=metrics or None)


def _loaded(given: Given | Sequence[Given]) -> list[Result]:
    several = [given] if isinstance(given, Result | str | Path) else list(given)
    return [g if isinstance(g, Result) else load(g) for g in several]
