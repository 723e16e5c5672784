"""From experiments to results: choose hyper-parameters, run what is missing, and know how far things are."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedbc import runtime
from fedbc.errors import InputError, unknown
from fedbc.paper import measure
from fedbc.paper.catalogue import EXPERIMENTS
from fedbc.paper.experiment import Choices, Dataset, Experiment, Part, Run
from fedbc.paper.hyperparameters import (
    ALWAYS_ON_VALIDATION,
    TUNINGS,
    Basis,
    Tuning,
    read_choices,
    write_choices,
)
from fedbc.paper.methods import METHODS, Arguments, Family
from fedbc.paper.parts import parts_of, split_into_parts
from fedbc.runs import Line, Lines, RunSpec, is_result, run_missing
from fedbc.runs.many import raise_if_failed

ROUGH_MINUTES = {Dataset.SYNTHETIC: 0.06, Dataset.MNIST: 0.6, Dataset.CIFAR10: 2, Dataset.SHAKESPEARE: 1.6}
"""Core minutes of a tuning run in full, until some have been timed."""
PFEDME_LENGTH = 4
"""pFedMe takes so many times as long as other methods, having five gradients a step."""
CHOSEN = "chosen"
ON_VALIDATION, ON_TEST = "validation", "tuning"
"""Folders of the runs that hyper-parameters are chosen by: on validation data, and of old on the test sets."""
LATEST = 9
"""Runs from which the next one's time is estimated."""

Say = Callable[[str], None]


