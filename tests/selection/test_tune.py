"""`fedbc tune`: spaces, trials, pruning, several processes, and studies that go on after a kill."""

import dataclasses
import json
import os
import signal
import sys

import pytest
from commands import TINY, assert_refused, start, wait_until

import fedbc
from fedbc.paper.methods import METHODS
from fedbc.runs import CATALOG, Lines, RunSpec, read_toml
from fedbc.selection import spaces, study, trial, tuning
from fedbc.selection.grids import GRIDS
from fedbc.selection.spaces import Dimension
from fedbc.selection.study import StudyPlan

FEDBC = CATALOG["algorithm"]["fedbc"]
BASE = RunSpec(
    {"name": "fedavg"},
    {"name": "synthetic", "devices": 4},
    run={"rounds": 4, "sample": 3, "validation": 0.2, "evaluate": ["global", "local"]},
)


def plan_of(rates, **changes):
    space = {"lr": Dimension("lr", values=rates)}
    plan = StudyPlan(BASE, space, {"global_accuracy": 1.0}, (0,), study.GRID, "none", len(rates))
    return dataclasses.replace(plan, **changes)


def run_here(plan, folder):
    """All trials in this process, one after the other."""
    plan.write(folder)
    left = study.prepare(study.open_study(folder, plan), plan)
    return [trial.run_trial(str(folder), seed) for seed in range(left)]


def test_a_study_is_the_same_wherever_its_data_lie(tmp_path):
    plan = plan_of((0.001, 0.1))
    mnist = RunSpec(BASE.algorithm, {"name": "mnist", "data_dir": "here"}, run=BASE.run)
    dataclasses.replace(plan, base=mnist).write(tmp_path / "s")
    there = dataclasses.replace(mnist, data={"name": "mnist", "data_dir": "there"}, run={**BASE.run, "lanes": 2})
    dataclasses.replace(plan, base=there).write(tmp_path / "s")
    other = dataclasses.replace(mnist, data={"name": "mnist", "classes": 2})
    with pytest.raises(fedbc.InputError, match="holds another study"):
        dataclasses.replace(plan, base=other).write(tmp_path / "s")


def test_dimensions_from_text():
    assert spaces.parse("lr=1e-4..1:log", FEDBC) == Dimension("lr", 1e-4, 1.0, log=True)
    assert spaces.parse("dual-lr=0.1,0.2", FEDBC) == Dimension("dual_lr", values=(0.1, 0.2))
    assert spaces.parse("start=global,local", FEDBC).values == ("global", "local")
    assert spaces.parse("tolerance=0.5,learned", FEDBC).values == (0.5, "learned")
    assert spaces.parse("inner_steps=1..10", CATALOG["algorithm"]["pfedme"]).whole
    for text in ("lr=0.0001..1:log", "dual_lr=0.1,0.2", "momentum=0..0.9"):
        assert str(spaces.parse(text, FEDBC)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "write NAME=LOW..HIGH"),
        ("lrr=1..2", "search: argument of fedbc='lrr' is unknown"),
        ("lr=2..1", "the lower bound must be below"),
        ("lr=0..1:log", "need a lower bound above 0"),
        ("lr=1..2:lg", "has :lg, which is unknown"),
        ("lr=a..2", "'a' is not a finite number"),
        ("lr=x,y", "lr='x' is not accepted: give a number"),
    ],
)
def test_dimensions_that_are_none(text, message):
    with pytest.raises(fedbc.InputError) as caught:
        spaces.parse(text, FEDBC)
    assert message in str(caught.value)


def test_the_papers_grids_are_those_of_the_reproduction_and_every_method_has_a_range():
    for name, entry in CATALOG["algorithm"].items():
        if name in GRIDS:
            grid = spaces.grid_of(GRIDS[name].values, [], {})
            points, searched = spaces.points(grid), METHODS[name].candidates()
            if name == "pfedme":  # the reproduction searches beyond the paper's grid, at whose edge the choice lay
                assert all(any(p.items() <= c.items() for c in searched) for p in points)
                assert len(searched) > len(points)
            else:
                assert {"name": name, **GRIDS[name].fixed, **points[0]} in searched
                assert len(points) == len(searched)
        assert "lr" in spaces.ranges_of(entry, [], {})
    assert "lr" not in spaces.ranges_of(FEDBC, [], {"lr": 0.1})


