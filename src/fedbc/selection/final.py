"""A choice: what it is made on, the file to run it with, and its score on the test sets, once it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedbc import storage
from fedbc.data.federation import Federation
from fedbc.data.validation import held_out_sizes
from fedbc.errors import FedBCError, InputError
from fedbc.models.base import Model
from fedbc.runs import Lines, RunSpec, run_missing
from fedbc.runs.many import Work, run_to_line


def write_choice(path: Path, spec: RunSpec, comment: str) -> Path:
    """Write a choice as a file for `fedbc run --config`, with a comment on where it is from."""
    run = {k: v for k, v in spec.run.items() if k not in ("validation", "lanes")}
    words = "".join(f"# {line}\n" for line in comment.splitlines())
    storage.write_atomically(path, words + "\n" + replace(spec, run=run).to_toml())
    return path


@dataclass(frozen=True)
class TestScore:
    """Accuracies on the test sets: means and standard deviations over seeds."""

    __test__ = False  # for pytest, which takes it for a test by its name

    columns: dict[str, tuple[float, float]]
    seeds: int

    def sentence(self) -> str:
        """In words."""
        parts = [
            f"{name.replace('_', ' ')} {100 * mean:.1f}" + (f" ± {100 * spread:.1f} %" if self.seeds > 1 else " %")
            for name, (mean, spread) in self.columns.items()
        ]
        return (
            f"On the TEST sets, after the choice was made, trained on all the training data: {', '.join(parts)} "
            f"({'mean ± standard deviation over ' if self.seeds > 1 else ''}{self.seeds} seed{'s'[: self.seeds - 1]})."
        )


def score_on_test(
    spec: RunSpec,
    seeds: tuple[int, ...],
    columns: Mapping[str, str],
    file: Path,
    *,
    workers: int | None,
    work: Work = run_to_line,
) -> TestScore:
    """Run a choice on all the training data and score it on the test sets; what the file holds is not run again.

    columns: of the summary, by what they are called.
    """
    run = {k: v for k, v in spec.run.items() if k != "validation"}
    specs = [replace(spec, run={**run, "seed": seed}) for seed in seeds]
    run_missing(specs, file, workers=workers, work=work)
    known = Lines(file).read()
    lines = [known[s.identity] for s in specs]
    failed = [line["error"] for line in lines if "error" in line]
    if failed:
        raise FedBCError(f"the chosen setting failed on all the training data: {failed[0]}")
    values = {name: np.asarray([line["summary"][key] for line in lines], float) for name, key in columns.items()}
    many = len(seeds) > 1
    return TestScore({k: (v.mean(), v.std(ddof=1) if many else 0.0) for k, v in values.items()}, len(seeds))


def chosen_on(federation: Federation, model: Model, share: float, seeds: int) -> str:
    """What a choice is made on, in words; an InputError for a model without an accuracy to choose by."""
    if model.correct is None:
        raise InputError(
            f"model {model.name} predicts quantities, so there is no accuracy to choose by: take fedbc sweep, with "
            "run.validation, which orders its runs by their losses"
        )
    taken = held_out_sizes(federation, share)
    small = int((taken == 0).sum())
    kept = f" ({small} devices had too few and keep all of theirs)" if small else ""
    anew = f", held out anew for each of {seeds} seeds" if seeds > 1 else ""
    return (
        f"{federation.name}: {federation.devices} devices, model {model.name}. Chosen on {taken.sum()} validation "
        f"examples, {share:.0%} of each device's training data{kept}{anew}. The test sets were not used for the choice."
    )
