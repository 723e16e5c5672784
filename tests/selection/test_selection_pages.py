"""The pages of `fedbc calibrate` and `fedbc tune` in a browser, from results that are made up."""

import math

import numpy as np
import pandas as pd
import pytest
from browser import PHONE

from fedbc.runs import RunSpec
from fedbc.selection import calibration as core
from fedbc.selection import calibration_report, candidates, tuning_report
from fedbc.selection.spaces import Dimension
from fedbc.selection.study import StudyPlan
from fedbc.selection.tuning import Findings

SPEC = RunSpec({"name": "fedbc"})
METHODS = [core.FEDBC, *core.OTHERS.values()]
DEVICES = [f"clinic {name}" for name in "ABCDE"]


def calibration_page(seeds=3):
    methods = {label: RunSpec({"name": name}) for name, label in core.OTHERS.items()}
    plan = core.Calibration(SPEC, methods, tuple(range(seeds)), tolerances=(0.01, 0.1, 1.0, math.inf, "learned"))
    rng = np.random.default_rng(0)
    lines, personal = {}, {}
    for number, spec in enumerate(plan.specs({})):
        at = number // seeds / 15
        found = {"global_accuracy": 0.9 - 0.6 * at + rng.normal(0, 0.01), "local_accuracy": 0.7 + 0.2 * at**2}
        found |= {"finetuned_accuracy": 0.9} if spec.algorithm["name"] in ("fedavg", "perfedbc") else {}
        rows = {name: (0.8 + rng.normal(0, 0.05, 5)).tolist() for name in ("global", "own", "tuned", "personal")}
        if spec.algorithm.get("tolerance") == 1.0 and spec.algorithm["start"] == "local":
            lines[spec.identity] = {"error": "Diverged: in round 3"}
        else:
            lines[spec.identity] = {"summary": found, "drift_median": 0.1, "drift_max": 1.0, "devices": rows}
        personal[spec.identity] = {"summary": {"local_accuracy": 0.88}, "devices": rows}
    outcome = candidates.evaluate(plan, lines, personal, 0.5, DEVICES, np.full(5, 20))
    return calibration_report.page(outcome, SPEC, ["Made up."])


def tuning_page():
    space = {"lr": Dimension("lr", 1e-3, 1.0, log=True), "start": Dimension("start", values=("global", "local"))}
    plan = StudyPlan(SPEC, space, {"global_accuracy": 1.0}, (0,), "tpe", "median", 12)
    rng = np.random.default_rng(1)
    rows, curves = [], []
    for n in range(12):
        state = "pruned" if n % 4 == 3 else "diverged" if n == 10 else "complete"
        value = 0.5 + 0.4 * rng.random()
        rows.append({"trial": n, "state": state, "value": {"complete": value, "diverged": 0.0}.get(state, math.nan),
                     "reached": 10, "last_report": value, "seconds": 1.5, "lr": 10 ** -rng.uniform(0, 3),
                     "start": ("global", "local")[n % 2]})  # fmt: skip
        curves += [{"trial": n, "step": s, "value": value * s / 10} for s in range(1, 5 if state == "pruned" else 11)]
    frame = pd.DataFrame(rows)
    best = frame.loc[frame["value"].idxmax()]
    point = {"lr": float(best["lr"]), "start": str(best["start"])}
    found = Findings(frame, pd.DataFrame(curves), {"lr": 0.8, "start": 0.2}, point, float(best["value"]))
    return tuning_report.page(plan, found, SPEC, ["Made up."])


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {"calibrate": calibration_page(), "tune": tuning_page()}
    return {name: page.write(folder / f"{name}.html") for name, page in made.items()}


CHARTS = {
    "calibrate": ["front", "front-closer", "tolerance-global", "tolerance-local", "draws"],
    "tune": ["history", "curves", "by-lr", "by-start", "parallel", "importance"],
}


@pytest.mark.parametrize("name", list(CHARTS))
def test_charts_have_marks_in_light_and_dark_and_fit_on_a_phone(name, pages, browser):
    browser.open(pages[name])
    assert browser.charts() == CHARTS[name]
    before = {chart: browser.marks(chart) for chart in CHARTS[name]}
    assert min(before.values()) >= 2
    browser.screenshot(f"{name}-light")
    browser.dark()
    browser.wait_for_charts()
    assert {chart: browser.marks(chart) for chart in CHARTS[name]} == before
    browser.screenshot(f"{name}-dark")
    browser.open(pages[name], width=PHONE)
    assert browser.sideways() <= 0
    browser.screenshot(f"{name}-phone")


def test_methods_can_be_switched_off(pages, browser):
    browser.open(pages["calibrate"])
    labels = browser.run("return [...document.querySelectorAll('[data-toggles=hidden] input')].map(e => e.value)")
    assert labels == METHODS
    before = browser.marks("front")
    browser.click("[data-toggles=hidden] input[value=Ditto]")
    # Its own models and the personalised z, each a point and lines over the global and over the local accuracy.
    assert browser.marks("front") == before - 6
    assert "Not choosable, because a run failed: FedBC, gamma 1, from xᵢ (Diverged: in round 3)." in browser.text()


def test_one_seed_has_no_draws_and_says_so():
    page = calibration_page(seeds=1)
    assert [chart.name for chart in page.charts] == CHARTS["calibrate"][:-1]
    assert any("With one seed nothing can be said" in part.text for part in page.lead)
