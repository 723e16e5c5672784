"""Metrics beside accuracy and loss in a comparison: of each device, of each run, and as scores to compare by.

Methods are compared by means over devices, of z and of the devices' own models, because these have an error by device;
what z has on the examples of all devices together stands in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from fedbc import metrics as measures
from fedbc.reports.differences import Score
from fedbc.reports.tables import Column, Table

Metrics = Mapping[str, Callable[..., float]] | Sequence[str]
RUN = ["method", "seed", "split"]
"""The columns that tell a run."""


def check(metrics: Metrics | None, *, classes: bool) -> None:
    """Metrics that are unknown, or do not suit what the model predicts, are an InputError."""
    measures.chosen(metrics or (), classes=classes)


def _together(measured: pd.DataFrame) -> pd.DataFrame:
    """The rows of all devices together: the last of each run; whatever a device is called, it is not taken for them."""
    return measured.groupby(RUN, sort=False).tail(1)


def of_devices(measured: pd.DataFrame, metrics: Metrics) -> pd.DataFrame:
    """One row per run and device."""
    rows = measured.drop(_together(measured).index)
    return rows[[*RUN, "device", *_columns(measured, metrics)]].infer_objects()


def of_runs(measured: pd.DataFrame, metrics: Metrics) -> pd.DataFrame:
    """One row per run: z on all devices' examples, and the means over devices of z and of their own models."""
    means = of_devices(measured, metrics).drop(columns="device").groupby(RUN, sort=False).mean()
    whole = _together(measured).set_index(RUN)
    renamed = {f"global_{name}": f"global_{name}_mean" for name in metrics}
    return means.rename(columns=renamed).join(whole[[f"global_{name}" for name in metrics]]).reset_index()


def _columns(measured: pd.DataFrame, metrics: Metrics) -> list[str]:
    """Of z, and of the devices' own models where there are any."""
    return [c for name in metrics for c in (f"global_{name}", f"local_{name}") if c in measured]


def scores(metrics: Metrics) -> list[Score]:
    """What methods are compared by: not by functions of one's own, of which nobody knows what is better."""
    found = []
    for name in metrics if not isinstance(metrics, Mapping) else ():
        metric = measures.METRICS[name]
        said = f"{'highest' if metric.higher_is_better else 'lowest'} {_in_words(name)}, mean over devices"
        better = bool(metric.higher_is_better)
        for column, of_devices, whose in (
            (f"global_{name}_mean", f"global_{name}", "the global model"),
            (f"local_{name}", f"local_{name}", "the local models"),
        ):
            words = f"{whose} of {said}"
            found.append(Score(column, words, "", 1, better, "", 3, by_examples=False, of_devices=of_devices))
    return found


def _in_words(name: str) -> str:
    words = {"auc": "AUC", "f1": "F1", "rmse": "RMSE", "mae": "MAE", "r2": "R²"}
    return words.get(name, name.replace("_", " "))


def table(frame: pd.DataFrame, metrics: Metrics, over: str, sets: str) -> Table:
    """One row per method: z on all examples, and means over devices."""
    columns = [Column("method", "method")]
    for name in metrics:
        for column, heading in (
            (f"global_{name}", f"z, all\n{_in_words(name)}"),
            (f"global_{name}_mean", f"z, mean\n{_in_words(name)}"),
            (f"local_{name}", f"own, mean\n{_in_words(name)}"),
        ):
            if column in frame:
                columns.append(Column(column, heading, 3, f"{column}_std"))
    caption = (
        f"After the last round, on the {sets} sets, ± standard deviation over {over}. All: the examples of all devices "
        "together; mean: over devices, without those of which it cannot be said; own: each device's own model."
    )
    return Table("metrics", "Further metrics", frame, columns, caption)
