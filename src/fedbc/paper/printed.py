"""The paper's own numbers, as it prints them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any


@cache
def tables() -> dict[str, Any]:
    """Every table's cells: accuracies, class partitions, size ranges."""
    return json.loads((resources.files("fedbc.paper") / "tables.json").read_text())


def cell(source: str, name: str | None, setting: Mapping[str, Any]) -> dict[str, Any] | None:
    """The cell of a method, by the paper's name for it, in a setting; None if the paper has none."""
    for row in tables()[source]["rows"]:
        if row["algorithm"] == name and all(row.get(k, v) == v for k, v in setting.items()):
            return row
    return None
