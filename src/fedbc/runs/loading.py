"""A result from its folder, with the model and the data that its specification names."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbc import data as data_sets
from fedbc.data import Federation
from fedbc.errors import InputError
from fedbc.models import Model
from fedbc.runs.spec import RunSpec
from fedbc.simulation.result import Result, RunFolder


def load(path: str | Path, *, model: Model | None = None, data: Federation | None = None) -> Result:
    """Read a result that `Result.save` or `fedbc run` wrote; parameters come back as nested dicts of arrays.

    model, data: what the run was made with. Needed to predict and to evaluate where the specification only describes
        them, as after `fedbc.simulate` with a model of your own.
    """
    result = RunFolder(path).read()
    given = {"model": model, "data": data}

    @functools.cache
    def part(which: str) -> Any:
        try:
            built: Any = given[which] if given[which] is not None else RunSpec.from_dict(result.spec).build_part(which)
        except InputError as error:
            raise InputError(
                f"{path} does not say how to build its {which} ({error}): give it by fedbc.load(folder, {which}=...)"
            ) from None
        # What a run was measured on while it chose: its test sets are still nobody's.
        return data_sets.of_run(built, result.spec.get("run", {})) if which == "data" else built

    return replace(result, source=part)
