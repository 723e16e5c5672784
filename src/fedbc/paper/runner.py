"""From experiments to results: choose hyper-parameters, run what is missing, and know how far things are."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fedbc import runtime
from fedbc.experiments.spec import RunSpec
from fedbc.experiments.sweep import counts, fingerprint, raise_if_failed, read_results, run_sweep
from fedbc.experiments.workers import Line
from fedbc.paper import measure
from fedbc.paper.catalogue import EXPERIMENTS, Choices, Experiment, Part, Run
from fedbc.paper.tuning import TUNINGS, Tuning, read_choices, write_choices

ROUGH_MINUTES = {"synthetic": 0.06, "mnist": 0.6, "cifar10": 2, "shakespeare": 1.6}
"""Core minutes of a tuning run in full, until some have been timed."""
PFEDME_LENGTH = 4
"""pFedMe takes so many times as long as other methods, having five gradients a step."""
LATEST = 9
"""Runs from which the next one's time is estimated."""

Say = Callable[[str], None]


class Store:
    """The results folder: one file an experiment or tuning group, and the choices; every run is found by its hash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: dict[str, Line] = {}
        files = [f"{name}.jsonl" for name in EXPERIMENTS] + [f"tuning/{name}.jsonl" for name in TUNINGS]
        for file in (folder / name for name in files):
            self.lines |= {_key(line): line for line in read_results(file).values() if counts(line)}
        self.choices: Choices = read_choices(folder / "chosen")

    def line(self, run: Run) -> Line | None:
        """A run's result, if it was run."""
        return self.lines.get(run.hash) if run.hash is not None else None


def _key(line: Line) -> str:
    """The hash of a line's specification as of now: an argument that has been added since counts with its default."""
    return fingerprint(RunSpec.from_dict(line["spec"]))


@dataclass(frozen=True)
class Status:
    """How far an experiment or a tuning group is."""

    name: str
    title: str
    done: int
    total: int
    core_minutes_left: float


