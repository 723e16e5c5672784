"""Sweeps: what a file stands for, that each run is done once, and that one failing run does not stop the others."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import fedbc
from fedbc.runs import Lines, RunSpec, many, read_sweep, run_missing

FILE = """
[data]
name = "synthetic"
devices = 4
[run]
rounds = 2
[[sweep]]
algorithm = { name = "fedbc", momentum = 0.5 }
[sweep.grid]
"algorithm.lr" = [0.01, 0.1]
"run.seed" = [0, 1]
[[sweep]]
algorithm = { name = "fedavg", lr = 1e30 }
run = { rounds = 3 }
"""


def written(tmp_path, text):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return path


def test_a_file_stands_for_its_product(tmp_path):
    specs = read_sweep(written(tmp_path, FILE))
    assert [(s.algorithm["name"], s.algorithm["lr"], s.run.get("seed"), s.run["rounds"]) for s in specs] == [
        ("fedbc", 0.01, 0, 2),
        ("fedbc", 0.01, 1, 2),
        ("fedbc", 0.1, 0, 2),
        ("fedbc", 0.1, 1, 2),
        ("fedavg", 1e30, None, 3),
    ]
    assert all(s.data["devices"] == 4 for s in specs)


def test_the_hash_is_of_all_values_whether_given_or_default():
    short = RunSpec({"name": "fedbc"})
    long = RunSpec({"name": "fedbc", "lr": 0.01}, {"name": "synthetic", "devices": 30}, run={"rounds": 100, "lanes": 1})
    other = RunSpec({"name": "fedbc", "lr": 0.02})
    assert short.identity == long.identity != other.identity


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[algorithm]\nname = "fedbk"', "algorithm='fedbk' is unknown"),
        ("[sweep]\nx = 1", "two brackets"),
        ("[[sweep]]\nalgoritm = {}", "sweep: table='algoritm' is unknown"),
        ('[algorithm]\nname="fedbc"\n[[sweep]]\ngrid = {"lr" = [1]}', "grid 'lr' is not accepted"),
        ('[algorithm]\nname="fedbc"\n[[sweep]]\ngrid = {"algorithm.lr" = 1}', "grid algorithm.lr=1 is not accepted"),
    ],
)
def test_bad_files(tmp_path, text, message):
    with pytest.raises(fedbc.InputError) as caught:
        read_sweep(written(tmp_path, text))
    assert message in str(caught.value)


def start(tmp_path, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "fedbc", "sweep", "grid.toml", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_runs_are_done_once_and_a_failure_stops_nothing(tmp_path):
    written(tmp_path, FILE)
    process = start(tmp_path)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "4 runs done, 1 failed" in out
    assert errors.count("\n") == 1, "besides the failed run, only a terminal is told how far things are"
    lines = Lines(tmp_path / "grid.jsonl").read()
    assert len(lines) == 5
    (failed,) = (r for r in lines.values() if "error" in r)
    assert failed["error"].startswith("Diverged: training diverged in round")
    # Each line is what the same specification gives by itself.
    line = next(r for r in lines.values() if r["spec"]["algorithm"]["lr"] == 0.1)
    spec = RunSpec.from_dict(line["spec"])
    alone = fedbc.simulate(*spec.build(), **spec.run_arguments() | {"lanes": 1}).summary()
    assert line["summary"]["global_loss"] == pytest.approx(alone["global_loss"], rel=1e-6)
    assert line["versions"]["fedbc"] == fedbc.__version__
    before = (tmp_path / "grid.jsonl").read_bytes()
    again = start(tmp_path, "--quiet")
    assert again.communicate(timeout=120) == ("", "")
    assert (tmp_path / "grid.jsonl").read_bytes() == before


def test_a_worker_that_is_killed_costs_its_run_only(tmp_path):
    written(tmp_path, '[run]\nrounds = 4000\nsample = 5\n[[sweep]]\nalgorithm = {name = "fedavg"}\n'
                      '[[sweep]]\nalgorithm = {name = "fedavg"}\nrun = {rounds = 2}\n')  # fmt: skip
    process = start(tmp_path, "--workers", "1")
    victim = worker_of(process.pid)
    time.sleep(1)
    os.kill(victim, signal.SIGKILL)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 1, errors
    assert "1 runs done, 1 failed" in out
    assert "1 of 2 runs failed" in errors.splitlines()[-1]
    lines = Lines(tmp_path / "grid.jsonl").read()
    results = {r["spec"]["run"]["rounds"]: r for r in lines.values()}
    assert results[4000]["error"] == "the process died (exit -9)"
    assert results[2]["summary"]["rounds"] == 2


def test_a_sweep_that_is_terminated_takes_its_workers_along(tmp_path):
    written(tmp_path, '[run]\nrounds = 1000000\n[[sweep]]\nalgorithm = {name = "fedavg"}\n')
    process = start(tmp_path, "--workers", "1")
    worker = worker_of(process.pid)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.startswith("fedbc: stopped; what is done is in")
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_what_failed_is_tried_again_but_a_divergence_is_a_result(tmp_path, monkeypatch):
    specs = read_sweep(written(tmp_path, FILE))
    path = tmp_path / "r.jsonl"
    errors = ["MemoryError: no room", "Diverged: in round 1", "InputError: sample=99"]
    for spec, error in zip(specs, errors, strict=False):
        Lines(path).append({"hash": spec.identity, "spec": spec.to_dict(), "error": error})

    def do_jobs(jobs, **rest):
        for job in jobs:
            yield job.about | {"summary": {"rounds": 2}}

    monkeypatch.setattr(many, "do_jobs", do_jobs)
    ran = []
    run_missing(specs[:3], path, on_line=ran.append)
    assert [line["hash"] for line in ran] == [specs[i].identity for i in (0, 2)]
    texts = path.read_text().splitlines()
    assert len(texts) == 3, "what failed gives way to what was run"
    assert Lines(path).read()[specs[1].identity]["error"] == "Diverged: in round 1"
    many.raise_if_failed(list(Lines(path).read().values()), path, "runs")


def test_missing_data_are_one_error_and_no_results(tmp_path, monkeypatch):
    specs = read_sweep(written(tmp_path, FILE))

    def missing(self, part):
        raise fedbc.InputError(f"{part} is missing")

    monkeypatch.setattr(RunSpec, "build_part", missing)
    with pytest.raises(fedbc.InputError, match="data is missing"):
        run_missing(specs, tmp_path / "r.jsonl")
    assert not (tmp_path / "r.jsonl").exists()


def worker_of(parent):
    """The process id of the one worker, once it has been started."""
    for _ in range(600):
        for status in os.listdir("/proc"):
            if status.isdecimal():
                try:
                    with open(f"/proc/{status}/stat") as file:
                        owner = int(file.read().rsplit(")", 1)[1].split()[1])
                    with open(f"/proc/{status}/cmdline") as file:
                        command = file.read()
                except OSError:
                    continue
                if owner == parent and "spawn_main" in command:
                    return int(status)
        time.sleep(0.1)
    raise AssertionError("no worker was started in a minute")


def test_a_line_that_was_cut_off_is_run_again(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"hash": "a", "summary": {}}) + "\n" + '{"hash": "b", "summ')
    assert list(Lines(path).read()) == ["a"]
    Lines(path).append({"hash": "b", "summary": {}})
    assert list(Lines(path).read()) == ["a", "b"]
    path.write_text('{"hash": "b", "summ\n' + json.dumps({"hash": "a"}) + "\n")
    with pytest.raises(fedbc.InputError, match="damaged in line 1"):
        Lines(path).read()


def test_two_sweeps_never_share_a_results_file(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"hash": "a", "summary": {}}) + "\n")
    holder = "import sys, pathlib\nfrom fedbc.runs import Lines\n"
    holder += "with Lines(pathlib.Path(sys.argv[1])).reserve():\n    print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(fedbc.InputError, match="written by another process"):
            run_missing([], path)
        other.kill()  # a lock ends with its process, however that ends
    run_missing([], path)
    assert list(Lines(path).read()) == ["a"]


ON_RAY = """
import sys, pathlib
from fedbc.runs import read_sweep, run_missing
specs = read_sweep(pathlib.Path(sys.argv[1]))
run_missing(specs, pathlib.Path(sys.argv[2]), ray="local", on_line=lambda line: print(line["hash"]))
"""


def test_a_local_ray_runs_the_same_specifications(tmp_path):
    """In a process of its own: Ray leaves threads and open files behind."""
    file = written(tmp_path, FILE)
    specs = read_sweep(file)
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    run_missing(specs, here, workers=2, on_line=lambda line: None)
    command = [sys.executable, "-c", ON_RAY, str(file), str(there)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == len(specs)
    ours, rays = Lines(here).read(), Lines(there).read()
    assert ours.keys() == rays.keys()
    for key, line in ours.items():
        if "error" in line:
            assert rays[key]["error"] == line["error"]
            assert "diverged" in line["error"]
        else:
            for name in ("global_accuracy", "local_accuracy", "global_loss"):
                assert rays[key]["summary"][name] == line["summary"][name]
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (again.returncode, again.stdout) == (0, "")
