"""`fedbc predict` and `fedbc export`: a finished run in use."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import fedbc
from fedbc import storage
from fedbc.data import read_table
from fedbc.errors import InputError
from fedbc.export import export


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
    result = fedbc.load(run)
    frame = read_table(table)
    told = result.answer_table(frame, device=device, local=local)
    text = told.to_csv(index=False)
    if out is None:
        sys.stdout.write(text)
    else:
        storage.refuse_existing(out)
        storage.write_atomically(out, text)
        print(f"Predictions: {out}")


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
    whose = int(device) if device is not None and device.isdigit() else device
    result = fedbc.load(run)
    whose = device if device in result.meaning.device_names else whose
    for file in export(result, out, device=whose, torch=torch, onnx=onnx):
        print(file)
