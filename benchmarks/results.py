"""The results file: one JSON file with a section a measurement, all of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import machine

DEFAULT = Path(__file__).parent / "results.json"


def read(path: Path) -> dict[str, Any]:
    """What was measured so far."""
    return json.loads(path.read_text()) if path.exists() else {}


def update(path: Path, *keys: str, value: dict[str, Any]) -> None:
    """Put a measurement, with its date, at its place; what another machine measured is dropped."""
    found, here = read(path), machine.describe()
    if found.get("machine") != here:
        found = {"machine": here}
    place = found
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = {"date": machine.now(), **value}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
