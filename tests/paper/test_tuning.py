"""Choosing hyper-parameters: by the mean over seeds of the last rounds, in stages, and never from nothing."""

import dataclasses
import json
from pathlib import Path

import pytest

import fedbc
from fedbc.paper import hyperparameters as tuning
from fedbc.paper import parts, runner, short
from fedbc.paper.evidence import Evidence
from fedbc.paper.methods import METHODS
from fedbc.runs import read_sweep

TUNING = dataclasses.replace(
    tuning.TUNINGS["synthetic-e5"],
    methods=("fedavg", "fedprox"),
    seeds=(100, 101),
    rungs=(tuning.Rung(20, 0.1), tuning.Rung(200)),
    near=True,
)


def scored(specs, score):
    """Results of runs whose accuracy is a known function of their specification."""
    return {s.identity: {"hash": s.identity, "spec": s.to_dict(), **score(s.algorithm, s.run)} for s in specs}


def accuracy(value):
    return {"summary": {"global_accuracy": value}}


def run_to_the_end(tuned, score):
    results, stages = {}, []
    while todo := tuned.pending(results):
        stages.append(todo)
        results |= scored(todo, score)
    return results, stages


def test_a_tuning_run_is_evaluated_a_few_times():
    def every(group, rounds):
        tuned = tuning.TUNINGS[group]
        return tuned.spec(METHODS["fedavg"].candidates()[0], 100, tuning.Rung(rounds)).run["evaluate_every"]

    assert [every("mnist-e5", rounds) for rounds in (3, 12, 50)] == [1, 3, 5]
    # On text an evaluation takes longer than a round.
    assert [every("shakespeare-e1", rounds) for rounds in (5, 40)] == [5, 10]


def test_a_stage_may_have_a_smaller_sample():
    tuned = tuning.TUNINGS["shakespeare-e1"]
    fedavg = METHODS["fedavg"].candidates()[0]
    first, last = (tuned.spec(fedavg, 100, rung) for rung in tuned.rungs)
    assert (first.data["stride"], first.data["max_samples"], first.run["rounds"]) == (1, 100, 5)
    assert (last.data["stride"], last.data["max_samples"], last.run["rounds"]) == (10, None, 20)


def test_every_rate_may_go_on(tmp_path):
    """Where short runs cannot judge rates, the best of each goes on."""

    def score(algorithm, run):
        early = run["rounds"] == 20
        value = {0.001: 0.1, 0.01: 0.5, 0.1: 0.4, 0.5: 0.3, 1.0: 0.2}[algorithm["lr"]]
        if "mu" in algorithm:  # with few rounds 0.01 is best, with many 0.1
            value += algorithm["mu"] / 100 + (0 if early or algorithm["lr"] != 0.1 else 0.4)
        return accuracy(value)

    fair = dataclasses.replace(TUNING, per_rate=1)
    results, stages = run_to_the_end(fair, score)
    longer = [s for stage in stages for s in stage if s.algorithm["name"] == "fedprox" and s.run["rounds"] == 200]
    assert sorted({(s.algorithm["lr"], s.algorithm["mu"]) for s in longer}) == [(0.001, 1.0), (0.01, 1.0), (0.1, 1.0)]
    assert fair.progress(METHODS["fedprox"], results)[0]["lr"] == 0.1
    assert fair.progress(METHODS["fedavg"], results)[0]["lr"] == 0.01  # nothing but rates: a share of them
    assert "the best 1 of each rate" in tuning.write_choices(tmp_path, fair, results).read_text()


