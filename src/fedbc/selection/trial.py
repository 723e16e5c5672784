"""One trial of a study, in a worker process: ask for a point, run it, report on the way, tell the outcome.

The objective is the mean over the last rounds (and over seeds) on validation data, never a maximum over rounds. On the
way the same mean is reported for the rounds so far, by which the pruner ends hopeless trials. A run that diverges has
nothing right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbc import runtime
from fedbc.errors import Diverged, FedBCError, InputError
from fedbc.runs import CallEachRound, Line, execute, tell_round
from fedbc.selection.study import StudyPlan, distributions, library, open_study

LAST = 20
"""The rounds at the end whose mean counts, as in a result's summary."""
REPORTS = 20
"""How often a run reports at most."""


def run_trial(folder: str, seed: int) -> Line:
    """Run the study's next trial; `seed` is that of the sampler's draw."""
    optuna = library()
    began = time.perf_counter()
    plan = StudyPlan.read(Path(folder))
    study = open_study(Path(folder), plan, seed=seed)
    trial = study.ask(distributions(plan.space))
    spec = plan.spec(trial.params, plan.seeds[0])
    line: Line = {"hash": spec.identity, "spec": spec.to_dict(), "trial": trial.number, "state": "complete"}
    pruned, failed = optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL
    try:
        try:
            value = _value(plan, trial, optuna.TrialPruned)
        except Diverged as error:
            trial.set_user_attr("diverged", str(error))
            value = 0.0
        line |= {"value": value, "summary": {"global_accuracy": value} if "global_accuracy" in plan.score else {}}
        _tell(study, trial, began, value)
    except optuna.TrialPruned:
        line["state"] = "pruned"
        _tell(study, trial, began, state=pruned)
    except FedBCError as error:
        line |= {"state": "failed", "error": f"{type(error).__name__}: {error}"}
        trial.set_user_attr("error", line["error"])
        _tell(study, trial, began, state=failed)
    except optuna.exceptions.UpdateFinishedTrialError:
        raise SystemExit from None  # the parent is gone, and another call has taken this trial up
    return line | {"seconds": time.perf_counter() - began, "versions": runtime.versions()}


def line_of(plan: StudyPlan, trial: Any, state: str) -> Line:
    """The line of a trial that has ended, from what the study keeps of it."""
    spec = plan.spec(trial.params, plan.seeds[0])
    line: Line = {"hash": spec.identity, "spec": spec.to_dict(), "trial": trial.number, "state": state}
    if state == "complete":
        summary = {"global_accuracy": trial.value} if "global_accuracy" in plan.score else {}
        line |= {"value": trial.value, "summary": summary}
    if "error" in trial.user_attrs:
        line["error"] = trial.user_attrs["error"]
    return line | {"seconds": trial.user_attrs["seconds"], "versions": runtime.versions()}


def _tell(study: Any, trial: Any, began: float, value: float | None = None, state: Any = None) -> None:
    trial.set_user_attr("seconds", round(time.perf_counter() - began, 2))
    study.tell(trial, value, state=state)


def _value(plan: StudyPlan, trial: Any, pruned: type[Exception]) -> float:
    """The mean over seeds, with reports on the way."""
    finals: list[float] = []
    for seed in plan.seeds:
        spec = plan.spec(trial.params, seed)
        rounds = spec.to_dict()["run"]["rounds"]
        every = max(1, rounds // REPORTS)
        rows: list[Mapping[str, Any]] = []

        def on_round(row: Mapping[str, Any], *, rows: Any = rows, rounds: int = rounds, every: int = every) -> None:
            rows.append(row)
            tell_round(row)
            if row["round"] % every == 0 and any(column in row for column in plan.score):
                sofar = [*finals, mean_of_last(rows, plan.score)]
                trial.report(sum(sofar) / len(sofar), len(finals) * rounds + row["round"])
                if trial.should_prune():
                    raise pruned

        execute(spec, [CallEachRound(on_round)]).finished()
        finals.append(mean_of_last(rows, plan.score))
    return sum(finals) / len(finals)


def mean_of_last(rows: Sequence[Mapping[str, Any]], score: dict[str, float]) -> float:
    """The weighted columns' mean over the evaluated ones of the last rounds so far."""
    last = [r for r in rows if r["round"] > rows[-1]["round"] - LAST and all(column in r for column in score)]
    if not last:
        raise InputError(f"nothing to judge by: {', '.join(score)} was not measured in the last {LAST} rounds")
    value = sum(weight * sum(r[column] for r in last) / len(last) for column, weight in score.items())
    if math.isnan(value):
        raise InputError("this model has no accuracy to judge by: its answers are neither right nor wrong")
    return float(value)