class Store:
    """The results folder: files of runs by experiment and tuning group, and the choices; a run is found by its hash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: dict[str, Line] = {}
        files = [f"{name}.jsonl" for name in EXPERIMENTS]
        files += [f"{of}/{name}.jsonl" for of in (ON_VALIDATION, ON_TEST) for name in TUNINGS]
        for file in files:
            for part in parts_of(folder / file):
                self.lines |= {key: line for key, line in Lines(part).read().items() if is_result(line)}
        self.choices: Choices = read_choices(folder / CHOSEN)
        self.earlier: Choices = read_choices(folder / CHOSEN / ON_TEST)
        """choices that were made on the test sets, and have been made anew since"""

    def line(self, run: Run) -> Line | None:
        """A run's result, if it was run."""
        return self.lines.get(run.hash) if run.hash is not None else None


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
        self._complete(tuning, say)
        self._write_choices(TUNINGS[group], self.store.choices.get(group, {}), say)

    def choose(self, group: str, wanted: Collection[str] = (), *, say: Say) -> None:
        """Choose a group's hyper-parameters on validation data, or some methods'; those of before stay until then."""
        if group not in TUNINGS:
            raise unknown("group", group, TUNINGS)
        whole, before = TUNINGS[group], self.store.choices.get(group, {})
        tuning = whole.part(wanted) if wanted else whole
        missing = [key for key in wanted if (METHODS[key].like or key) not in whole.methods]
        if missing:
            raise InputError(f"method={missing[0]!r} has nothing to choose in {group}: {', '.join(whole.methods)} have")
        self._complete(tuning, say)
        own = {key: algorithm for key, algorithm in before.items() if key in tuning.methods}
        self._remember(whole, own)
        self._write_choices(whole, {key: algorithm for key, algorithm in before.items() if key not in own}, say)
        changed = [key for key, algorithm in own.items() if self.store.choices[group].get(key) != algorithm]
        labels = ", ".join(METHODS[key].label for key in changed) or "none"
        say(f"{group}: {len(changed)} of {len(own)} choices are others than before: {labels}")

    def _remember(self, tuning: Tuning, before: Mapping[str, Arguments]) -> None:
        """Keep choices that were made on the test sets, so that the report tells how many have changed."""
        if not any(tuning.basis(key, algorithm, self.store.lines) is Basis.TEST for key, algorithm in before.items()):
            return
        old = {key: algorithm for key, algorithm in before.items() if key not in ALWAYS_ON_VALIDATION}
        folder = self.store.folder / CHOSEN / ON_TEST
        write_choices(folder, tuning, {}, keep={**old, **self.store.earlier.get(tuning.name, {})})
        self.store.earlier = read_choices(folder)

    def _complete(self, tuning: Tuning, say: Say) -> None:
        while todo := tuning.pending(self.store.lines):
            self._sweep(f"tuning {tuning.name}", f"{ON_VALIDATION}/{tuning.name}.jsonl", todo, say)

    def _write_choices(self, tuning: Tuning, keep: Mapping[str, Arguments], say: Say) -> None:
        folder = self.store.folder / CHOSEN
        say(f"hyper-parameters: {write_choices(folder, tuning, self.store.lines, keep=keep)}")
        self.store.choices = read_choices(folder)

    def _is_chosen(self, tuning: Tuning) -> bool:
        return set(tuning.methods) <= set(self.store.choices.get(tuning.name, ()))

    def _sweep(self, name: str, file: str, specs: list[RunSpec], say: Say) -> None:
        todo = [s for s in specs if s.identity not in self.store.lines]
        lines: list[Line] = []

        def on_line(line: Line) -> None:
            lines.append(line)
            if is_result(line):
                self.store.lines[line["hash"]] = line
            else:
                say(f"{line['hash']}: {line['error']}")

        # On a cluster the workers do not share this folder.
        unfinished = None if self.ray is not None else str(self.store.folder / ".unfinished")
        work = functools.partial(measure.run_to_line, unfinished=unfinished)
        path = self.store.folder / file
        done = len(specs) - len(todo)
        run_missing(todo, path, workers=self.workers, ray=self.ray, on_line=on_line, work=work, name=name, done=done)
        split_into_parts(path)
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
            minutes = sum(self._minutes(r, experiment) for r in left if (experiment.data, r.identity) not in counted)
            counted |= {(experiment.data, r.identity) for r in left}
            rows.append(Status(name, experiment.title, len(unique) - len(left), len(unique), minutes))
        return rows

    def _tuning_status(self, tuning: Tuning) -> Status:
        total = tuning.estimate()
        title = f"hyper-parameters of {tuning.name}"
        choices = self.store.choices.get(tuning.name, {})
        if self._is_chosen(tuning):
            bases = [tuning.basis(key, choices[key], self.store.lines) for key in tuning.methods]
            if Basis.TEST not in bases:
                return Status(tuning.name, title, total, total, 0)
        file = Lines(self.store.folder / ON_VALIDATION / f"{tuning.name}.jsonl").read()
        full = tuning.rungs[-1].rounds
        done = sum(line["spec"]["run"]["rounds"] for line in file.values()) / full
        seconds = [(line["seconds"], line["spec"]["run"]["rounds"]) for line in file.values() if "summary" in line]
        each = sum(s for s, _ in seconds) / sum(r for _, r in seconds) * full / 60 if seconds else None
        rough = ROUGH_MINUTES[tuning.data] * tuning.epochs ** _growth(tuning.data)
        left = max(0.0, total - done)
        return Status(tuning.name, title, min(total - 1, round(done)), total, left * (each or rough))

    def _minutes(self, run: Run, experiment: Experiment) -> float:
        """A run's time by that of its like: the same data, epochs and method, or at least data and epochs."""
        epochs = str(run.setting.get("epochs"))
        longer = PFEDME_LENGTH if METHODS[run.method].family is Family.PFEDME else 1
        for method, factor in ((run.method, 1), ("", longer)):
            times = self._times.get((experiment.name, epochs, method))
            if times:
                # The median, for a run that had to wait says nothing of the next one; of the last few, for programs
                # become faster.
                return factor * statistics.median(times[-LATEST:]) / 60
        # Other experiments say their minutes for the one E that they have.
        scale = run.setting["epochs"] ** _growth(experiment.data) if experiment.data is Dataset.SYNTHETIC else 1
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


def _growth(data: Dataset) -> float:
    """The power of E with which a run's time grows; a synthetic run is hardly more than what it is beside training."""
    return 0.5 if data is Dataset.SYNTHETIC else 1


def groups_of(experiment: Experiment, runs: Iterable[Run]) -> list[str]:
    """The tuning groups that an experiment's runs need."""
    return list(dict.fromkeys(experiment.group(run.setting) for run in runs))


def _specs(runs: list[Run]) -> list[RunSpec]:
    return list({r.hash: r.spec for r in runs if r.spec is not None}.values())
