"""The model card: what a model was made of, how, how good it is on each device, and what it must not be used for."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbc.errors import InputError
from fedbc.simulation import Result
from fedbc.simulation.telling import data_name, title_of

PERCENT = 100


def model_card(result: Result, device: Any = None) -> str:
    """A model card in Markdown: data, method, settings, accuracy of each device, limits.

    device: whose own model it is about, by name or number; the global model if not given.
    """
    which = "The global model" if device is None else f"The own model of {_label(result, device)}"
    sections = {
        "Data": _data(result),
        "Method": _method(result),
        "Accuracy": _accuracy(result, device),
        "Limits": _limits(result, device),
    }
    body = "\n".join(f"## {heading}\n\n{text}\n" for heading, text in sections.items())
    return f"# {which} of {title_of(result)}\n\n{body}"


def _label(result: Result, device: Any) -> str:
    number = result.meaning.device_number(device, len(result.multipliers))
    return str(result.meaning.device_names[number]) if result.meaning.device_names else f"device {number}"


def _data(result: Result) -> str:
    table, meaning = result.spec.get("data", {}), result.meaning
    lines = [f"- Federation: {data_name(table)}, {len(result.multipliers)} devices"]
    if table.get("checksum"):
        lines.append(f"- Checksum: {table['checksum']}")
    if meaning.device_names:
        lines.append(f"- Devices: {', '.join(meaning.device_names)}")
    if meaning.encoding is not None:
        lines.append(f"- Predicts `{meaning.encoding.label}` from: {', '.join(meaning.encoding.features)}")
        lines.append(
            "- Numbers are standardised by means and deviations of all devices' training rows (meaning.json), made of "
            "sums; missing numbers become the mean"
        )
    if meaning.class_names:
        lines.append(f"- Classes: {', '.join(meaning.class_names)}")
    return "\n".join(lines)


def _method(result: Result) -> str:
    lines = []
    for part in ("algorithm", "model", "run", "versions"):
        values = {k: v for k, v in result.spec.get(part, {}).items() if v is not None and k not in ("file", "checksum")}
        lines.append(f"- {part.capitalize()}: {', '.join(f'{k} = {_words(v)}' for k, v in values.items())}")
    return "\n".join(lines)


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _accuracy(result: Result, device: Any) -> str:
    try:
        rows = result.evaluate()
    except InputError as error:
        return f"Not computed: {error}."
    score, factor, unit = ("accuracy", PERCENT, " %") if "global_accuracy" in rows else ("loss", 1, "")
    validation = result.spec.get("run", {}).get("validation")
    sets = "test" if validation is None else "validation"
    heading = f"| device | {sets} examples | global {score} | own {score} |"
    lines = [heading, "| --- | ---: | ---: | ---: |"]
    for row in rows.to_dict("records"):
        cells = [_number(row.get(f"{kind}_{score}"), factor, unit) for kind in ("global", "local")]
        name = str(row["device"]).replace("|", r"\|")
        lines.append(f"| {name} | {row['examples']} | {cells[0]} | {cells[1]} |")
    count = rows["examples"].to_numpy(float)
    total = [
        float(np.nansum(rows[c] * count) / count.sum()) if c in rows and count.sum() else None
        for c in (f"global_{score}", f"local_{score}")
    ]
    lines.append(
        f"| all | {int(count.sum())} | {_number(total[0], factor, unit)} | {_number(total[1], factor, unit)} |"
    )
    told = (
        f"After the last round, on each device's own {sets} examples, none of which took part in training. Global: the "
        "model z that all share; own: the device's own model x_i."
    )
    if device is not None:
        told += f" This file holds the own model of {_label(result, device)}."
    return "\n".join([told, "", *lines])


def _number(value: float | None, factor: float, unit: str) -> str:
    return "–" if value is None or value != value else f"{value * factor:.{1 if unit else 3}f}{unit}"


def _limits(result: Result, device: Any) -> str:
    rows = result.spec.get("run", {})
    lines = [
        "- One run with one seed: repeat it with others before small differences are believed.",
        "- A device with few test examples has an uncertain accuracy: of 25 examples, one is 4 points.",
        "- Measured on examples of the devices that trained it; other devices, other instruments and later years may "
        "differ.",
        "- Devices sent models, not examples. That alone is no proof of privacy: models can give examples away. "
        "See fedbc.privacy.",
    ]
    if result.diverged is not None:
        lines.insert(0, f"- Not for use: {result.diverged}.")
    if device is not None:
        lines.append("- This model was fitted to one device: do not use it for others without a test of your own.")
    if rows.get("pooled"):
        lines.append("- It was trained on pooled data, for comparison: all examples in one place.")
    return "\n".join(lines)
