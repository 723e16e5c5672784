"""Trackers with the real libraries, offline: what they hold is read back by their own readers."""

import functools
import re
import struct
import sys
import warnings
from pathlib import Path

import pytest

import fedbc
from fedbc import trackers
from fedbc.cli import main
from fedbc.cli.tracking import Wanted
from fedbc.runs import CallEachRound, Lines, RunFolder, RunSpec, begin, execute_in, live, run_missing
from fedbc.runs.many import run_to_line

SPEC = RunSpec(
    {"name": "fedbc", "lr": 0.05}, {"name": "synthetic", "devices": 4}, run={"rounds": 5, "sample": 2, "seed": 3}
)

# MLflow 3.17 uses an option that SQLAlchemy 2.1 calls deprecated, and leaves its connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DIR", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    if "wandb" in sys.modules:  # it keeps the folder and the variables of its first run
        sys.modules["wandb"].teardown()


def in_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def scalars(found, tag):
    return [(e.step, pytest.approx(e.value, rel=1e-6)) for e in found.Scalars(tag)]


def wandb_records(file):
    """The records of W&B's own file: LevelDB's log format, in blocks of 32 KiB, behind a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def in_wandb(folder):
    """For each offline run in order: its id, its configuration, its rows, its summary."""
    import json

    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda f: f.stat().st_mtime_ns):
        records = list(wandb_records(file))
        (run,) = (r.run for r in records if r.WhichOneof("record_type") == "run")
        read = lambda items: {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}  # noqa: E731
        rows = [read(r.history.item) for r in records if r.WhichOneof("record_type") == "history"]
        summary = {}
        for r in records:
            if r.WhichOneof("record_type") == "summary":
                summary |= read(r.summary.update)
        found.append((run, read(run.config.update), rows, summary))
    return found


def every_tracker(folder, spec):
    known = {"name": "one", "config": spec.to_dict(), "memory": folder}
    return [
        trackers.TensorBoard("logs", **known),
        trackers.MLflow("sqlite:///mlflow.db", **known),
        trackers.WandB("fedbc-test", **known),
    ]


class Crash(RuntimeError):
    pass


def test_a_run_that_crashes_and_goes_on_has_one_history_in_every_tracker(tmp_path):
    folder = tmp_path / "run"
    begin(RunFolder(folder), SPEC)

    def crash(row):
        if row["round"] == 4:
            raise Crash

    with pytest.raises(Crash):  # the checkpoint is of round 2; round 3 will be computed again, and 4, too
        execute_in(
            RunFolder(folder), SPEC, [CallEachRound(crash)], checkpoint_every=2, trackers=every_tracker(folder, SPEC)
        ).finished()
    result = execute_in(RunFolder(folder), SPEC, checkpoint_every=2, trackers=every_tracker(folder, SPEC)).finished()
    assert result.rounds == 5
    accuracy = list(enumerate(result.history["global_accuracy"], 1))
    summary = result.summary()["global_accuracy"]

    board = in_tensorboard(tmp_path / "logs" / "one")
    assert accuracy == scalars(board, "global_accuracy")
    assert scalars(board, "summary/global_accuracy") == [(5, summary)]
    assert "specification/text_summary" in board.Tags()["tensors"]
    assert board.SummaryMetadata("_hparams_/session_start_info").plugin_data.plugin_name == "hparams"

    from mlflow.tracking import MlflowClient

    client = MlflowClient("sqlite:///mlflow.db")
    experiment = client.get_experiment_by_name("fedbc")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    assert (run.data.params["algorithm.lr"], run.data.params["data.devices"]) == ("0.05", "4")
    assert run.data.metrics["summary.global_accuracy"] == summary
    held = sorted(client.get_metric_history(run.info.run_id, "global_accuracy"), key=lambda m: m.step)
    assert [(m.step, m.value) for m in held] == accuracy

    (first, config, before, _), (second, _, after, final) = in_wandb(tmp_path)
    assert first.run_id == second.run_id
    assert (first.project, first.display_name) == ("fedbc-test", "one")
    assert config["algorithm"]["lr"] == 0.05
    assert [(r["_step"], r["round"]) for r in before] == [(n, n) for n in (1, 2, 3, 4)]
    assert [(r["round"], r["global_accuracy"]) for r in after] == accuracy[2:]
    assert (final["summary.global_accuracy"], final["state"]) == (summary, "finished")


def test_a_tracker_that_is_added_later_gets_the_rounds_before(tmp_path):
    folder = tmp_path / "run"
    begin(RunFolder(folder), SPEC)

    def stop(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute_in(RunFolder(folder), SPEC, [CallEachRound(stop)], checkpoint_every=1).finished()
    assert live.Follower(RunFolder(folder)).refresh()
    known = {"name": "late", "memory": folder}
    result = execute_in(RunFolder(folder), SPEC, trackers=[trackers.TensorBoard("logs", **known)]).finished()
    losses = list(enumerate(result.history["global_loss"], 1))
    assert losses == scalars(in_tensorboard(tmp_path / "logs" / "late"), "global_loss")
    # A finished run can be given to a tracker, too, and once is enough.
    for _ in range(2):
        execute_in(RunFolder(folder), SPEC, trackers=[trackers.TensorBoard("more", **known)]).finished()
    assert losses == scalars(in_tensorboard(tmp_path / "more" / "late"), "global_loss")
    assert len(list((tmp_path / "more" / "late").iterdir())) == 1


def test_a_tracker_that_fails_is_warned_of_once_and_the_run_goes_on(tmp_path, monkeypatch, small, tiny_model):
    monkeypatch.setattr(trackers.mlflow, "SEND_SECONDS", 0)
    good = trackers.TensorBoard("logs")

    def break_the_database(row):
        if row["round"] == 2:
            (tmp_path / "mlflow.db").write_bytes(b"no longer a database" * 1000)

    address = f"sqlite:///{tmp_path}/mlflow.db"  # MLflow keeps a connection for each address
    with trackers.MLflow(address) as bad, good, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def on_round(row):
            for follow in (good, bad, break_the_database):
                follow(row)

        result = fedbc.simulate(fedbc.FedBC(), tiny_model, small, rounds=5, on_round=on_round)
    assert result.rounds == 5
    (said,) = (str(w.message) for w in caught if w.category is trackers.TrackerWarning)
    assert said.startswith(f"MLflow ({address} fedbc) failed, the run goes on without it:")
    assert "\n" not in said
    assert [step for step, _ in scalars(in_tensorboard(tmp_path / "logs" / "run"), "global_loss")] == [1, 2, 3, 4, 5]


@pytest.fixture
def cli(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["run", "--devices", "4", "--rounds", "2", *arguments])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def test_the_options_of_the_command_line(cli, tmp_path):
    """Several methods are several tracker runs; a second command makes new ones."""
    several = ["fedbc", "fedavg", "--tensorboard", "logs", "--quiet"]
    assert cli(*several, "--wandb", "--wandb-project", "mine") == (0, "", "")
    assert cli(*several, "--out", "again/fedbc-fedavg-synthetic-1") == (0, "", "")
    name = "fedbc-fedavg-synthetic-1"
    kept = sorted(p.name for p in (tmp_path / "logs").iterdir())
    assert kept == [f"{name}-fedavg", f"{name}-fedavg-2", f"{name}-fedbc", f"{name}-fedbc-2"]
    result = fedbc.load(tmp_path / "runs" / name / "fedavg")
    assert scalars(in_tensorboard(tmp_path / "logs" / f"{name}-fedavg"), "drift") == list(
        enumerate(result.history["drift"], 1)
    )
    (bc, config, rows, _), (avg, *_) = in_wandb(tmp_path)
    assert [bc.display_name, avg.display_name] == [f"{name}-fedbc", f"{name}-fedavg"]
    assert (bc.project, config["algorithm"]["name"], len(rows)) == ("mine", "fedbc", 2)


def test_the_documentations_snippet(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "live.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(compile(snippet, "docs/live.md", "exec"), names)
    board = in_tensorboard(tmp_path / "logs" / "first")
    assert scalars(board, "global_loss") == list(enumerate(names["result"].history["global_loss"], 1))


def test_a_sweep_is_a_tracker_run_for_each_run(tmp_path):
    specs = [RunSpec(SPEC.algorithm, SPEC.data, run={"rounds": 2, "seed": seed}) for seed in (0, 1)]
    work = functools.partial(run_to_line, track=Wanted(tensorboard=tmp_path / "logs").named)
    run_missing(specs, tmp_path / "r.jsonl", workers=1, work=work)
    for key, line in Lines(tmp_path / "r.jsonl").read().items():
        board = in_tensorboard(tmp_path / "logs" / f"fedbc-{key}")
        assert scalars(board, "summary/global_loss") == [(2, line["summary"]["global_loss"])]
        assert [step for step, _ in scalars(board, "global_loss")] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mlflow", "mlruns"], "mlflow='mlruns' is not accepted: MLflow keeps runs in folders no longer"),
        (["--mlflow", "sqlite:///file/all.db"], "mlflow=sqlite:///file/all.db fedbc cannot be used"),
        (["--tensorboard", "file/logs"], "cannot write file/logs: Not a directory"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_run(cli, tmp_path, arguments, message):
    (tmp_path / "file").write_text("mine")
    code, out, err = cli(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (tmp_path / "runs").exists()


def test_wandb_without_a_login_does_not_ask_for_a_password(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    import wandb

    wandb.teardown()  # it reads its variables once
    code, _, err = cli("--wandb")
    assert (code, err.count("\n")) == (2, 1), err
    assert "wandb needs a login" in err
    assert not (tmp_path / "runs").exists()
    wandb.teardown()


@pytest.mark.parametrize(
    ("option", "module", "extra"),
    [
        (["--tensorboard", "logs"], "tensorboardX", "tensorboard"),
        (["--mlflow", "sqlite:///mlflow.db"], "mlflow.tracking", "mlflow"),
        (["--wandb"], "wandb", "wandb"),
    ],
)
def test_a_missing_library_names_its_extra(cli, tmp_path, monkeypatch, option, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    code, _, err = cli(*option)
    assert (code, err.count("\n")) == (2, 1)
    assert f"pip install 'fedbc[{extra}]'" in err
    assert list(tmp_path.iterdir()) == []


def test_a_project_without_its_tracker_is_refused(cli, tmp_path):
    code, _, err = cli("--wandb-project", "mine")
    assert (code, err) == (2, "fedbc: --wandb-project is the project for --wandb, which was not given\n")
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_an_address_is_not_kept():
    tracker = trackers.MLflow("https://user:secret@example.org/mlflow")
    assert tracker.target == "https://example.org/mlflow fedbc"
