"""`fedbc calibrate`: what it runs and chooses, that the test sets play no part, and that it goes on after a kill."""

import json
import math
import os
import signal

import numpy as np
import pytest
from commands import TINY, assert_refused, start, wait_until

import fedbc
from fedbc.runs import Lines, RunSpec, read_toml
from fedbc.selection import calibration as core
from fedbc.selection import calibration_report, candidates, measured
from fedbc.selection.calibration import Calibration

DATA = {"name": "synthetic", "devices": 4}
BASE = RunSpec({"name": "fedbc", "lr": 0.1}, DATA, run={"rounds": 3, "sample": 3})
FEDAVG = RunSpec({"name": "fedavg", "lr": 0.1}, DATA, run={"rounds": 3, "sample": 3})
DITTO = RunSpec({"name": "ditto", "lr": 0.1}, DATA, run={"rounds": 3, "sample": 3})
NAMES, EXAMPLES = ["a", "b"], np.array([30, 10])


def line_of(spec, found):
    """Results whose accuracies are given: global, local, and fine-tuned where there is one; an error if it is text."""
    line = {"hash": spec.identity, "spec": spec.to_dict(), "drift_median": 0.1, "drift_max": 1.0}
    if isinstance(found, str):
        return line | {"error": found}
    kinds = ("global_accuracy", "local_accuracy", "finetuned_accuracy")
    rows = {name: [value, value] for name, value in zip(("global", "own", "tuned"), found, strict=False)}
    return line | {"summary": dict(zip(kinds, found, strict=False)), "devices": rows}


def lines_of(plan, scores):
    """Results of a plan's runs whose accuracies are a known function of the specification."""
    lines = {}
    for spec in plan.specs({}):
        lines[spec.identity] = line_of(spec, scores(spec))
    return lines


def personal_of(plan, lines, local):
    """The z of every method personalised, to accuracies by method and device."""
    found = {}
    for setting in plan.to_personalize(lines):
        for seed in plan.seeds:
            spec, rows = plan.spec(setting, seed), local[setting.method]
            found[spec.identity] = {"summary": {"local_accuracy": float(np.mean(rows))}, "devices": {"personal": rows}}
    return found


def evaluated(plan, lines, weight, personal=None):
    return candidates.evaluate(plan, lines, personal or {}, weight, NAMES, EXAMPLES)


def plan_of(*tolerances, seeds=(0, 1), starts=("global",), personalize=False, methods=None):
    methods = {"FedAvg": FEDAVG} if methods is None else methods
    return Calibration(BASE, methods, seeds, tolerances=tolerances, starts=starts, personalize=personalize)


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
    chosen = {w: evaluated(plan, lines, w).chosen.setting.tolerance for w in (1.0, 0.5, 0.0)}
    assert chosen == {1.0: 0.1, 0.5: 1.0, 0.0: 10.0}
    outcome = evaluated(plan, lines, 0.5)
    frame = outcome.candidates
    assert frame["candidate"].tolist() == [*(f"FedBC, gamma {g}, from z" for g in ("0.1", "1", "10")), "FedAvg"]
    assert frame["front"].tolist() == [True, True, True, False]
    assert outcome.absent == ("FedBC, learned gamma, from z (Diverged: in round 2)",)
    assert frame["global"].tolist()[:3] == pytest.approx([0.905, 0.8, 0.3])
    assert frame["global_std"].tolist()[0] == pytest.approx(0.01 / math.sqrt(2))
    assert frame["chosen_share"].tolist() == [0, 1, 0, 0]


