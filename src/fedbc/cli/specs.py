"""From the command line's values and a file to specifications, for every command that runs something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbc.cli import options
from fedbc.data.federation import Federation
from fedbc.data.validation import held_out_sizes
from fedbc.experiments.catalog import CATALOG
from fedbc.experiments.spec import USUAL_MODEL, RunSpec, read_toml
from fedbc.models.base import Model


def requested(
    algorithms: Sequence[str], data_name: str | None, model_name: str | None, config: Path | None, values: Any
) -> dict[str, RunSpec]:
    """One specification an algorithm: the command line's values over the file's over the defaults."""
    tables_ = read_toml(config) if config is not None else {}
    base = RunSpec.from_dict({"algorithm": {"name": "fedbc"}, "data": {"name": "synthetic"}} | tables_)
    names = list(dict.fromkeys(algorithms)) or [str(base.algorithm["name"])]
    data = _overlaid(base.data, "data", data_name, values)
    model = _overlaid(base.model if data["name"] == base.data["name"] else {}, "model", model_name, values, data)
    run = {**base.run, **options.given(values, "run", "")}
    options.refuse_unused(values, "algorithm", names)
    specs = {}
    for name in names:
        kept = base.algorithm if base.algorithm["name"] == name else {"name": name}
        specs[name] = RunSpec({**kept, **options.given(values, "algorithm", name)}, data, model, run)
    return specs


def _overlaid(base: Any, part: str, name: str | None, values: Any, data: Any = None) -> dict[str, Any]:
    chosen = name or base.get("name") or USUAL_MODEL.get(data["name"], "logistic")
    kept = base if base.get("name") == chosen else {"name": chosen}
    if chosen in CATALOG[part]:  # an unknown name is refused, with the nearest match, by the specification
        options.refuse_unused(values, part, [chosen])
    return {**kept, **options.given(values, part, chosen)}


def chosen_on(federation: Federation, model: Model, share: float, seeds: int) -> str:
    """What a choice is made on, in words."""
    taken = held_out_sizes(federation, share)
    small = int((taken == 0).sum())
    kept = f" ({small} devices had too few and keep all of theirs)" if small else ""
    anew = f", held out anew for each of {seeds} seeds" if seeds > 1 else ""
    return (
        f"{federation.name}: {federation.devices} devices, model {model.name}. Chosen on {taken.sum()} validation "
        f"examples, {share:.0%} of each device's training data{kept}{anew}. The test sets were not used for the choice."
    )
