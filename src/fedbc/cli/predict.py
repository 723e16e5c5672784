"""`fedbc predict` and `fedbc export`: a finished run in use."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import click

import fedbc
from fedbc import storage
from fedbc.data import read_table
from fedbc.errors import InputError, Notice
from fedbc.export import export
from fedbc.runs import RunFolder


@click.command("predict", short_help="Answer the rows of a table with a run's models.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--device", help="Whose own model answers. [default: the global model]")
@click.option(
    "--local", is_flag=True, help="Each row is answered by its own device's model; new devices' by the global."
)
@click.option("--out", type=click.Path(path_type=Path), help="CSV file; printed if not given.")
def predict_command(run: Path, table: Path, device: str | None, local: bool, out: Path | None) -> None:
    """Answer each row of TABLE (.csv, .tsv, .parquet) with the models of RUN: the table, with columns added for the
    prediction, the probability of the predicted class, and the model that answered.

    \b
    fedbc predict runs/fedbc-clinics-1 new-patients.csv --out predictions.csv
    fedbc predict runs/fedbc-clinics-1 new-patients.csv --local
    """
    if device is not None and local:
        raise InputError("--device and --local cannot both be given")
    result = _load(run)
    encoding = result.meaning.encoding
    frame = read_table(table, [encoding.device] if encoding is not None else [])
    told = result.answer_table(frame, device=device, local=local)
    text = told.to_csv(index=False)
    if out is None:
        sys.stdout.write(text)
    else:
        storage.refuse_existing(out)
        storage.write_atomically(out, text)
        print(f"Predictions: {out}")


def _load(run: Path) -> fedbc.Result:
    """A run to be used: one of several must be named, and one that diverged is told of."""
    folder = RunFolder(run)
    inner = [] if folder.is_one or not run.is_dir() else RunFolder.find(run)
    if inner:
        raise InputError(f"{run} is no run but holds some: give one of {', '.join(str(r.path) for r in inner)}")
    result = fedbc.load(run)
    if result.diverged is not None:
        warnings.warn(f"its models are those of round {result.rounds}: {result.diverged}", Notice, stacklevel=2)
    return result


@click.command("export", short_help="A run's model for others: safetensors, model card, PyTorch, ONNX.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder, a new one.")
@click.option("--device", help="Whose own model. [default: the global model]")
@click.option("--torch", is_flag=True, help="Also a PyTorch state_dict, for fedbc's own models.")
@click.option("--onnx", is_flag=True, help="Also an ONNX graph; for logistic, linear and mlp.")
def export_command(run: Path, out: Path, device: str | None, torch: bool, onnx: bool) -> None:
    """Write a model of RUN into a folder: safetensors, a model card (data, method, settings, accuracy per device,
    limits) and what its numbers stand for.

    \b
    fedbc export runs/fedbc-clinics-1 --out model --onnx
    """
    result = _load(run)
    by_number = device is not None and device.isdecimal() and not result.meaning.device_names
    whose: Any = int(device) if device is not None and by_number else device
    for file in export(result, out, device=whose, torch=torch, onnx=onnx):
        print(file)