def test_whatever_wins_is_recommended_and_it_is_said_what_each_device_gets():
    """Ditto, a fine-tuned model, or a personalised z: FedBC has no right of its own to be chosen."""
    own = {"fedbc": (0.8, 0.7), "fedavg": (0.8, 0.7, 0.75), "ditto": (0.8, 0.82)}

    def outcome(personalize=False, local=0.0, **better):
        plan = plan_of(0.1, methods={"FedAvg": FEDAVG, "Ditto": DITTO}, personalize=personalize)
        lines = lines_of(plan, lambda spec: (own | better)[spec.algorithm["name"]])
        personal = personal_of(plan, lines, {m: [local, local + 0.02] for m in ("FedBC", "FedAvg", "Ditto")})
        return evaluated(plan, lines, 0.5, personal)

    ditto = outcome()
    assert ditto.best["candidate"] == "Ditto"
    words = calibration_report.sentences(ditto)
    assert "Recommended for global and local accuracy alike: Ditto" in words[0]
    assert "Each device gets its own model, as Ditto trains it beside z." in words[1]
    assert "better than z for 2 of 2 devices" in words[1]
    assert "The best of FedBC's settings with its own x_i is FedBC, gamma 0.1, from z: 6.0" in words[-1]
    tuned = outcome(fedavg=(0.8, 0.7, 0.9))
    assert tuned.best["candidate"] == "FedAvg, fine-tuned"
    assert "gets z after 50 steps on its own data" in calibration_report.sentences(tuned)[1]
    personal = outcome(personalize=True, local=0.9, fedbc=(0.81, 0.7))
    assert personal.best["candidate"] == "FedBC, personalised"
    assert "Each device personalises it on its own data" in calibration_report.sentences(personal)[1]
    assert personal.devices["own"].tolist() == pytest.approx([0.9, 0.92])
    assert personal.devices["difference"].tolist() == pytest.approx([0.09, 0.11])
    fedbc_wins = outcome(fedbc=(0.95, 0.95))
    assert "Each device gets its own model, as FedBC trains it" in calibration_report.sentences(fedbc_wins)[1]


def test_the_z_that_is_personalised_is_the_method_s_most_accurate_one():
    plan = plan_of(
        0.1, 1.0, personalize=True, methods={"FedAvg": FEDAVG, "alone": RunSpec({"name": "localonly"}, DATA)}
    )
    better = {0.1: (0.7, 0.9), 1.0: (0.8, 0.1)}
    lines = lines_of(plan, lambda spec: better.get(spec.algorithm.get("tolerance"), (0.9, 0.9, 0.9)))
    found = plan.to_personalize(lines)
    assert [(s.method, s.tolerance) for s in found[:1]] == [("FedBC", 1.0)]
    assert [s.method for s in found] == ["FedBC", "FedAvg"]  # training alone has no z
    assert plan_of(0.1).to_personalize(lines) == []


def scored(accuracies, z, own):
    return candidates.Scored(None, np.array(accuracies), np.array(z), np.array(own))


def test_how_far_a_candidate_is_behind_has_the_error_of_seeds_and_devices():
    best = scored([[0.9, 0.9], [0.9, 0.7]], [0.9, 0.8, 0.7], [0.9, 0.9, 0.6])
    other = scored([[0.8, 0.8], [0.9, 0.8]], [0.8, 0.8, 0.8], [0.7, 0.9, np.nan])
    behind, error = candidates.distance(best, other, 0.5, np.array([10, 30, 5]))
    assert behind == pytest.approx((0.1 + -0.05) / 2)
    seeds = np.std([0.1, -0.05], ddof=1)
    share, g, own = np.array([0.25, 0.75]), np.array([0.1, 0.0]), np.array([0.2, 0.0])  # the third device has no score
    away = 0.5 * share * (g - share @ g) + 0.5 / 2 * (own - own.mean())
    assert error == pytest.approx(np.hypot(seeds, np.sqrt(2 * np.sum(away**2))))
    assert candidates.verdict(0.021, 0.01) == "clearly behind"
    assert candidates.verdict(0.019, 0.01) == "no clear difference"
    (_, alone) = candidates.distance(scored([[1, 1]], [1], [1]), scored([[0, 0]], [0], [0]), 0.5, np.array([3]))
    assert candidates.verdict(1.0, alone) == "one seed: cannot be told"


