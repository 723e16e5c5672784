"""Runs that belong together: those that differ in nothing but seed and split are one method, under its own name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbc.models.base import Model
from fedbc.reports.comparable import build_part, seed_of, split_of
from fedbc.runs import what_counts
from fedbc.simulation.result import Result


def absent_name(result: Result, taken: Mapping[str, object]) -> str:
    """What a run goes by that diverged: its algorithm's name."""
    name = str(result.spec.get("algorithm", {}).get("name", "a run"))
    return f"{name}, another run" if name in taken else name


def grouped(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results that differ in nothing but seed and split, under a name that says how each group differs from the others.

    A run that is there twice counts once.
    """
    groups: dict[str, dict[tuple[int, int], Result]] = {}
    for result in results:
        groups.setdefault(_key(result), {}).setdefault((seed_of(result), split_of(result)), result)
    names = _labels([settings_of(next(iter(group.values()))) for group in groups.values()])
    return {name: list(group.values()) for name, group in zip(names, groups.values(), strict=True)}


def _key(result: Result) -> str:
    """What runs of one method have in common: what counts of their settings, and the names of the models' files."""
    counted = {part: what_counts(part, result.spec.get(part, {})) for part in ("algorithm", "model", "run")}
    for name in ("seed", "resplit"):
        counted["run"].pop(name, None)
    return json.dumps([counted, settings_of(result).get("model.file")], sort_keys=True, default=str)


def settings_of(result: Result) -> dict[str, Any]:
    """What makes a method: all of the specification but data, seed, split, lanes and versions, as one flat table.

    A model of one's own is known by its file's content and name, not by where it lies.
    """
    found = {
        f"{part}.{key}": value
        for part in ("algorithm", "model", "run")
        for key, value in result.spec.get(part, {}).items()
        if part != "run" or key not in ("seed", "resplit", "lanes")
    }
    if found.get("model.file"):
        found["model.file"] = Path(found["model.file"]).name
    return found


def _labels(settings: list[dict[str, Any]]) -> list[str]:
    """The algorithms' names; where several groups share one, with the values in which these differ."""
    algorithms = [str(s["algorithm.name"]) for s in settings]
    labels = []
    for own, algorithm in zip(settings, algorithms, strict=True):
        same = [s for s, a in zip(settings, algorithms, strict=True) if a == algorithm]
        keys = [k for k in own if len({str(s.get(k)) for s in same}) > 1]
        if len({str(s.get("model.file")) for s in same}) == len(same):  # the names of the models' files tell enough
            keys = [k for k in keys if k != "model.checksum"]
        labels.append(", ".join([algorithm, *(_value_in_words(k, own[k]) for k in keys)]))
    return labels


def _value_in_words(key: str, value: Any) -> str:
    """An argument and its value, in a method's name."""
    name = key.split(".", 1)[1]
    if key == "model.file":
        return str(value)
    if key == "model.arguments":
        return ", ".join(f"{k} {v}" for k, v in value.items()) if value else "without arguments"
    return f"{name} {value[:8] if key == 'model.checksum' else value}"


def build_models(methods: Mapping[str, Sequence[Result]]) -> dict[str, Model] | None:
    """The model of each method, the same object where they have the same; None if one cannot be built."""
    known: dict[str, Any] = {}
    models = {}
    for name, results in methods.items():
        key = json.dumps(results[0].spec.get("model"), sort_keys=True, default=str)
        if key not in known:
            known[key] = build_part(results[0], "model")
        models[name] = known[key]
    return None if any(m is None for m in models.values()) else models