def test_a_trial_is_the_mean_of_the_last_rounds_on_validation_data(tmp_path):
    plan = plan_of((0.05,), seeds=(3, 4))
    (line,) = run_here(plan, tmp_path / "s")
    alone = [
        fedbc.simulate(*s.build(), **s.run_arguments()) for s in (plan.spec({"lr": 0.05}, seed) for seed in (3, 4))
    ]
    means = [r.summary()["global_accuracy"] for r in alone]
    assert line["value"] == pytest.approx(sum(means) / 2)
    assert line["value"] != pytest.approx(max(r.history["global_accuracy"].max() for r in alone))
    rows = [{"round": n, "a": float(n)} if n % 2 == 0 else {"round": n} for n in range(1, 101)]
    assert trial.mean_of_last(rows, {"a": 1.0}) == pytest.approx(sum(range(82, 101, 2)) / 10)


def test_the_choice_does_not_change_when_the_test_sets_do(tmp_path, break_test_sets):
    plan = plan_of((0.001, 0.1))
    sound = [line["value"] for line in run_here(plan, tmp_path / "sound")]
    break_test_sets()
    assert [line["value"] for line in run_here(plan, tmp_path / "broken")] == sound
    assert (
        tuning.read_findings(plan, tmp_path / "sound").best
        == tuning.read_findings(plan, tmp_path / "broken").best
        == {"lr": 0.1}
    )


def test_hopeless_trials_are_pruned_and_divergence_has_nothing_right(tmp_path):
    plan = plan_of((0.1, 0.11, 0.12, 0.13, 1e-5, 1e30), pruner="median")
    lines = run_here(plan, tmp_path / "s")
    assert [line["state"] for line in lines] == ["complete"] * 4 + ["pruned", "complete"]
    found = tuning.read_findings(plan, tmp_path / "s")
    # Killed between the study's record of a trial and its line: the line is written when the study goes on.
    lost, file = lines[1], tmp_path / "cut.jsonl"
    file.write_text("".join(json.dumps({"trial": n}) + "\n" for n in (0, 2, 3, 4, 5)) + '{"trial": 1')
    (made,) = tuning.lines_lost(plan, study.open_study(tmp_path / "s", plan), file)
    assert {k: v for k, v in made.items() if k != "seconds"} == {k: v for k, v in lost.items() if k != "seconds"}
    assert found.trials["state"].tolist()[4:] == ["pruned", "diverged"]
    assert found.trials["reached"].tolist()[0] == 4
    assert 0 < found.trials["reached"].tolist()[4] < 4
    assert found.trials["value"].tolist()[5] == 0
    assert found.value == found.trials["value"].max() > 0


@pytest.mark.parametrize("sampler", list(study.SAMPLERS))
def test_samplers_draw_within_the_ranges_from_a_journal_that_a_writer_left_half_a_line_in(sampler, tmp_path):
    space = {d.name: d for d in (Dimension("lr", 1e-3, 1.0, log=True), Dimension("momentum", 0.0, 0.9))}
    plan = dataclasses.replace(plan_of((1.0,)), space=space, sampler=sampler, trials=14)
    points = []
    for number in range(14):
        opened = study.open_study(tmp_path, plan, seed=number)
        asked = opened.ask(study.distributions(space))
        points.append(asked.params)
        opened.tell(asked, -((asked.params["momentum"] - 0.5) ** 2))
        with open(tmp_path / "study.log", "ab") as file:
            file.write(b'{"op_code": 4, "half')
    assert all(1e-3 <= p["lr"] <= 1 and 0 <= p["momentum"] <= 0.9 for p in points)
    assert len({p["lr"] for p in points}) == 14
    assert len(study.open_study(tmp_path, plan).trials) == 14


def test_what_was_cut_off_is_enqueued_again_but_not_for_ever(tmp_path):
    plan = plan_of((0.1, 0.2))
    plan.write(tmp_path / "s")
    for attempt in range(study.ATTEMPTS):
        opened = study.open_study(tmp_path / "s", plan)
        assert study.prepare(opened, plan) == 2
        assert opened.ask(study.distributions(plan.space)).params["lr"] in (0.1, 0.2), attempt
    counts = [study.prepare(study.open_study(tmp_path / "s", plan), plan) for _ in range(2)]
    assert counts[0] == counts[1] <= 2


GRID = ["tune", "fedavg", *TINY, "--workers", "2", "--out", "t"]


