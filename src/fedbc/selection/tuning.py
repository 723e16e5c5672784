"""Tuning: a study run on several processes, and what is known of its trials."""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedbc.errors import FedBCError, InputError
from fedbc.runs import Job, Line, Lines, do_jobs
from fedbc.runs.many import OnLine
from fedbc.selection import trial as trials
from fedbc.selection.choice import weight_of
from fedbc.selection.study import StudyPlan, alone, open_study, prepare

STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


def score_of(text: str) -> dict[str, float]:
    """The columns and weights of an objective: global, local, finetuned, balanced, or global accuracy's weight."""
    if text == "finetuned":
        return {"finetuned_accuracy": 1.0}
    try:
        weight = weight_of(text)
    except InputError as error:
        raise InputError(
            str(error).replace("prefer=", "score=").replace("give global", "give finetuned, global")
        ) from None
    return {f"{kind}_accuracy": w for kind, w in (("global", weight), ("local", 1 - weight)) if w > 0}


def run_study(plan: StudyPlan, folder: Path, *, workers: int | None, ray: str | None = None, on_line: OnLine) -> None:
    """Run the trials that are missing; to be called again after an end of any kind."""
    plan.base.build_part("data")  # data that are missing concern no single trial
    lines = Lines(folder / "trials.jsonl")
    rounds = plan.base.to_dict()["run"]["rounds"] * len(plan.seeds)
    with alone(folder), lines.reserve():
        study = open_study(folder, plan)
        for line in lines_lost(plan, study, lines.path):
            lines.append(line)
        done, errors = -1, list[str]()
        while left := prepare(study, plan):
            before, done = done, finished(plan, folder)
            if done == before:
                raise FedBCError(f"no trial could be finished: {errors[-1] if errors else 'the processes died'}")
            first = len(study.get_trials(deepcopy=False))
            jobs = [
                Job(functools.partial(trials.run_trial, str(folder), n), f"trial {n}", rounds, {"hash": f"trial-{n}"})
                for n in range(first, first + left)
            ]
            for line in do_jobs(jobs, workers=workers, ray=ray, name="trials", done=done):
                lines.append(line)
                errors += [line["error"]] if "error" in line else []
                on_line(line)


def lines_lost(plan: StudyPlan, study: Any, file: Path) -> list[Line]:
    """Lines of trials that the study has, and the file lacks: a kill came between the two."""
    there = set()
    for text in file.read_text().splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError, AttributeError):  # the last one may be cut off: it counts as lost
            there.add(json.loads(text).get("trial"))
    return [
        trials.line_of(plan, trial, STATES[trial.state.name])
        for trial in study.get_trials(deepcopy=False)
        if "seconds" in trial.user_attrs and trial.number not in there and trial.state.is_finished()
    ]


def finished(plan: StudyPlan, folder: Path) -> int:
    """How many trials have ended by themselves."""
    return sum("seconds" in t.user_attrs for t in open_study(folder, plan).get_trials(deepcopy=False))


@dataclass(frozen=True)
class Findings:
    """A study's trials, and the best of them."""

    trials: pd.DataFrame
    """one row per trial: trial, state, value, seconds, its parameters; in order"""
    curves: pd.DataFrame
    """one row per report: trial, step, value"""
    importance: dict[str, float]
    """each parameter's share in how good a trial is (PED-ANOVA); empty where that cannot be said"""
    best: dict[str, Any]
    """the best point"""
    value: float


def read_findings(plan: StudyPlan, folder: Path) -> Findings:
    """What the study's folder holds; without one finished trial a FedBCError."""
    study = open_study(folder, plan)
    found = [t for t in study.get_trials(deepcopy=False) if STATES[t.state.name] not in ("running", "waiting")]
    # What was cut off or whose process died was tried again: only trials that ended by themselves are shown.
    found = [t for t in found if "seconds" in t.user_attrs]
    rows = [
        {
            "trial": t.number,
            "state": "diverged" if "diverged" in t.user_attrs else STATES[t.state.name],
            "value": t.value if t.state.name == "COMPLETE" else float("nan"),
            "reached": max(t.intermediate_values, default=0),
            "last_report": t.intermediate_values[max(t.intermediate_values)] if t.intermediate_values else float("nan"),
            "seconds": t.user_attrs["seconds"],
            **t.params,
        }
        for t in found
    ]
    frame = pd.DataFrame(rows)
    good = frame[frame["state"] == "complete"] if rows else frame
    if not len(good):
        errors = [t.user_attrs[k] for t in found for k in ("error", "diverged") if k in t.user_attrs]
        raise FedBCError(f"no trial was completed: {errors[0] if errors else 'all were pruned'}")
    best = max((t for t in found if t.number in set(good["trial"])), key=lambda t: t.value or 0.0)
    curves = pd.DataFrame(
        [{"trial": t.number, "step": s, "value": v} for t in found for s, v in sorted(t.intermediate_values.items())],
        columns=["trial", "step", "value"],
    )
    return Findings(frame, curves, _importance(study, len(good), plan), dict(best.params), float(best.value or 0.0))


def _importance(study: Any, completed: int, plan: StudyPlan) -> dict[str, float]:
    if len(plan.space) < 2 or completed < 10:
        return {}
    import optuna

    found = optuna.importance.get_param_importances(study)
    return dict(found) if sum(found.values()) > 0 else {}
