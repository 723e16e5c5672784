"""A study of hyper-parameters: Optuna's, in a folder, for several processes, that goes on after any end.

The folder holds `study.json` (what is searched, and how), `study.log` (Optuna's journal: every trial, its parameters
and its accuracy on the way) and `trials.jsonl` (a line per trial, as sweeps write it). A grid is enqueued point by
point; a sampler draws as it goes. A trial that was cut off, by Ctrl-C or a crash, is enqueued again by the next call.
"""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbc import storage
from fedbc.errors import InputError, unknown
from fedbc.runs import RunSpec
from fedbc.selection import spaces
from fedbc.selection.spaces import Dimension

if TYPE_CHECKING:
    import optuna

SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "cmaes": "CmaEsSampler",
    "qmc": "QMCSampler",
}
"""The ways to search that a study offers, and Optuna's classes for them."""
PRUNERS = ("median", "halving", "none")
"""The ways to stop a trial early."""
GRID = "grid"
ATTEMPTS = 3
"""How often a point is tried whose process died."""
LOCK_SECONDS = 60
"""How long a worker waits for the others to write to the journal; each write takes milliseconds."""


@dataclass(frozen=True)
class StudyPlan:
    """What a study searches, and how."""

    base: RunSpec
    """the runs, without what is searched"""
    space: dict[str, Dimension]
    score: dict[str, float]
    """columns of history and their weights: the objective is their sum, by its mean over the last rounds"""
    seeds: tuple[int, ...]
    sampler: str
    pruner: str
    trials: int
    """how many are to be finished, in all calls together; for a grid all its points"""

    def write(self, folder: Path) -> None:
        """Keep the plan; a folder with another plan is an InputError, more trials are not another plan."""
        file = folder / "study.json"
        if file.exists():
            before = StudyPlan.read(folder)
            rest = dataclasses.replace(before, base=self.base, trials=self.trials)
            if before.base.identity != self.base.identity or rest.as_text() != self.as_text():
                raise InputError(
                    f"{folder} holds another study ({before.what()}): give another --out, or remove it first"
                )
        else:
            storage.refuse_existing(folder)
            with storage.explained(folder):
                folder.mkdir(parents=True, exist_ok=True)
        storage.write_atomically(file, self.as_text())

    @staticmethod
    def read(folder: Path) -> StudyPlan:
        """The plan that a folder holds."""
        file = folder / "study.json"
        try:
            said = json.loads(file.read_text())
            parts = said | {"base": RunSpec.from_dict(said["base"]), "space": spaces.from_plain(said["space"])}
            return StudyPlan(**parts | {"seeds": tuple(said["seeds"])})
        except FileNotFoundError:
            raise InputError(f"{folder} is not a study's folder: it has no study.json") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{file} is damaged: {error}") from None

    def as_text(self) -> str:
        """As JSON."""
        said = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return storage.to_json(said | {"base": self.base.to_dict(), "space": spaces.as_plain(self.space)})

    def what(self) -> str:
        """In a few words."""
        how = "a grid" if self.sampler == GRID else f"sampler {self.sampler}"
        searched = " ".join(map(str, self.space.values()))
        return f"{self.base.algorithm['name']} on {self.base.data['name']}, {how}, {searched}"

    def spec(self, point: dict[str, Any], seed: int) -> RunSpec:
        """The run of a point and a seed."""
        return dataclasses.replace(
            self.base, algorithm={**self.base.algorithm, **point}, run={**self.base.run, "seed": seed}
        )


def library() -> Any:
    """Optuna, quiet; an InputError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise InputError("fedbc tune needs Optuna: pip install 'fedbc[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(folder: Path, plan: StudyPlan, seed: int = 0) -> optuna.Study:
    """The folder's study; begun if there is none. `seed` is that of the sampler's next draw."""
    optuna = library()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    class Journal(JournalFileBackend):  # type: ignore[misc]
        """Optuna's journal, with a lock that dies with its process, and half a line of a dead writer taken back."""

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
            path = Path(self._file_path)
            with storage.hold(path, f"{path} is in use", seconds=LOCK_SECONDS), path.open("r+b") as file:
                storage.drop_torn_line(file)
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())

    return optuna.create_study(
        storage=JournalStorage(Journal(str(folder / "study.log"))),
        study_name="study",
        direction="maximize",
        sampler=_sampler(optuna, plan, seed),
        pruner=_pruner(optuna, plan),
        load_if_exists=True,
    )


def _sampler(optuna: Any, plan: StudyPlan, seed: int) -> Any:
    if plan.sampler == GRID:
        return optuna.samplers.RandomSampler(seed=seed)  # every point is enqueued: nothing is drawn
    if plan.sampler not in SAMPLERS:
        raise unknown("sampler", plan.sampler, SAMPLERS)
    kind = getattr(optuna.samplers, SAMPLERS[plan.sampler])
    if plan.sampler == "qmc":  # a sequence, scrambled once: its place in it is kept by the study
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return kind(seed=plan.seeds[0], warn_independent_sampling=False, warn_asynchronous_seeding=False)
    return kind(seed=seed)


def _pruner(optuna: Any, plan: StudyPlan) -> Any:
    rounds = plan.base.to_dict()["run"]["rounds"]
    warm_up = max(1, rounds // 4)
    if plan.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=warm_up, n_min_trials=2)
    if plan.pruner == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=warm_up, reduction_factor=2)
    if plan.pruner == "none":
        return optuna.pruners.NopPruner()
    raise unknown("pruner", plan.pruner, PRUNERS)


def alone(folder: Path) -> AbstractContextManager[None]:
    """One command at a time: it takes up the trials that others left, and must not take those of a living one."""
    return storage.hold(folder / "study.json", f"{folder} is in use: another fedbc tune is at work there")


def prepare(study: optuna.Study, plan: StudyPlan) -> int:
    """Enqueue the grid, each point once, and again what was cut off; how many trials are to be done."""
    from optuna.trial import TrialState

    states = (TrialState.COMPLETE, TrialState.PRUNED)
    if plan.sampler == GRID:
        there = [t.system_attrs.get("fixed_params", t.params) for t in study.get_trials(deepcopy=False)]
        for point in (p for p in spaces.points(plan.space) if p not in there):
            study.enqueue_trial(point)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        attempt = trial.user_attrs.get("attempt", 1)
        if trial.params and attempt < ATTEMPTS:
            study.enqueue_trial(dict(trial.params), user_attrs={"attempt": attempt + 1})
        study.tell(trial.number, state=TrialState.FAIL)  # last: an end in between costs a trial twice, not a point
    if plan.sampler == GRID:
        return len(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))
    return max(0, plan.trials - len(study.get_trials(deepcopy=False, states=states)) - _given_up(study))


def _given_up(study: optuna.Study) -> int:
    from optuna.trial import TrialState

    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    return sum(t.user_attrs.get("attempt", 1) >= ATTEMPTS or "error" in t.user_attrs for t in failed)


def distributions(space: dict[str, Dimension]) -> dict[str, Any]:
    """The space in Optuna's words."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for name, d in space.items():
        if d.values:
            found[name] = CategoricalDistribution(d.values)
        elif d.whole:
            found[name] = IntDistribution(int(d.low), int(d.high), log=d.log)
        else:
            found[name] = FloatDistribution(d.low, d.high, log=d.log)
    return found