def test_the_best_mean_wins_and_short_runs_only_thin_the_field(tmp_path):
    def score(algorithm, run):
        value = {0.001: 0.3, 0.01: 0.8, 0.1: 0.7, 0.5: 0.9, 1.0: 0.1}[algorithm["lr"]] + algorithm.get("mu", 0) / 100
        if run["rounds"] == 200 and algorithm["lr"] == 0.5:
            value = 0.6 if run["seed"] == 100 else 0.2  # good when short, bad at length
        return accuracy(value)

    results, stages = run_to_the_end(TUNING, score)
    assert TUNING.progress(METHODS["fedavg"], results)[0]["lr"] == 0.01
    # FedAvg's five rates are few: none is judged by a short run. Of FedProx's 15 points two went on, with two seeds.
    assert {(s.algorithm["name"], s.run["rounds"]) for s in stages[0]} == {("fedavg", 200)}
    assert {(s.algorithm["name"], s.run["rounds"]) for s in stages[1]} == {("fedprox", 20)}
    assert [(s.algorithm["name"], s.run["rounds"]) for s in stages[2]] == [("fedprox", 200)] * 4
    # FedProx searched only next to FedAvg's rate.
    rates = {s.algorithm["lr"] for stage in stages for s in stage if s.algorithm["name"] == "fedprox"}
    assert rates == {0.001, 0.01, 0.1}
    assert TUNING.progress(METHODS["fedprox"], results)[0] | {"name": 0} == {
        "name": 0, "weights": "examples", "momentum": 0.5, "lr": 0.01, "mu": 1.0,
    }  # fmt: skip

    file = tuning.write_choices(tmp_path, TUNING, results)
    text = file.read_text()
    assert "run seeds 100, 101, which are not reported" in text
    assert "best 10% went on" in text
    assert "on 20% of each device's training data, held out" in text
    assert {s.run["validation"] for stage in stages for s in stage} == {0.2}  # no test set takes part
    assert "validation" not in text.split("[run]")[1]  # reported runs train on all training data
    specs = read_sweep(file)  # `fedbc sweep` runs the file as it is
    assert [s.algorithm["name"] for s in specs] == ["fedavg", "fedprox"]
    assert specs[0].run["rounds"] == 200
    assert specs[0].run["epochs"] == 5


def test_between_equals_the_loss_decides():
    """On text every rate is right equally often at first."""

    def score(algorithm, run):
        loss = {0.001: 4.4, 0.01: 4.3, 0.1: 3.6, 0.5: 3.2, 1.0: float("nan")}[algorithm["lr"]]
        return {"summary": {"global_accuracy": 0.185, "global_test_loss": loss}}

    plain = dataclasses.replace(TUNING, methods=("fedavg",))
    results, _ = run_to_the_end(plain, score)
    assert plain.progress(METHODS["fedavg"], results)[0]["lr"] == 0.5


def test_a_run_that_diverged_counts_as_nothing_right():
    def score(algorithm, run):
        return accuracy(0.5) if algorithm["lr"] < 0.1 else {"error": "Diverged: ...", "diverged": 3}

    results, _ = run_to_the_end(dataclasses.replace(TUNING, methods=("fedavg",)), score)
    assert TUNING.progress(METHODS["fedavg"], results)[0]["lr"] == 0.001


def test_choices_come_back_as_they_were_written(tmp_path):
    tuned = tuning.TUNINGS["synthetic-e25"]
    results, _ = run_to_the_end(tuned, lambda algorithm, run: accuracy(1 - algorithm["lr"]))
    tuning.write_choices(tmp_path, tuned, results)
    (choices,) = tuning.read_choices(tmp_path).values()
    assert set(choices) == set(tuned.methods)
    for key, algorithm in choices.items():
        assert algorithm == tuned.progress(METHODS[key], results)[0]


def test_an_experiment_tunes_only_what_it_needs(tmp_path):
    group = tuning.TUNINGS["cifar10-e5"]
    part = group.part(["fedbc-reference", "perfedavg-stated", "perfedbc"])
    assert part.methods == (
        "fedavg",
        "fedbc",
        "perfedbc",
    )  # at the stated rate Per-FedAvg has nothing to choose
    results, _ = run_to_the_end(part, lambda algorithm, run: accuracy(1 - algorithm.get("lr", 0)))
    tuning.write_choices(tmp_path, group, results)
    assert set(tuning.read_choices(tmp_path)["cifar10-e5"]) == set(part.methods)

    # A method that is chosen later joins those of before.
    rest = group.part(["fedprox"])
    more, stages = run_to_the_end(rest, lambda algorithm, run: accuracy(1 - algorithm["lr"]))
    assert {s.algorithm["name"] for stage in stages for s in stage} == {"fedavg", "fedprox"}
    tuning.write_choices(tmp_path, group, results | more)
    assert set(tuning.read_choices(tmp_path)["cifar10-e5"]) == {*part.methods, "fedprox"}