def test_killed_and_called_again_a_grid_goes_on_in_several_processes(tmp_path, command):
    process = start(tmp_path, *GRID)
    lines = tmp_path / "t" / "trials.jsonl"
    wait_until(lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 1, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = lines.read_text()
    code, out, errors = command(*GRID)
    assert (code, errors) == (0, "")
    assert lines.read_text().startswith(before)
    plan = StudyPlan.read(tmp_path / "t")
    found = tuning.read_findings(plan, tmp_path / "t")
    rates = METHODS["fedavg"].grid["lr"]
    assert sorted(found.trials["lr"]) == sorted(rates)  # every point once
    assert "5 trials of the grid" in " ".join(out.split())
    trials = [t for t in study.open_study(tmp_path / "t", plan).trials if "seconds" in t.user_attrs]
    overlap = [a for a in trials for b in trials if a.number < b.number and b.datetime_start < a.datetime_complete]
    assert overlap
    best = RunSpec.from_dict(read_toml(tmp_path / "t" / "best.toml"))
    assert best.algorithm["lr"] == found.best["lr"]
    assert (best.algorithm["momentum"], best.run.get("validation")) == (0.5, None)
    best.check(*best.build())
    for file in ("report.html", "figures/history.png", "figures/history.svg", "tables/trials.csv"):
        assert (tmp_path / "t" / file).stat().st_size > 100
    # A third call runs nothing; another search does not fit the folder.
    after = lines.read_text()
    assert command(*GRID, "--quiet") == (0, "", "")
    assert lines.read_text() == after
    code, _, errors = command(*GRID, "--lr", "0.1", "--search", "momentum=0,0.5")
    assert code == 2
    assert "t holds another study (fedavg on synthetic, a grid, lr=0.001,0.01,0.1,0.5,1)" in errors


BAD = {
    "algorithm": (["fedbk"], "algorithm='fedbk' is unknown"),
    "both": (["fedbc", "--grid", "paper", "--sampler", "tpe"], "--grid and --sampler cannot both be given"),
    "no grid": (["ditto", "--grid", "paper"], "grid='paper' is not accepted for ditto: the paper has grids for fedavg"),
    "grid": (["fedbc", "--grid", "papr"], "grid='papr' is unknown"),
    "sampler": (["fedbc", "--sampler", "tp"], "sampler='tp' is unknown"),
    "pruner": (["fedbc", "--pruner", "best"], "pruner='best' is unknown"),
    "trials of a grid": (["fedbc", "--trials", "3"], "trials=3 is not accepted for a grid"),
    "range in a grid": (["fedbc", "--search", "lr=0.1..1"], "is a range, but a grid needs values"),
    "fixed and searched": (["fedbc", "--lr", "1", "--search", "lr=0.1,1"], "leave one of them out"),
    "nothing": (["localonly", "--lr", "0.1"], "there is nothing to search"),
    "own grid": (["ditto", "--grid", "own"], "there is nothing to search"),
    "score": (["fedbc", "--score", "best"], "score='best' is not accepted"),
    "fine-tuned": (["fedbc", "--score", "finetuned"], "score='finetuned' is not accepted for fedbc"),
    "out of range": (["fedavg", "--search", "momentum=0,2"], "momentum=2.0 is not accepted"),
    "share": (["fedavg", "--validation", "0"], "validation=0.0 is not accepted"),
    "folder": (["fedavg", "--out", "other"], "other exists already"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_wrong_input_is_one_line_before_anything_runs(arguments, message, command, tmp_path):
    assert_refused(command, tmp_path, ["tune", *arguments, *TINY], message)


def test_one_command_at_a_time_and_without_optuna_a_clear_word(tmp_path, command, monkeypatch):
    plan = plan_of((0.1,))
    plan.write(tmp_path / "s")
    with study.alone(tmp_path / "s"), pytest.raises(fedbc.InputError, match="s is in use"):
        tuning.run_study(plan, tmp_path / "s", workers=1, on_line=lambda line: None)
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, errors = command("tune", "fedbc")
    assert (code, errors) == (2, "fedbc: fedbc tune needs Optuna: pip install 'fedbc[tune]'\n")


def test_workers_that_cannot_start_a_trial_do_not_go_round_for_ever(tmp_path):
    plan = plan_of((0.1,))
    plan.write(tmp_path / "s")
    text = json.loads((tmp_path / "s" / "study.json").read_text())
    (tmp_path / "s" / "study.json").write_text(json.dumps(text | {"space": "damaged"}))
    with pytest.raises(fedbc.errors.FedBCError, match="no trial could be finished: the process died"):
        tuning.run_study(plan, tmp_path / "s", workers=1, on_line=lambda line: None)
    assert all("error" in line for line in Lines(tmp_path / "s" / "trials.jsonl").read().values())
