"""`fedbc calibrate`: what it runs and chooses, that the test sets play no part, and that it goes on after a kill."""

import json
import math
import os
import signal

import pytest
from commands import TINY, assert_refused, start, wait_until

import fedbc
from fedbc.runs import Lines, RunSpec, read_toml
from fedbc.selection import calibration as core
from fedbc.selection.calibration import Calibration, Setting

DATA = {"name": "synthetic", "devices": 4}
BASE = RunSpec({"name": "fedbc", "lr": 0.1}, DATA, run={"rounds": 3, "sample": 3})
FEDAVG = RunSpec({"name": "fedavg", "lr": 0.1}, DATA, run={"rounds": 3, "sample": 3})


def lines_of(plan, scores):
    """Results of a plan's runs whose accuracies are a known function of the specification."""
    lines = {}
    for spec in plan.specs({}):
        found = scores(spec)
        line = {"hash": spec.identity, "spec": spec.to_dict(), "drift_median": 0.1, "drift_max": 1.0}
        ok = not isinstance(found, str)
        line |= {"summary": {"global_accuracy": found[0], "local_accuracy": found[1]}} if ok else {"error": found}
        lines[line["hash"]] = line
    return lines


def plan_of(*tolerances, seeds=(0, 1), starts=("global",)):
    return Calibration(BASE, {"FedAvg": FEDAVG}, seeds, tolerances=tolerances, starts=starts)


def test_the_choice_follows_the_preference_and_leaves_out_what_diverged():
    def scores(spec):
        if spec.algorithm["name"] == "fedavg":
            return 0.5, 0.5
        noise = 0.01 * spec.run["seed"]
        return {0.1: (0.9 + noise, 0.6), 1.0: (0.8, 0.8), 10.0: (0.3, 0.85), "learned": "Diverged: in round 2"}[
            spec.algorithm["tolerance"]
        ]

    plan = plan_of(0.1, 1.0, 10.0, "learned")
    lines = lines_of(plan, scores)
    chosen = {w: core.evaluate(plan, lines, w).chosen.tolerance for w in (1.0, 0.5, 0.0)}
    assert chosen == {1.0: 0.1, 0.5: 1.0, 0.0: 10.0}
    frame = core.evaluate(plan, lines, 0.5).settings
    assert frame["front"].tolist() == [True, True, True, False]
    assert frame["failed"].tolist() == [0, 0, 0, 2]
    assert frame["global"].tolist()[:3] == pytest.approx([0.905, 0.8, 0.3])
    assert frame["global_std"].tolist()[0] == pytest.approx(0.01 / math.sqrt(2))
    assert frame["chosen_share"].tolist() == [0, 1, 0, 0]


def test_nothing_to_choose_from_is_an_error():
    plan = plan_of(0.1)
    with pytest.raises(fedbc.errors.FedBCError, match="every setting failed on some seed, the first with: Diverged: x"):
        core.evaluate(plan, lines_of(plan, lambda spec: "Diverged: x"), 0.5)
    nan = lines_of(plan, lambda spec: (math.nan, math.nan))
    with pytest.raises(fedbc.InputError, match="no accuracy to balance"):
        core.evaluate(plan, nan, 0.5)


def test_the_grid_is_at_the_scale_of_the_drift():
    assert core.tolerance_grid((1.0, 100.0), 5) == [0.01, 0.1, 1, 10, 100]
    plan = Calibration(BASE, {}, (0,), points=2, starts=("local",))
    probe = plan.probe("local")
    assert probe.algorithm["tolerance"] == math.inf
    line = {"summary": {}, "drift_median": 2.0, "drift_max": 7.0}
    settings = plan.settings({probe.identity: line})
    assert settings == [Setting("local", t) for t in (0.02, 7.0, math.inf, "learned")]
    with pytest.raises(fedbc.errors.FedBCError, match=r"\(from xᵢ\) failed.*give --tolerances"):
        plan.settings({probe.identity: {"error": "Diverged: x"}})


