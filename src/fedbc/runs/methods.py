"""Runs of several methods and seeds, each in a folder of its own, for a comparison."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbc import storage
from fedbc.errors import InputError
from fedbc.runs.execute import begin, execute_in
from fedbc.runs.lines import Line
from fedbc.runs.many import jobs_of
from fedbc.runs.outcome import CallEachRound
from fedbc.runs.pool import do_jobs, tell_round
from fedbc.runs.spec import RunSpec, identity
from fedbc.simulation.result import Result, RunFolder


@dataclass(frozen=True)
class MethodRuns:
    """The folder with the runs of several methods."""

    parent: Path

    def folder_of(self, spec: RunSpec) -> RunFolder:
        """Where a specification's run is kept: the name is for people, the identity tells it from all others."""
        known = self._known.get(spec.identity)
        split = f"-split-{spec.split}" if spec.split else ""
        name = f"{spec.algorithm['name']}-seed-{spec.seed}{split}-{spec.identity[:8]}"
        return known if known is not None else RunFolder(self.parent / name)

    @functools.cached_property
    def _known(self) -> dict[str, RunFolder]:
        """The runs that are there by their identity, whatever their folders are called."""
        if not self.parent.is_dir():
            return {}
        known = {}
        for folder in RunFolder.find(self.parent):
            with contextlib.suppress(InputError):  # a damaged one is not taken for anybody's
                known[identity(folder.read_spec())] = folder
        return known

    def is_done(self, spec: RunSpec) -> bool:
        """Whether a specification's run is complete; one that diverged is not."""
        folder = self.folder_of(spec)
        if not folder.is_finished:
            return False
        return folder.ended_early or folder.read_spec()["run"]["rounds"] >= spec.to_dict()["run"]["rounds"]

    def run(
        self,
        specs: Sequence[RunSpec],
        *,
        workers: int | None = None,
        ray: str | None = None,
        say: Callable[[str], None],
    ) -> list[str]:
        """Run what is not done; what was begun goes on from its checkpoint. Returns what went wrong, which is also said
        as it happens."""
        with storage.explained(self.parent):
            self.parent.mkdir(parents=True, exist_ok=True)
        todo = [spec for spec in specs if not self.is_done(spec)]
        failures = []
        work = functools.partial(_run_one, self.parent)
        for line in do_jobs(jobs_of(todo, work), workers=workers, ray=ray, done=len(specs) - len(todo)):
            if "error" in line:
                spec = line["spec"]
                split = f", split {spec['run']['resplit']}" if spec["run"].get("resplit") else ""
                failures.append(f"{spec['algorithm']['name']}, seed {spec['run']['seed']}{split}: {line['error']}")
                say(failures[-1])
        return failures

    def results(self, methods: Mapping[str, Sequence[RunSpec]]) -> dict[str, list[Result]]:
        """The results of the runs that are done, for each method that has any."""
        done = {name: [s for s in specs if self.is_done(s)] for name, specs in methods.items()}
        return {name: [self.folder_of(s).read() for s in specs] for name, specs in done.items() if specs}


def _run_one(parent: Path, spec: RunSpec) -> Line:
    """In a worker."""
    folder = MethodRuns(parent).folder_of(spec)
    if not folder.spec.exists():
        begin(folder, spec)
    every = max(20, spec.to_dict()["run"]["rounds"] // 25)
    outcome = execute_in(folder, spec, [CallEachRound(tell_round)], checkpoint_every=every)
    return outcome.line() | ({"error": outcome.why} if outcome.error is not None else {})
