"""Runs for a comparison: several methods and seeds, each in a folder of its own, carried out by worker processes."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fedbc import storage
from fedbc.errors import FedBCError, InputError
from fedbc.experiments import runs, sweep
from fedbc.experiments.spec import RunSpec
from fedbc.experiments.workers import Line, tell_round
from fedbc.simulation.result import Result, load


def with_seeds(spec: RunSpec, count: int) -> list[RunSpec]:
    """The same method with so many seeds, from its own upwards."""
    first = int(spec.to_dict()["run"]["seed"])
    return [RunSpec(spec.algorithm, spec.data, spec.model, {**spec.run, "seed": first + i}) for i in range(count)]


def folder_of(parent: Path, spec: RunSpec) -> Path:
    """Where a specification's run is kept: the name is for people, the hash tells it from all others."""
    seed = spec.to_dict()["run"]["seed"]
    return parent / f"{spec.algorithm['name']}-seed-{seed}-{sweep.fingerprint(spec)[:8]}"


def is_done(parent: Path, spec: RunSpec) -> bool:
    """Whether a specification's run is complete there; one that diverged is not."""
    folder = folder_of(parent, spec)
    if not runs.is_finished(folder):
        return False
    return bool(json.loads((folder / "summary.json").read_text())["rounds"] >= spec.to_dict()["run"]["rounds"])


def carry_out(
    specs: Sequence[RunSpec],
    parent: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    say: Callable[[str], None],
) -> list[str]:
    """Run what is not done, in `parent`; what was begun goes on from its checkpoint. Returns what went wrong, which is
    also said as it happens."""
    with storage.explained(parent):
        parent.mkdir(parents=True, exist_ok=True)
    todo = [spec for spec in specs if not is_done(parent, spec)]
    failures = []
    how = functools.partial(_carry_out_one, str(parent))
    done = len(specs) - len(todo)
    for line in sweep.carry_out_all(todo, workers=workers, ray=ray, how=how, done=done):
        if "error" in line:
            failures.append(f"{line['spec']['algorithm']['name']}, seed {line['spec']['run']['seed']}: {line['error']}")
            say(failures[-1])
    return failures


def _carry_out_one(parent: str, text: str) -> Line:
    """In a worker."""
    began = time.perf_counter()
    spec = RunSpec.from_dict(json.loads(text))
    line: Line = {"hash": sweep.fingerprint(spec), "spec": spec.to_dict()}
    folder = folder_of(Path(parent), spec)
    try:
        if not (folder / "spec.json").exists():
            runs.begin(folder, spec)
        every = max(20, int(spec.to_dict()["run"]["rounds"]) // 25)
        result = runs.carry_out(folder, spec, checkpoint_every=every, on_round=tell_round)
        line["summary"] = result.summary()
    except FedBCError as error:
        line["error"] = str(error)
    return line | {"seconds": time.perf_counter() - began}


def results_of(methods: Mapping[str, Sequence[RunSpec]], parent: Path) -> dict[str, list[Result]]:
    """The results of the runs that are done, for each method that has any."""
    done = {name: [s for s in specs if is_done(parent, s)] for name, specs in methods.items()}
    return {name: [load(folder_of(parent, s)) for s in specs] for name, specs in done.items() if specs}


def run_folders(paths: Iterable[Path]) -> list[Path]:
    """The run folders that paths stand for: themselves, those directly in them, or those of an earlier comparison."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path} is not a folder with runs")
        here = [path] if (path / "spec.json").exists() else []
        within = here or sorted(p.parent for pattern in ("*/spec.json", "runs/*/spec.json") for p in path.glob(pattern))
        if not within:
            raise InputError(f"{path} holds no runs: neither it nor a folder in it has a spec.json")
        found += [folder for folder in within if folder not in found]
    return found