class Runner:
    """Runs experiments into a results folder; stopping it at any moment loses the running runs' last minute at most."""

    def __init__(self, folder: Path, *, workers: int | None = None, ray: str | None = None) -> None:
        self.store = Store(folder)
        self.workers, self.ray = workers or runtime.usable_cores(), ray

    def run(self, experiment: Experiment, part: Part | None = None, *, say: Say) -> None:
        """Group by group: choose the hyper-parameters that are missing, then run what is missing."""

        def runs() -> list[Run]:
            return experiment.runs(self.store.choices, part)

        groups = groups_of(experiment, runs())
        for group in groups:
            self.tune(group, dict.fromkeys(run.method for run in runs()), say=say)
            own = [run for run in runs() if experiment.group(run.setting) == group]
            name = experiment.name if len(groups) == 1 else f"{experiment.name} ({group})"
            self._sweep(name, f"{experiment.name}.jsonl", _specs(own), say)

    def tune(self, group: str, wanted: Iterable[str], *, say: Say) -> None:
        """Choose some methods' hyper-parameters, unless they are chosen: their grids stage by stage."""
        tuning = TUNINGS[group].part(wanted)
        if self._is_chosen(tuning):
            return
        while todo := tuning.pending(self.store.lines):
            self._sweep(f"tuning {group}", f"tuning/{group}.jsonl", todo, say)
        say(f"hyper-parameters: {write_choices(self.store.folder / 'chosen', TUNINGS[group], self.store.lines)}")
        self.store.choices = read_choices(self.store.folder / "chosen")

    def _is_chosen(self, tuning: Tuning) -> bool:
        return set(tuning.methods) <= set(self.store.choices.get(tuning.name, ()))

    def _sweep(self, name: str, file: str, specs: list[RunSpec], say: Say) -> None:
        todo = [s for s in specs if fingerprint(s) not in self.store.lines]
        lines: list[Line] = []

        def on_line(line: Line) -> None:
            lines.append(line)
            if counts(line):
                self.store.lines[line["hash"]] = line
            else:
                say(f"{line['hash']}: {line['error']}")

        # On a cluster the workers do not share this folder.
        unfinished = None if self.ray is not None else str(self.store.folder / ".unfinished")
        how = functools.partial(measure.carry_out, unfinished=unfinished)
        path = self.store.folder / file
        done = len(specs) - len(todo)
        run_sweep(todo, path, workers=self.workers, ray=self.ray, on_line=on_line, how=how, name=name, done=done)
        raise_if_failed(lines, path, f"runs of {name}")  # also so that tuning does not ask for them for ever

    def status(self, names: Iterable[str] = EXPERIMENTS, part: Part | None = None) -> list[Status]:
        """Experiments with their tuning groups before them, each once."""
        rows: list[Status] = []
        seen: set[str] = set()
        counted: set[object] = set()  # a run that two experiments share takes its time once
        for name in names:
            experiment = EXPERIMENTS[name]
            runs = experiment.runs(self.store.choices, part)
            for group in groups_of(experiment, runs):
                if group not in seen:
                    seen.add(group)
                    rows.append(self._tuning_status(TUNINGS[group]))
            unique = list({r.identity: r for r in runs}.values())
            left = [r for r in unique if self.store.line(r) is None]
            data = name.split("-")[0]
            minutes = sum(self._minutes(r, experiment) for r in left if (data, r.identity) not in counted)
            counted |= {(data, r.identity) for r in left}
            rows.append(Status(name, experiment.title, len(unique) - len(left), len(unique), minutes))
        return rows

    def _tuning_status(self, tuning: Tuning) -> Status:
        total = tuning.estimate()
        title = f"hyper-parameters of {tuning.name}"
        if self._is_chosen(tuning):
            return Status(tuning.name, title, total, total, 0)
        file = read_results(self.store.folder / "tuning" / f"{tuning.name}.jsonl")
        full = tuning.rungs[-1].rounds
        done = sum(line["spec"]["run"]["rounds"] for line in file.values()) / full
        seconds = [(line["seconds"], line["spec"]["run"]["rounds"]) for line in file.values() if "summary" in line]
        each = sum(s for s, _ in seconds) / sum(r for _, r in seconds) * full / 60 if seconds else None
        data = tuning.name.split("-")[0]
        rough = ROUGH_MINUTES[data] * tuning.setting["epochs"] ** (0.5 if data == "synthetic" else 1)
        left = max(0.0, total - done)
        return Status(tuning.name, title, min(total - 1, round(done)), total, left * (each or rough))

    def _minutes(self, run: Run, experiment: Experiment) -> float:
        """A run's time by that of its like: the same data, epochs and method, or at least data and epochs."""
        epochs = str(run.setting.get("epochs"))
        longer = PFEDME_LENGTH if "pfedme" in run.method else 1
        for method, factor in ((run.method, 1), ("", longer)):
            times = self._times.get((experiment.name, epochs, method))
            if times:
                # The median, for a run that had to wait says nothing of the next one; of the last few, for programs
                # become faster.
                return factor * statistics.median(times[-LATEST:]) / 60
        scale = run.setting.get("epochs", 1) ** 0.5 if experiment.name.startswith("synthetic") else 1
        return experiment.minutes * scale * longer

    @functools.cached_property
    def _times(self) -> dict[tuple[str, str, str], list[float]]:
        """Seconds by experiment, epochs and method, or any method; the latest last."""
        times: dict[tuple[str, str, str], list[float]] = {}
        for experiment in EXPERIMENTS.values():
            runs = {run.hash: run for run in experiment.runs(self.store.choices)}
            for key, line in self.store.lines.items():  # in the order in which they were run
                run = runs.get(key)
                if run is not None and "summary" in line:
                    seconds = line["seconds"] + line.get("seconds_before", 0)
                    for method in (run.method, ""):
                        like = (experiment.name, str(run.setting.get("epochs")), method)
                        times.setdefault(like, []).append(seconds)
        return times


def groups_of(experiment: Experiment, runs: Iterable[Run]) -> list[str]:
    """The tuning groups that an experiment's runs need."""
    return list(dict.fromkeys(experiment.group(run.setting) for run in runs))


def _specs(runs: list[Run]) -> list[RunSpec]:
    return list({r.hash: r.spec for r in runs if r.spec is not None}.values())