def test_the_choice_does_not_change_when_the_test_sets_do(break_test_sets):
    plan = plan_of(0.01, "learned", seeds=(0,))
    outcomes = []
    for broken in (False, True):
        if broken:
            break_test_sets()
        lines = {}
        for spec in plan.specs({}):
            lines[spec.identity] = core.WORK(spec)
        outcomes.append((core.evaluate(plan, lines, 0.5), lines))
    (before, sound), (after, wrong) = outcomes
    assert before.chosen == after.chosen
    assert before.settings["scores"].tolist() == after.settings["scores"].tolist()
    assert [r["summary"]["local_accuracy"] for r in sound.values()] == [
        r["summary"]["local_accuracy"] for r in wrong.values()
    ]
    # The same federation without validation does notice: the test sets were really broken.
    tested = {**BASE.run, "seed": 0}
    scores = fedbc.simulate(*BASE.build(), **RunSpec(BASE.algorithm, DATA, run=tested).run_arguments()).summary()
    assert scores["global_accuracy"] < 0.3 < before.settings["global"].max()


CALIBRATE = ["calibrate", *TINY, "--lr", "0.1", "--tolerances", "0.01,learned", "--starts", "global", "--seeds", "1"]


def test_killed_and_called_again_it_goes_on_and_ends_with_a_file_to_run(tmp_path, command):
    arguments = [*CALIBRATE, "--reference", "fedavg", "--workers", "1", "--out", "c"]
    process = start(tmp_path, *arguments)
    results = tmp_path / "c" / "results.jsonl"
    wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 1, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    kept = results.read_text()
    assert 1 <= kept.count("\n") < 3
    code, out, errors = command(*arguments, "--test")
    assert (code, errors) == (0, "")
    assert results.read_text().startswith(kept)
    assert results.read_text().count("\n") == 3
    words = " ".join(out.split())
    assert "Recommended for global and local accuracy alike" in words
    assert "On the TEST sets, after the choice was made, trained on all the training data" in words
    held_out = [json.loads(line)["spec"]["run"]["validation"] for line in results.read_text().splitlines()]
    assert held_out == [0.2] * 3
    tested = Lines(tmp_path / "c" / "test.jsonl").read().values()
    assert [line["spec"]["run"]["validation"] for line in tested] == [None]
    for file in ("report.html", "figures/front.png", "figures/front.svg", "tables/settings.csv", "recommended.toml"):
        assert (tmp_path / "c" / file).stat().st_size > 100
    # Another preference needs no further run.
    assert command(*arguments, "--prefer", "local", "--quiet") == (0, "", "")
    assert results.read_text().count("\n") == 3
    spec = RunSpec.from_dict(read_toml(tmp_path / "c" / "recommended.toml"))
    assert spec.algorithm["tolerance"] in (0.01, "learned")
    assert spec.run_arguments()["validation"] is None
    spec.check(*spec.build())


BAD = {
    "preference": (["--prefer", "both"], "prefer='both' is not accepted"),
    "tolerance": (["--tolerances", "0.1,x"], "tolerances='0.1,x' is not accepted: give numbers, inf or learned"),
    "negative": (["--tolerances", "-1"], "tolerance=-1.0 is not accepted"),
    "start": (["--starts", "here"], "starts='here' is unknown"),
    "share": (["--validation", "1.5"], "validation=1.5 is not accepted"),
    "too small a share": (["--validation", "0.0001"], "leaves nothing to validate on"),
    "reference": (["--reference", "fedavgg"], "algorithm='fedavgg' is unknown"),
    "file": (["--reference", "no.toml"], "config='no.toml' does not exist"),
    "swept": (["--tolerance", "0.1"], "No such option"),
    "points": (["--points", "1"], "points=1 is not accepted"),
    "sample": (["--sample", "9"], "sample=9 is not accepted"),
    "folder": (["--out", "other"], "other exists already"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_wrong_input_is_one_line_before_anything_runs(arguments, message, command, tmp_path):
    assert_refused(command, tmp_path, ["calibrate", *TINY, *arguments], message)