def test_a_candidate_is_judged_by_all_settings_and_seeds():
    """SCAFFOLD's best rate depends on the setting: its mean over them counts."""

    def score(algorithm, run):
        return accuracy({0.001: 0.6, 0.01: 0.5}.get(algorithm["lr"], 0.1))

    group = dataclasses.replace(tuning.TUNINGS["mnist-e1"], methods=("scaffold",))
    (first, *_), results = group.pending({}), {}
    todo = group.pending(results)
    assert len(todo) == 5 * 3  # rates, settings: in full, none thinned out early
    assert {(s.data["classes"], s.run["seed"]) for s in todo} == {(2, 100), (1, 101), (3, 100)}
    assert {s.run["rounds"] for s in todo} == {100}
    assert first.run["validation"] == 0.2
    for s in todo:
        better = s.data["classes"] == 1 and s.algorithm["lr"] == 0.01
        results |= scored([s], lambda a, r, better=better: accuracy(0.99) if better else score(a, r))
    assert group.progress(METHODS["scaffold"], results)[0]["lr"] == 0.01


def test_the_field_is_thinned_in_one_setting_and_judged_in_all(tmp_path):
    """A quarter of a grid's points go on from short runs in the first setting; the mean over all settings decides."""
    group = dataclasses.replace(tuning.TUNINGS["mnist-e5"], methods=("fedavg", "fedbc"))

    def score(algorithm, run):
        return accuracy(1 - algorithm["lr"] - algorithm.get("dual_lr", 0))

    results, stages = run_to_the_end(group, score)
    short, long = (
        {(s.algorithm["lr"], s.algorithm["dual_lr"], s.data["classes"]) for stage in stages for s in stage
         if s.algorithm["name"] == "fedbc" and s.run["rounds"] == rounds}
        for rounds in (25, 50)
    )  # fmt: skip
    assert {classes for *_, classes in short} == {2}
    assert {classes for *_, classes in long} == {1, 2, 3}
    assert len(long) == 3 * 3  # of 12 points, next to FedAvg's rate, three in three settings
    assert (
        "25 rounds in the first of them, of which the best 25% went on"
        in tuning.write_choices(tmp_path, group, results).read_text()
    )


class Pretending(runner.Runner):
    """Small rates are best, whatever the method; it may be stopped on the way."""

    stop_after = None

    def _sweep(self, name, file, specs, say):
        assert file == "validation/synthetic-e5.jsonl"
        for spec in specs[: self.stop_after]:
            self.store.lines |= scored([spec], lambda a, r: accuracy(1 - a["lr"]))
        if self.stop_after == 1:
            raise KeyboardInterrupt


def test_old_choices_stay_until_all_new_ones_are_made(tmp_path, monkeypatch):
    """And then it is said how many changed, and what the old ones were."""
    small = dataclasses.replace(TUNING, methods=("fedavg", "scaffold"), rungs=(tuning.Rung(200),))
    monkeypatch.setitem(tuning.TUNINGS, "synthetic-e5", small)
    old = {"fedavg": METHODS["fedavg"].candidates()[0], "scaffold": METHODS["scaffold"].candidates()[3]}
    tuning.write_choices(tmp_path / "chosen", small, {}, keep=old)
    assert "on the test sets" in (tmp_path / "chosen" / "synthetic-e5.toml").read_text()
    said = []
    monkeypatch.setattr(Pretending, "stop_after", 1)
    with pytest.raises(KeyboardInterrupt):
        Pretending(tmp_path).choose("synthetic-e5", say=said.append)
    assert tuning.read_choices(tmp_path / "chosen")["synthetic-e5"] == old
    monkeypatch.setattr(Pretending, "stop_after", None)
    done = Pretending(tmp_path)
    done.choose("synthetic-e5", say=said.append)
    chosen = tuning.read_choices(tmp_path / "chosen")["synthetic-e5"]
    assert [chosen[key]["lr"] for key in old] == [0.001, 0.001]
    assert said[-1] == "synthetic-e5: 1 of 2 choices are others than before: SCAFFOLD"
    assert runner.Store(tmp_path).earlier["synthetic-e5"] == old
    assert small.basis("fedavg", chosen["fedavg"], done.store.lines) is tuning.Basis.VALIDATION
    assert small.basis("scaffold", old["scaffold"], done.store.lines) is tuning.Basis.TEST