def test_nothing_to_choose_from_is_an_error():
    plan = plan_of(0.1)
    with pytest.raises(fedbc.errors.FedBCError, match=r"every setting failed on some seed, the first: .* from z"):
        evaluated(plan, lines_of(plan, lambda spec: "Diverged: x"), 0.5)
    nan = lines_of(plan, lambda spec: (math.nan, math.nan, math.nan))
    with pytest.raises(fedbc.InputError, match="no accuracy to balance"):
        evaluated(plan, nan, 0.5)


def test_the_grid_is_at_the_scale_of_the_drift():
    assert core.tolerance_grid((1.0, 100.0), 5) == [0.01, 0.1, 1, 10, 100]
    plan = Calibration(BASE, {}, (0,), points=2, starts=("local",))
    probe = plan.probe("local")
    assert probe.algorithm["tolerance"] == math.inf
    line = {"summary": {}, "drift_median": 2.0, "drift_max": 7.0}
    settings = plan.settings({probe.identity: line})
    assert [(s.start, s.tolerance) for s in settings] == [("local", t) for t in (0.02, 7.0, math.inf, "learned")]
    with pytest.raises(fedbc.errors.FedBCError, match=r"\(from xᵢ\) failed.*give --tolerances"):
        plan.settings({probe.identity: {"error": "Diverged: x"}})


def test_a_folder_of_an_earlier_version_is_run_again(tmp_path):
    lines = Lines(tmp_path / "results.jsonl")
    for spec, more in zip(plan_of(0.1, seeds=(0,)).specs({}), ({}, {"devices": {}}), strict=True):
        lines.append({"hash": spec.identity, "spec": spec.to_dict(), "summary": {"global_accuracy": 0.5}} | more)
    core._forget_older(lines)
    assert [line["spec"]["algorithm"]["name"] for line in lines.read().values()] == ["fedavg"]


def test_the_methods_beside_fedbc_have_its_hyper_parameters():
    base = RunSpec({"name": "fedbc", "lr": 0.07, "momentum": 0.5, "start": "local", "tolerance": 0.1}, DATA)
    found = core.default_methods(base)
    assert list(found) == ["FedAvg", "FedProx", "Ditto", "pFedMe", "Per-FedBC", "local only"]
    assert found["Ditto"].algorithm == {"name": "ditto", "lr": 0.07, "momentum": 0.5}
    assert core.with_tuning(found["FedAvg"]).run["fine_tune"] == {"steps": 50, "lr": 0.07, "of": "global"}
    assert core.with_tuning(found["Ditto"]) is found["Ditto"]


def test_what_a_line_keeps_of_the_devices_is_what_the_run_measured(tmp_path):
    plan = plan_of(
        seeds=(3,), methods={"FedAvg": FEDAVG, "Per-FedBC": RunSpec({"name": "perfedbc"}, DATA, run=FEDAVG.run)}
    )
    average, adapted = plan.specs({})
    for spec in (average, adapted):
        line = core.work(tmp_path / "models")(spec)
        rows, summary = (
            line["devices"],
            fedbc.simulate(*spec.build(), **{**spec.run_arguments(), "evaluate_every": 3}).history.iloc[-1],
        )
        assert np.mean(rows["own"]) == pytest.approx(summary["local_accuracy"])
        assert np.mean(rows["tuned"]) == pytest.approx(summary["finetuned_accuracy"])
        # z personalised, from the file and trained again, is the same, and is what `personalize` says.
        kept, again = (measured.personal_line(spec, models=m) for m in (tmp_path / "models", None))
        assert kept["devices"] == again["devices"]
        result = fedbc.simulate(*spec.build(), **spec.run_arguments())
        own = fedbc.personalize(result, *spec.build()[1:])
        assert kept["devices"]["personal"] == pytest.approx(own.local_accuracy.tolist())
        assert kept["devices"]["global"] == pytest.approx(rows["global"])


