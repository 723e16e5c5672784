"""The command line, as a person uses it: what it prints, what it writes, and what it says to a mistake."""

import json

import numpy as np
import pytest

import fedbc
from fedbc.cli import main
from fedbc.cli.options import FLAGS
from fedbc.runs import CATALOG

QUICK = ["--devices", "4", "--sample", "2", "--rounds", "2"]


@pytest.fixture
def cli(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def test_local_training_is_said_by_name(cli, tmp_path):
    """Every argument about it, as text: the run is that of the same words in Python."""
    chosen = {
        "optimizer": "adam,b1=0.8", "keep_optimizer": True, "clip": 3.0, "weight_decay": 0.01, "epsilon": 0.1,
        "check_every": 2, "domain": "ball,radius=5", "lr_schedule": "step,every=1,factor=0.5",
        "dual_schedule": "inverse_sqrt", "epochs": "1-3",
    }  # fmt: skip
    options = [
        part
        for name, value in chosen.items()
        for part in ([f"--{name.replace('_', '-')}"] + ([] if value is True else [value]))
    ]
    assert cli("run", "fedbc", *QUICK, *options, "--out", "said")[0] == 0
    data, model = fedbc.data.synthetic(devices=4), fedbc.models.logistic(60, 10)
    wanted = fedbc.simulate(fedbc.FedBC(), model, data, rounds=2, sample=2, **chosen)
    found = fedbc.load(tmp_path / "said")
    for name, array in found.global_model.items():
        np.testing.assert_array_equal(array, wanted.global_model[name])
    assert {name: found.spec["run"][name] for name in chosen} == chosen


def test_local_training_is_said_in_a_file(cli, tmp_path):
    """Tables, lists with one value per device, and words: the run is that of the same as options."""
    lines = [
        "rounds = 2", "sample = 2", "steps = [1, 2, 3, 4]", "epsilon = [0.5, 0.1, 0.05, 0]",
        'optimizer = { name = "adam", b1 = 0.8 }', 'domain = { name = "box", low = -1, high = 1 }',
        'lr_schedule = { name = "cosine", rounds = 4, floor = 0.1 }', 'patience = "none"', "time_budget = 1000",
        "target_accuracy = 0.99",
    ]  # fmt: skip
    (tmp_path / "a.toml").write_text("\n".join(["[data]", 'name = "synthetic"', "devices = 4", "[run]", *lines]))
    assert cli("run", "--config", "a.toml", "--out", "file", "--quiet") == (0, "", "")
    options = {
        "--steps": "1,2,3,4", "--epsilon": "0.5,0.1,0.05,0", "--optimizer": "adam,b1=0.8", "--patience": "none",
        "--domain": "box,low=-1,high=1", "--lr-schedule": "cosine,rounds=4,floor=0.1", "--time-budget": "1000",
        "--target-accuracy": "0.99",
    }  # fmt: skip
    assert cli("run", *QUICK, *(word for pair in options.items() for word in pair), "--out", "typed")[0] == 0
    one, other = fedbc.load(tmp_path / "file"), fedbc.load(tmp_path / "typed")
    assert one.devices.equals(other.devices)
    assert one.devices["steps"].max() <= 4
    for name, array in one.global_model.items():
        np.testing.assert_array_equal(array, other.global_model[name])
    assert one.summary()["ended"] == "rounds"
    assert cli("run", "--resume", "file", "--rounds", "4", "--target-accuracy", "0.01", "--quiet") == (0, "", "")
    ended = fedbc.load(tmp_path / "file")
    assert (ended.rounds, ended.summary()["ended"]) == (2, "target_accuracy")


def test_run_show_and_files(cli, tmp_path):
    code, out, err = cli("run", "fedbc", "fedavg", *QUICK, "--momentum", "0.5")
    assert (code, err) == (0, "")
    assert "Means over the last 20 rounds (2 of them evaluated)" in " ".join(out.split())
    assert "fedbc" in out
    assert "fedavg" in out
    folder = tmp_path / "runs" / "fedbc-fedavg-synthetic-1"
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    spec = json.loads((folder / "fedbc" / "spec.json").read_text())
    assert spec["algorithm"] == {
        "name": "fedbc",
        "lr": 0.01,
        "dual_lr": 0.01,
        "momentum": 0.5,
        "tolerance": "learned",
        "server": "sampled",
        "absent": "still",
        "start": "global",
        "lambda_min": 0.0,
        "lambda_max": "inf",
        "multiplier": 0.0,
        "bounds": "given",
    }
    assert spec["versions"]["jax"]
    assert spec["run"]["rounds"] == 2
    assert fedbc.load(folder / "fedbc").rounds == 2
    code, out, _ = cli("show", folder)
    assert code == 0
    assert "momentum = 0.5" in out
    code, out, _ = cli("show", folder / "fedbc", "--json")
    assert json.loads(out)["fedbc"]["summary"]["rounds"] == 2
    # A second run takes the next name.
    assert cli("run", "fedbc", "fedavg", *QUICK)[0] == 0
    assert (tmp_path / "runs" / "fedbc-fedavg-synthetic-2").is_dir()


def test_a_stored_specification_runs_again(cli, tmp_path):
    assert cli("run", *QUICK, "--out", "one", "--quiet") == (0, "", "")
    assert cli("run", "--resume", "one", "--quiet") == (0, "", "")
    assert fedbc.load(tmp_path / "one").rounds == 2
    code, _, _ = cli("run", "--resume", "one", "--rounds", "3", "--quiet")
    assert code == 0
    assert fedbc.load(tmp_path / "one").rounds == 3


def test_debug_mode_runs_without_compiling(cli, tmp_path):
    assert cli("run", *QUICK, "--rounds", "1", "--debug", "--out", "d", "--quiet") == (0, "", "")
    assert cli("run", *QUICK, "--rounds", "1", "--out", "c", "--quiet") == (0, "", "")
    by_hand, compiled = (fedbc.load(tmp_path / name) for name in ("d", "c"))
    assert by_hand.global_model["w"] == pytest.approx(compiled.global_model["w"], rel=1e-4, abs=1e-6)


def test_json_output(cli):
    code, out, err = cli("run", "fedprox", *QUICK, "--mu", "0.3", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["fedprox"]["rounds"] == 2


def test_config_file_and_options_over_it(cli, tmp_path):
    (tmp_path / "a.toml").write_text(
        '[algorithm]\nname = "fedbc"\nlr = 0.05\ntolerance = [0.1, 0.2, 0.3, 0.4]\nlambda_max = inf\n'
        '[data]\nname = "synthetic"\ndevices = 4\n[run]\nrounds = 2\nsample = 2\n'
    )
    assert cli("run", "--config", "a.toml", "--dual-lr", "0.2", "--out", "o", "--quiet") == (0, "", "")
    spec = json.loads((tmp_path / "o" / "spec.json").read_text())
    assert spec["algorithm"]["lr"] == 0.05
    assert spec["algorithm"]["dual_lr"] == 0.2
    assert spec["algorithm"]["tolerance"] == [0.1, 0.2, 0.3, 0.4]
    assert fedbc.load(tmp_path / "o").tolerances == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_list_and_help(cli):
    code, out, _ = cli("list")
    assert code == 0
    for name in [*fedbc.algorithms.ALGORITHMS, "synthetic", "logistic"]:
        assert name in out
    listed = json.loads(cli("list", "--json")[1])
    assert listed["algorithm"]["fedbc"].startswith("Federated learning beyond consensus")
    code, out, _ = cli("run", "--help", "fedbc")
    assert code == 0
    for word in ("--dual-lr", "alpha", "gamma", "--lambda-max", "beta", "--tolerance", "lr_lambda"):
        assert word in out


def test_help_fits_two_screens_and_tells_the_rest_by_name(cli):
    """What is a method's, a data set's or a model's own is told when one asks for it."""
    code, out, _ = cli("run", "--help")
    assert code == 0
    assert len(out.splitlines()) <= 75
    assert "--dual-schedule" in out.split("Also of the run")[1]
    assert "VALUE " not in out
    for word in ("--rounds INTEGER", "--sample INTEGER|none", "--help [NAME]", "pfedme", "shakespeare", "lstm"):
        assert word in out
    assert "--tolerance" not in out.split("Options:")[1]
    assert "--devices INTEGER" in cli("data", "show", "--help", "synthetic")[1]
    assert "one lane by lane" not in out
    assert "lane by lane" in " ".join(cli("run", "--help", "run")[1].split())
    code, _, err = cli("run", "--help", "fedbx")
    assert code == 2
    assert "did you mean 'fedbc'?" in err


def test_every_option_is_told_by_the_name_it_belongs_to(cli):
    for part in ("algorithm", "data", "model"):
        for name, entry in CATALOG[part].items():
            told = cli("run", "--help", name)[1]
            for flag in FLAGS:
                if flag.part == part and name in flag.owners:
                    assert f"{flag.spelling} " in told or f"{flag.spelling}\n" in told, (name, flag.spelling)
            assert entry.summary.split()[0] in told


def test_data_show_draws_the_partition(cli, tmp_path):
    code, out, err = cli("data", "show", "synthetic", "--devices", "5", "--out", "p.png")
    assert (code, err) == (0, "")
    assert "5 devices" in out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_fine_tuning_and_evaluations_from_the_command_line(cli, tmp_path):
    code, out, err = cli(
        "run", *QUICK, "--fine-tune", "steps=2,lr=0.1,on=test", "--evaluate", "global,local,gradient", "--out", "o"
    )
    assert (code, err) == (0, "")
    assert "TEST data" in out
    result = fedbc.load(tmp_path / "o")
    assert result.history["gradient_sqnorm_mean"].notna().all()
    assert result.history["finetuned_on_test_accuracy"].notna().all()
    assert result.spec["run"]["fine_tune"] == {"steps": 2, "lr": 0.1, "on": "test"}
    assert cli("run", "--resume", "o", "--rounds", "3", "--quiet") == (0, "", "")


BAD = [
    (["run", "--fine-tune", "often"], "fine_tune has 'often'", "steps=1"),
    (["run", "--fine-tune", "step=1"], "fine_tune: argument='step' is unknown", "did you mean 'steps'?"),
    (["run", "--fine-tune", "on=validation"], "fine_tune on='validation' is unknown", "train"),
    (["run", "--evaluate", "globel"], "evaluate='globel' is unknown", "did you mean 'global'?"),
    (["run", "fedbk"], "algorithm='fedbk' is unknown", "did you mean 'fedbc'?"),
    (["run", "--data", "sinthetic"], "data='sinthetic' is unknown", "did you mean 'synthetic'?"),
    (["run", "--model", "logistik"], "model='logistik' is unknown", "did you mean 'logistic'?"),
    (["run", "--lr", "-1"], "lr=-1.0 is not accepted", "a finite number > 0"),
    (["run", "--lr", "nan"], "lr=nan is not accepted", "finite number"),
    (["run", "--lr", "fast"], "lr='fast' is not accepted", "a number"),
    (["run", "--dual-lr", "inf"], "dual_lr=inf is not accepted", "finite number >= 0"),
    (["run", "--momentum", "1"], "momentum=1.0 is not accepted", "< 1"),
    (["run", "--tolerance", "wide"], "tolerance='wide' is not accepted", "'learned', a number"),
    (["run", "--tolerance", "0.1,0.2"], "tolerance has 2 values", "30 devices"),
    (["run", "--start", "here"], "start='here' is unknown", "global, local"),
    (["run", "--lambda-min", "2", "--lambda-max", "1"], "lambda_max=1.0 is not accepted", ">= 2"),
    (["run", "fedavg", "--weights", "equal"], "weights='equal' is unknown", "examples, root, uniform"),
    (["run", "fedavg", "--mu", "1"], "--mu=1 does not apply to algorithm fedavg", "fedprox"),
    (["run", "--sample", "31"], "sample=31 is not accepted", "from 1 to 30"),
    (["run", "--sample", "0"], "sample=0 is not accepted", ">= 1"),
    (["run", "--rounds", "0"], "rounds=0 is not accepted", ">= 1"),
    (["run", "--rounds", "1.5"], "rounds='1.5' is not accepted", "whole number"),
    (["run", "--epochs", "0"], "epochs=0 is not accepted", ">= 1"),
    (["run", "--batch-size", "0"], "batch_size=0 is not accepted", ">= 1"),
    (["run", "--seed", "-1"], "seed=-1 is not accepted", ">= 0"),
    (["run", "--lanes", "0"], "lanes=0 is not accepted", ">= 1"),
    (["run", "--devices", "0"], "devices=0 is not accepted", ">= 1"),
    (["run", "--alpha", "-0.5"], "alpha=-0.5 is not accepted", ">= 0"),
    (["run", "--model-features", "7"], "logistic takes examples of shape (7,), not (60,)", "set features"),
    (["run", "--model-classes", "9"], "has 9 outputs", "10 classes"),
    (["run", "--checkpoint-every", "0"], "checkpoint_every=0 is not accepted", ">= 1"),
    (["run", "--config", "absent.toml"], "config='absent.toml' does not exist", ""),
    (["run", "--config", "broken.toml"], "config='broken.toml' is not valid TOML", "line 1"),
    (["run", "--config", "strange.toml"], "algorithm fedbc: argument='speed' is unknown", ""),
    (["run", "--config", "table.toml"], "table='algoritm' is unknown", "did you mean 'algorithm'?"),
    (["run", "--out", "taken"], "taken exists already", "another folder"),
    (["run", "--resume", "nowhere"], "resume='nowhere' is not a folder", ""),
    (["run", "--resume", "taken"], "resume='taken' is not a run folder", "spec.json"),
    (["run", "--resume", "taken", "--lr", "1"], "--lr cannot be given with --resume", ""),
    (["run", "--learning-rate", "1"], "No such option", "--learning-rate"),
    (["show", "nowhere"], "nowhere is not a folder with a run", ""),
    (["show", "taken"], "taken does not hold a finished run", ""),
    (["data", "show", "mnits"], "data='mnits' is unknown", "did you mean 'mnist'?"),
    (["data", "show", "--out", "picture.doc"], "out='picture.doc' is not accepted", ".png"),
    (["walk"], "No such command", "walk"),
]


@pytest.mark.parametrize(("arguments", "names", "offers"), BAD, ids=[" ".join(b[0]) for b in BAD])
def test_bad_input_is_one_clear_line(cli, tmp_path, arguments, names, offers):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "something").write_text("mine")
    (tmp_path / "broken.toml").write_text("lr = = 1")
    (tmp_path / "strange.toml").write_text('[algorithm]\nname = "fedbc"\nspeed = 9\n')
    (tmp_path / "table.toml").write_text('[algoritm]\nname = "fedbc"\n')
    before = sorted(p.name for p in tmp_path.rglob("*"))
    code, out, err = cli(*arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert names in err
    assert offers in err
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_divergence_is_told_and_what_is_good_is_kept(cli, tmp_path):
    code, _out, err = cli(
        "run", "fedavg", *QUICK, "--rounds", "60", "--lr", "1e30", "--out", "d", "--weights", "uniform"
    )
    assert code == 1
    assert err.count("\n") == 1
    assert "diverged in round" in err
    assert "smaller rate" in err


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(cli, tmp_path, monkeypatch, moment):
    import errno
    import os

    from fedbc import storage

    allowed = (
        0 if moment == "begin" else 2
    )  # the specification and its folder's entry still fit, the checkpoint does not
    written = []
    real = os.fsync

    def fsync(handle):
        written.append(handle)
        if len(written) > allowed:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(storage.os, "fsync", fsync)
    code, _, err = cli("run", *QUICK, "--out", "full")
    assert code == 2
    assert err.count("\n") == 1
    assert "the disk is full" in err
    left = [p.name for p in tmp_path.rglob("*") if p.is_file()]
    assert sorted(left) == ([] if moment == "begin" else ["live.jsonl", "spec.json"])