def test_some_methods_are_chosen_before_others(tmp_path, monkeypatch):
    """The rest keep their old choices, and the report tells how many rest on what."""
    small = dataclasses.replace(
        TUNING, methods=("fedavg", "scaffold", "scaffold-plain"), rungs=(tuning.Rung(200),), near=False
    )
    monkeypatch.setitem(tuning.TUNINGS, "synthetic-e5", small)
    old = {key: METHODS[key].candidates()[3] for key in small.methods}
    tuning.write_choices(tmp_path / "chosen", small, {}, keep=old)
    said, one = [], Pretending(tmp_path)

    def in_words():
        found = Evidence(tmp_path)
        found.store.lines |= one.store.lines
        return short.basis_in_words(found)

    assert in_words().startswith("Of 3 choices of hyper-parameters 0 were made on held-out training data; the other 3 ")
    one.choose("synthetic-e5", ["scaffold", "scaffold-plain"], say=said.append)
    assert said[-1].startswith("synthetic-e5: 2 of 2 choices are others than before: SCAFFOLD, ")
    chosen = tuning.read_choices(tmp_path / "chosen")["synthetic-e5"]
    assert {key: chosen[key]["lr"] for key in chosen} == {"fedavg": 0.5, "scaffold": 0.001, "scaffold-plain": 0.001}
    assert "are older, and not made anew yet" in (tmp_path / "chosen" / "synthetic-e5.toml").read_text()
    # The method without momentum never was chosen on test sets.
    assert runner.Store(tmp_path).earlier["synthetic-e5"] == {"scaffold": old["scaffold"]}
    assert in_words().startswith(
        "Of 3 choices of hyper-parameters 2 were made on held-out training data, which changed 1 of 1 that had been "
        "made on the reported test sets; the other 1 still "
    )
    one.choose("synthetic-e5", say=said.append)
    assert runner.Store(tmp_path).earlier["synthetic-e5"] == {"fedavg": old["fedavg"], "scaffold": old["scaffold"]}
    assert in_words() == (
        "Of 3 choices of hyper-parameters 3 were made on held-out training data, which changed 2 of 2 that had been "
        "made on the reported test sets."
    )
    with pytest.raises(fedbc.InputError, match="'ditto' has nothing to choose in synthetic-e5"):
        one.choose("synthetic-e5", ["ditto"], say=said.append)


def test_a_large_file_becomes_parts_of_whole_lines(tmp_path):
    file = tmp_path / "runs.jsonl"
    lines = [json.dumps({"hash": f"{i:03}", "text": "x" * 100}) for i in range(100)]
    file.write_text("\n".join(lines) + "\n")
    parts.split_into_parts(file, largest=3000)
    assert [p.name for p in parts.parts_of(file)] == [*(f"runs.{n}.jsonl" for n in range(1, 5)), "runs.jsonl"]
    assert all(p.stat().st_size <= 3000 for p in parts.parts_of(file))
    assert [line for p in parts.parts_of(file) for line in p.read_text().splitlines()] == lines
    before = file.read_bytes()
    parts.split_into_parts(file, largest=3000)
    assert file.read_bytes() == before
    file.write_text("y" * 4000)  # one long line stays whole
    parts.split_into_parts(file, largest=3000)
    assert file.read_text() == "y" * 4000


def test_no_committed_file_of_results_is_too_large():
    results = Path(__file__).resolve().parents[2] / "results"
    assert all(file.stat().st_size < 1_000_000 for file in results.rglob("*.json*"))


def test_a_choice_off_the_grids_shape_is_refused(tmp_path):
    (tmp_path / "synthetic-e5.toml").write_text('[[sweep]]\nalgorithm = { name = "fedavg", lr = 0.3 }\n')
    with pytest.raises(fedbc.InputError, match="is not a point of the grid"):
        tuning.read_choices(tmp_path)
