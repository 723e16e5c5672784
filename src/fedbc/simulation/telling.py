"""A result in a few words, for a terminal and for a notebook."""

from __future__ import annotations

import html as escaping
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbc.errors import InputError
from fedbc.simulation.curves import curves

if TYPE_CHECKING:
    from fedbc.simulation.result import Result

SHOWN = (
    ("global_accuracy", "global accuracy", 100, " %"),
    ("local_accuracy", "local accuracy", 100, " %"),
    ("worst_accuracy", "worst device", 100, " %"),
    ("global_test_loss", "test loss", 1, ""),
)


def title_of(result: Result) -> str:
    """Method and data."""
    return f"{result.spec.get('algorithm', {}).get('name', 'run')} on {data_name(result.spec.get('data', {}))}"


def data_name(table: Mapping[str, Any]) -> str:
    """What the data of a specification's [data] are called: one's own by their file."""
    return Path(table["file"]).stem if table.get("file") else str(table.get("name", "one federation"))


def words(result: Result) -> str:
    """Two lines."""
    size = f"{result.rounds} rounds, {len(result.multipliers)} devices"
    told = [f"{label} {value}" for label, value in _numbers(result)]
    lines = [f"Result({title_of(result)}: {size})", *([f"  {', '.join(told)}"] if told else [])]
    return "\n".join([*lines, *([f"  {result.diverged}"] if result.diverged else [])])


def html(result: Result) -> str:
    """A table, and the curves where Matplotlib is there."""
    rows = [("rounds", str(result.rounds)), ("devices", str(len(result.multipliers))), *_numbers(result)]
    rows += [("diverged", result.diverged)] if result.diverged else []
    body = "".join(f"<tr><th>{escaping.escape(k)}</th><td>{escaping.escape(v)}</td></tr>" for k, v in rows)
    title = escaping.escape(title_of(result))
    return f"<p><b>{title}</b></p><table><tbody>{body}</tbody></table>{_picture(result)}"


def _numbers(result: Result) -> list[tuple[str, str]]:
    summary: dict[str, Any] = result.summary()
    found = []
    for key, label, factor, unit in SHOWN:
        value = summary.get(key)
        if value is not None and value == value:
            found.append((label, f"{value * factor:.{1 if unit else 3}f}{unit}"))
    if found:
        found.append(("mean over", f"the last {min(summary['last_rounds'], result.rounds)} rounds"))
    return found


def _picture(result: Result) -> str:
    try:
        figure = curves({str(result.spec.get("algorithm", {}).get("name", "run")): result})
    except InputError:  # Matplotlib is not there
        return ""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    text = drawn.getvalue()
    return text[text.index("<svg") :]
