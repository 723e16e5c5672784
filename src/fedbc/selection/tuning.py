"""Tuning: carry a study out on several processes, and what is known of its trials."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedbc.errors import FedBCError, InputError
from fedbc.experiments import sweep
from fedbc.experiments.spec import RunSpec
from fedbc.selection import trial as trials
from fedbc.selection.choice import weight_of
from fedbc.selection.study import Plan, alone, open_study, prepare

SLOT = 1_000_000
"""Slots have seeds from here on, so that none is taken for a run."""
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


def carry_out(plan: Plan, folder: Path, *, workers: int | None, on_line: sweep.OnLine) -> None:
    """Run the trials that are missing; to be called again after an end of any kind."""
    results = folder / "trials.jsonl"
    how = functools.partial(trials.carry_out, folder=str(folder))
    with alone(folder):
        study = open_study(folder, plan)
        done = -1
        while left := prepare(study, plan):
            before, done = done, finished(plan, folder)
            if done == before:
                errors = [line["error"] for line in sweep.read_results(results).values() if "error" in line]
                raise FedBCError(f"no trial could be finished: {errors[-1] if errors else 'the processes died'}")
            slots = _slots(plan, results, len(study.get_trials(deepcopy=False)), left)
            sweep.run_sweep(slots, results, workers=workers, on_line=on_line, how=how, name="trials", done=done)


def finished(plan: Plan, folder: Path) -> int:
    """How many trials have ended by themselves."""
    return sum("seconds" in t.user_attrs for t in open_study(folder, plan).get_trials(deepcopy=False))


def _slots(plan: Plan, results: Path, first: int, count: int) -> list[RunSpec]:
    """Specifications that stand for trials to come: each has another seed, which is that of the sampler's draw."""
    known = sweep.read_results(results)
    every = (replace(plan.base, run={**plan.base.run, "seed": SLOT + first + n}) for n in itertools.count())
    return list(itertools.islice((s for s in every if sweep.fingerprint(s) not in known), count))


@dataclass(frozen=True)
class Outcome:
    """A study's trials, and the best of them."""

    trials: pd.DataFrame
    """one row a trial: trial, state, value, seconds, its parameters; in order"""
    curves: pd.DataFrame
    """one row a report: trial, step, value"""
    importance: dict[str, float]
    """each parameter's share in how good a trial is (PED-ANOVA); empty where that cannot be said"""
    best: dict[str, Any]
    """the best point"""
    value: float


def outcome(plan: Plan, folder: Path) -> Outcome:
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
    return Outcome(frame, curves, _importance(study, len(good), plan), dict(best.params), float(best.value or 0.0))


def _importance(study: Any, completed: int, plan: Plan) -> dict[str, float]:
    if len(plan.space) < 2 or completed < 10:
        return {}
    import optuna

    found = optuna.importance.get_param_importances(study)
    return dict(found) if sum(found.values()) > 0 else {}
