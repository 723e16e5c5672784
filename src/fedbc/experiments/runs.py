"""Run folders: a specification, its checkpoint while it runs, its result when it is done."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbc import storage
from fedbc.errors import Diverged, InputError, Interrupted
from fedbc.experiments import live
from fedbc.experiments.spec import RunSpec
from fedbc.simulation.result import Result, has_checkpoint, load
from fedbc.simulation.simulate import simulate, versions
from fedbc.trackers import Tracker

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
    trackers: Sequence[Tracker] = (),
) -> Result:
    """Run a specification in its folder, from its checkpoint if it has one, and write the result there.

    A run that is interrupted or diverges writes what it has; the exception goes on with the result. While it runs, its
    history is in the folder's live history, and in the trackers, which also get what they lack of earlier rounds.
    """
    run = spec.run_arguments()
    if is_finished(folder):
        done = load(folder)
        if done.rounds >= run["rounds"]:
            for tracker in trackers:
                if not tracker.remembered:
                    tracker.replay([{str(k): v for k, v in row.items()} for row in done.history.to_dict("records")])
                    tracker.finish(done.summary())
            return done
    algorithm, model, federation = built or spec.build()

    def keep(result: Result) -> Result:
        # The specification by names and options replaces the simulator's own description: it can be run again.
        said = spec.to_dict() | {"versions": result.spec["versions"]}
        said["run"] |= {"lanes": result.spec["run"]["lanes"], "rounds": result.rounds}
        return dataclasses.replace(result, spec=said)

    with contextlib.ExitStack() as stack:
        record = stack.enter_context(live.recorded(folder, run["rounds"], every=checkpoint_every))
        followers = [_caught_up(stack.enter_context(tracker), folder) for tracker in trackers]

        def tell(row: dict[str, Any]) -> None:
            for follow in (record, *followers):
                follow(row)
            if on_round is not None:
                on_round(row)

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
                on_round=tell,
            )
        except (Interrupted, Diverged) as error:
            if isinstance(error, Diverged) and error.result.rounds:
                error.result = keep(error.result)
                error.result.write_into(folder)
            raise
        result = keep(result)
        result.write_into(folder)
        for tracker in trackers:
            tracker.finish(result.summary())
    return result


def _caught_up(tracker: Tracker, folder: Path) -> Callable[[Mapping[str, Any]], None]:
    """A tracker that is given the rounds before the first one that it sees, if it has not got them."""
    begun = False

    def follow(row: Mapping[str, Any]) -> None:
        nonlocal begun
        if not begun and row["round"] > 1:
            tracker.replay([r for r in live.read_rows(folder) if r["round"] < row["round"]])
        begun = True
        tracker(row)

    return follow


def next_free(parent: Path, name: str) -> Path:
    """A folder name that is not taken: name-1, name-2, ..."""
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"