def test_the_choice_does_not_change_when_the_test_sets_do(break_test_sets):
    plan = plan_of(0.01, "learned", seeds=(0,))
    outcomes = []
    for broken in (False, True):
        if broken:
            break_test_sets()
        lines = {}
        for spec in plan.specs({}):
            lines[spec.identity] = core.work()(spec)
        names, examples = list("abcd"), np.ones(4)
        outcomes.append((candidates.evaluate(plan, lines, {}, 0.5, names, examples), lines))
    (before, sound), (after, wrong) = outcomes
    assert before.best["candidate"] == after.best["candidate"]
    assert before.candidates["global"].tolist() == after.candidates["global"].tolist()
    assert [r["summary"]["local_accuracy"] for r in sound.values()] == [
        r["summary"]["local_accuracy"] for r in wrong.values()
    ]
    # The same federation without validation does notice: the test sets were really broken.
    tested = {**BASE.run, "seed": 0}
    scores = fedbc.simulate(*BASE.build(), **RunSpec(BASE.algorithm, DATA, run=tested).run_arguments()).summary()
    assert scores["global_accuracy"] < 0.3 < before.candidates["global"].max()


CALIBRATE = ["calibrate", *TINY, "--lr", "0.1", "--tolerances", "0.01,learned", "--starts", "global", "--seeds", "1"]


def test_killed_and_called_again_it_goes_on_and_ends_with_a_file_to_run(tmp_path, command):
    arguments = [*CALIBRATE, "--method", "fedavg", "--workers", "1", "--out", "c"]
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
    personal = Lines(tmp_path / "c" / "personal.jsonl").read()  # of FedBC's better z, and of FedAvg's
    assert len(personal) == 2
    assert personal.keys() < Lines(results).read().keys()
    tested = Lines(tmp_path / "c" / "test.jsonl").read().values()
    assert [line["spec"]["run"]["validation"] for line in tested] == [None]
    for file in (
        "report.html",
        "figures/front.png",
        "figures/front.svg",
        "tables/candidates.csv",
        "tables/devices.csv",
        "recommended.toml",
    ):
        assert (tmp_path / "c" / file).stat().st_size > 100
    # Another preference needs no further run.
    before = (tmp_path / "c" / "personal.jsonl").read_bytes()
    code, out, errors = command(*arguments, "--prefer", "local", "--json")
    assert (code, errors) == (0, "")
    assert results.read_text().count("\n") == 3
    assert (tmp_path / "c" / "personal.jsonl").read_bytes() == before
    told = json.loads(out)
    assert told["recommended"] == max(told["candidates"], key=lambda c: (c["local"], c["global"]))["candidate"]
    assert [row["device"] for row in told["devices"]] == ["0", "1", "2", "3"]
    assert {row["candidate"] for row in told["candidates"]} == {
        *("FedBC, gamma 0.01, from z", "FedBC, learned gamma, from z", "FedBC, personalised"),
        *("FedAvg", "FedAvg, fine-tuned", "FedAvg, personalised"),
    }
    spec = RunSpec.from_dict(read_toml(tmp_path / "c" / "recommended.toml"))
    assert spec.algorithm["name"] in ("fedbc", "fedavg")
    assert spec.run_arguments()["validation"] is None
    spec.check(*spec.build())


BAD = {
    "preference": (["--prefer", "both"], "prefer='both' is not accepted"),
    "tolerance": (["--tolerances", "0.1,x"], "tolerances='0.1,x' is not accepted: give numbers, inf or learned"),
    "negative": (["--tolerances", "-1"], "tolerance=-1.0 is not accepted"),
    "start": (["--starts", "here"], "starts='here' is unknown"),
    "share": (["--validation", "1.5"], "validation=1.5 is not accepted"),
    "too small a share": (["--validation", "0.0001"], "leaves nothing to validate on"),
    "method": (["--method", "fedavgg"], "algorithm='fedavgg' is unknown"),
    "file": (["--method", "no.toml"], "config='no.toml' does not exist"),
    "swept": (["--tolerance", "0.1"], "No such option"),
    "points": (["--points", "1"], "points=1 is not accepted"),
    "sample": (["--sample", "9"], "sample=9 is not accepted"),
    "folder": (["--out", "other"], "other exists already"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_wrong_input_is_one_line_before_anything_runs(arguments, message, command, tmp_path):
    assert_refused(command, tmp_path, ["calibrate", *TINY, *arguments], message)
