"""What a run folder tells about its run at each moment, and the page's data."""

import dataclasses
import json
import shutil

import numpy as np
import pandas as pd
import pytest

import fedbc
from fedbc.runs import CallEachRound, RunFolder, RunSpec, begin, deployed, execute_in, live
from fedbc.watch import page
from fedbc.watch.runs import WatchedRun

SPEC = RunSpec({"name": "fedbc"}, {"name": "synthetic", "devices": 4}, run={"rounds": 6, "sample": 2})


class Crash(RuntimeError):
    pass


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run folder and what was seen of it before its first round, after each, after a crash, and at its end."""
    folder, views = tmp_path_factory.mktemp("made") / "run", []
    begin(RunFolder(folder), SPEC)
    run = WatchedRun("run", RunFolder(folder))
    views.append(run.look())

    def on_round(row):
        views.append(run.look())
        if row["round"] == 4 and len(views) == 5:
            raise Crash("the cat sat on it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "WRITE_SECONDS", 0)  # every round is written at once, however fast the machine
        with pytest.raises(Crash):
            execute_in(RunFolder(folder), SPEC, [CallEachRound(on_round)], checkpoint_every=2).finished()
        views.append(run.look())
        execute_in(RunFolder(folder), SPEC, [CallEachRound(on_round)], checkpoint_every=2).finished()
        views.append(run.look())
    return folder, views


def test_rounds_that_follow_fast_are_written_with_the_next_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "WRITE_SECONDS", np.inf)
    written = []
    with live.recorded(RunFolder(tmp_path), 5, every=2) as record:
        for number in range(1, 6):
            record({"round": number})
            written.append(len(live.read_rows(RunFolder(tmp_path))))
    assert written == [0, 2, 2, 4, 4]
    assert [row["round"] for row in live.read_rows(RunFolder(tmp_path))] == [1, 2, 3, 4, 5]


@pytest.fixture
def seen(made, tmp_path):
    """The same with a copy of the folder, which may be spoilt."""
    return shutil.copytree(made[0], tmp_path / "run"), made[1]


def test_a_run_from_its_beginning_over_a_crash_to_its_end(seen):
    folder, views = seen
    assert [(v.state, v.round) for v in views] == [
        ("not begun", 0),
        *(("running", n) for n in (1, 2, 3, 4)),
        ("failed", 4),
        *(("running", n) for n in (3, 4, 5, 6)),  # it goes on after round 2, its checkpoint
        ("finished", 6),
    ]
    assert views[5].why == "the cat sat on it"
    assert all(v.rounds == 6 for v in views)
    assert views[4].seconds_left >= 0
    assert views[-1].seconds_left is None
    result = fedbc.load(folder)
    last = views[-1]
    assert last.history["global_accuracy"].tolist() == result.history["global_accuracy"].tolist()
    assert last.devices["multiplier"].tolist() == pytest.approx(result.devices["multiplier"].tolist())
    assert last.spec["algorithm"]["name"] == "fedbc"
    # While it runs, devices are those of the last checkpoint.
    assert views[4].devices["round"].max() == 2


def test_runs_without_a_live_history_are_shown_too(seen, tmp_path):
    folder, views = seen
    RunFolder(folder).live.unlink()
    over = WatchedRun("old", RunFolder(folder)).look()
    assert (over.state, over.round, over.rounds) == ("finished", 6, 6)
    assert over.history["global_loss"].tolist() == pytest.approx(views[-1].history["global_loss"].tolist())
    for name in ("summary.json", "history.csv", "devices.csv", "models.safetensors"):
        (folder / name).unlink()
    cut = WatchedRun("old", RunFolder(folder)).look()  # all that is left is a checkpoint
    assert (cut.state, cut.round) == ("not finished", 6)
    assert cut.history["global_loss"].tolist() == pytest.approx(views[-1].history["global_loss"].tolist())
    assert len(cut.devices) == 12
    (folder / "spec.json").unlink()  # as in a deployment that runs
    assert WatchedRun("old", RunFolder(folder)).look().spec["data"]["devices"] == 4


def test_an_extended_run_keeps_the_rounds_before(seen):
    folder, _ = seen
    RunFolder(folder).live.unlink()
    longer = RunSpec(SPEC.algorithm, SPEC.data, run={**SPEC.run, "rounds": 8})
    execute_in(RunFolder(folder), longer).finished()
    view = WatchedRun("run", RunFolder(folder)).look()
    assert (view.state, view.history["round"].tolist()) == ("finished", list(range(1, 9)))


def test_damaged_files_do_not_end_the_watch(seen):
    folder, _ = seen
    for name in ("spec.json", "history.csv", "devices.csv", "checkpoint.safetensors", "live.jsonl"):
        (folder / name).write_bytes(b"\x00{[")
    assert WatchedRun("run", RunFolder(folder)).look().round == 0
    for text in ("[1, 2]", '"x"', '{"run": [3]}', "null"):  # JSON, and no specification
        (folder / "spec.json").write_text(text)
        view = WatchedRun("run", RunFolder(folder)).look()
        assert (view.round, view.rounds, view.spec) == (0, None, {})


def test_a_deployments_folder_is_read_while_it_runs(tmp_path):
    from fedbc.flower.journal import Journal

    spec = {"algorithm": {"name": "fedavg"}, "data": {"devices": 5}, "model": {}, "run": {"epochs": 1}}
    journal = Journal(tmp_path / "flower", spec, fedbc.FedAvg().init_server({"w": np.zeros(3)}))
    with live.recorded(RunFolder(_made(tmp_path / "flower")), 9, every=1) as record:
        for number in (1, 2):
            taken = {d: (10, {"drift": 0.1 * d, "loss": 1.0, "weight": 1.0}) for d in (number, number + 1)}
            journal.close_round(journal.server, taken)
            journal.complete_row(journal.history[-1] | {"global_accuracy": 0.5, "seconds": 2.0})
            journal.save()
            record(journal.history[-1])
        status = deployed.Status("flower", 9, [deployed.DeviceStatus(n, here=n < 4) for n in range(5)])
        status.fault(3, "round 2: it is NaN")
        status.enter(tmp_path / "flower", "trains round 3")
        view = WatchedRun("flower", RunFolder(tmp_path / "flower")).look()
    assert view.why.startswith(
        "trains round 3; 4 of 5 devices are there; 1 answers not used, such as device 3's: round 2"
    )
    assert (view.state, view.round, view.rounds, view.seconds_a_round) == ("running", 2, 9, 2.0)
    assert 13 < view.seconds_left <= 14
    assert view.devices["device"].tolist() == [1, 2, 2, 3]
    assert view.spec["data"]["devices"] == 5
    shown = page.data([view])
    assert [row["drift"] for row in shown["rows"]["drifts"]] == pytest.approx([0.1, 0.2, 0.3])


def _made(folder):
    folder.mkdir()
    return folder


def test_runs_are_found_a_few_levels_down(seen, tmp_path):
    folder, _ = seen
    assert RunFolder.find(folder) == [RunFolder(folder)]
    for place in ("many/one", "many/two/runs/three", "many/.hidden", "many/a/b/c/deep"):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(folder / "spec.json", tmp_path / place)
    (tmp_path / "many" / "curves.png").write_bytes(b"")
    assert [f.path for f in RunFolder.find(tmp_path / "many")] == [
        tmp_path / "many/one",
        tmp_path / "many/two/runs/three",
    ]


def test_the_pages_data_are_strict_json_and_say_when_the_page_must_change(seen):
    _, views = seen
    every = [page.data([view]) for view in views]
    for data in every:
        json.dumps(data, allow_nan=False)
    assert every[0]["rows"] == {}
    # Charts of the history come with the first round, those of devices with the first checkpoint.
    assert len({every[0]["layout"], every[1]["layout"], every[3]["layout"]}) == 3
    assert every[1]["layout"] == every[2]["layout"]
    assert every[3]["layout"] == every[4]["layout"] == every[5]["layout"] == every[8]["layout"]
    assert every[2]["drawn"] != every[4]["drawn"]
    assert (every[-1]["state"], every[-1]["share"], every[-1]["shares"]) == ("finished", 1, [1])
    assert every[-1]["cells"][0][:3] == ["run", "finished", "6 of 6"]
    assert every[5]["cells"][0][1] == "failed: the cat sat on it"
    both = page.data([views[0], views[4]])
    assert (both["state"], both["share"]) == ("running", 4 / 12)


def test_long_histories_and_many_devices_are_thinned(seen):
    _, views = seen
    rounds = np.repeat(np.arange(1, 3001), 2)
    devices = pd.DataFrame({"round": rounds, "device": np.arange(6000) % 200, "drift": 1.0, "multiplier": 0.5})
    history = pd.DataFrame({"round": np.arange(1, 3001), "global_loss": np.linspace(2, 1, 3000)})
    view = dataclasses.replace(views[-1], history=history, devices=devices.assign(tolerance=np.inf))
    rows = page.chart_rows([view])
    assert len(rows["global_loss"]) <= page.MOST_POINTS + 1
    assert (rows["global_loss"][0]["round"], rows["global_loss"][-1]["round"]) == (1, 3000)
    assert len({row["device"] for row in rows["drifts"]}) == page.MOST_DEVICES
    assert rows["drifts"][0]["tolerance"] is None
    assert len(rows["multipliers"]) <= page.MOST_DEVICES * (page.MOST_STEPS + 1)
    assert "40 of 200 devices are shown" in page.html("x", [view], page.data([view]))
