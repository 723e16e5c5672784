"""Run folders: a specification, its checkpoint while it runs, its result when it is done."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedbc import storage
from fedbc.errors import Diverged, InputError, Interrupted
from fedbc.experiments.spec import RunSpec
from fedbc.simulation.result import Result, has_checkpoint, load
from fedbc.simulation.simulate import simulate, versions

Built = tuple[Any, Any, Any]
"""The algorithm, the model and the federation of a specification."""


def begin(folder: Path, spec: RunSpec) -> None:
    """Make a run folder that holds the specification; one that exists is an InputError."""
    with storage.new_folder(folder) as new:
        storage.write_atomically(new / "spec.json", storage.to_json(spec.to_dict() | {"versions": versions()}))


def read_spec(folder: Path) -> RunSpec:
    """The specification that a run folder holds."""
    file = folder / "spec.json"
    try:
        return RunSpec.from_dict(json.loads(file.read_text()))
    except FileNotFoundError:
        raise InputError(f"{folder} is not a run folder: it has no spec.json") from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{file} is damaged: {error}") from None


def is_finished(folder: Path) -> bool:
    """Whether the folder's result is complete."""
    return (folder / "summary.json").exists()


def carry_out(
    folder: Path,
    spec: RunSpec,
    built: Built | None = None,
    *,
    checkpoint_every: int = 20,
    debug: bool = False,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Run a specification in its folder, from its checkpoint if it has one, and write the result there.

    A run that is interrupted or diverges writes what it has; the exception goes on with the result.
    """
    run = spec.run_arguments()
    if is_finished(folder):
        done = load(folder)
        if done.rounds >= run["rounds"]:
            return done
    algorithm, model, federation = built or spec.build()

    def keep(result: Result) -> Result:
        # The specification by names and options replaces the simulator's own description: it can be run again.
        said = spec.to_dict() | {"versions": result.spec["versions"]}
        said["run"] |= {"lanes": result.spec["run"]["lanes"], "rounds": result.rounds}
        return dataclasses.replace(result, spec=said)

    try:
        result = simulate(
            algorithm,
            model,
            federation,
            **run,
            checkpoint=folder,
            checkpoint_every=checkpoint_every,
            resume=has_checkpoint(folder),
            debug=debug,
            on_round=on_round,
        )
    except (Interrupted, Diverged) as error:
        if isinstance(error, Diverged) and error.result.rounds:
            error.result = keep(error.result)
            error.result.write_into(folder)
        raise
    result = keep(result)
    result.write_into(folder)
    return result


def next_free(parent: Path, name: str) -> Path:
    """A folder name that is not taken: name-1, name-2, ..."""
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"
