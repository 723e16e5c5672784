"""The benchmark runs: contestants that need no environment of their own, on the smallest workload."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def run(module, *arguments):
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    out = folder / "results.json"
    contestants = "--contestants=fedbc:FedBC,limit:as stored"
    run("run", "--workloads=W1", contestants, "--rounds=2", f"--out={out}", f"--cache={folder}")
    run("growth", "--tiny", f"--out={out}", f"--plots={folder / 'plots'}")
    run("grid", "--first=2", "--rounds=2", f"--out={out}")
    run("report", f"--results={out}", f"--page={folder / 'page.md'}")
    return folder


def test_every_contestant_does_the_rounds_that_were_asked_for(measured):
    contestants = json.loads((measured / "results.json").read_text())["workloads"]["W1"]["contestants"]
    assert set(contestants) == {"fedbc", "limit"}
    records = [r for variants in contestants.values() for r in variants.values()]
    for mode in ("train", "evaluate"):
        work = {tuple((r["round"], r["steps"]) for r in record[mode]) for record in records}
        assert len(work) == 1, "all take the same steps in the same rounds"
        assert all(r["seconds"] > 0 for record in records for r in record[mode])


def test_fedbc_learns_while_it_is_measured(measured):
    contestants = json.loads((measured / "results.json").read_text())["workloads"]["W1"]["contestants"]
    for record in contestants["fedbc"].values():
        assert all(0.2 < r["accuracy"] <= 1 for r in record["evaluate"])  # ten classes: 0.1 is chance


def test_growth_measures_and_draws(measured):
    growth = json.loads((measured / "results.json").read_text())["growth"]
    assert [p["sample"] for p in growth["series"]["sampled"]] == [5, 10]
    assert all(p["peak_memory"]["after_rounds"] > 0 for points in growth["series"].values() for p in points)
    assert growth["state_bytes"]["fedbc"]["logistic"] == 4 * (610 + 2)  # x, lambda and gamma
    assert {p.name for p in (measured / "plots").iterdir()} == {"sampled.png"}


def test_a_network_of_ones_own_is_measured_in_jax_and_as_a_module_of_pytorch(tmp_path):
    out, page = tmp_path / "results.json", tmp_path / "page.md"
    run(
        "run",
        "--workloads=dense",
        "--contestants=fedbc:FedAvg,modules",
        "--rounds=1",
        f"--out={out}",
        f"--cache={tmp_path}",
    )
    run("frameworks", "--turns=1", f"--out={out}")
    run("report", f"--results={out}", f"--page={page}")
    same = page.read_text().partition("## The same network in PyTorch, Flax and Equinox")[2].splitlines()
    assert [line.split("|")[1].strip() for line in same if line.startswith("| ")][2:5] == ["PyTorch", "Flax", "Equinox"]
    contestants = json.loads(out.read_text())["own_networks"]["dense"]["contestants"]
    assert set(contestants) == {"fedbc", "modules"}
    for variants in contestants.values():
        (record,) = variants.values()
        assert record["warm_up"][1]["accuracy"] > 0.5
        assert len(record["train"]) == 1
        assert not record["evaluate"], "only training is measured"
    tables = page.read_text().partition("## PyTorch modules in the simulator")
    for part in (tables[0], tables[2]):
        (row,) = [line for line in part.splitlines() if line.startswith("| MLP 100")]
        assert "not measured" in row  # nobody to be compared with


@pytest.mark.parametrize("name", ["gru", "transformer", "mcmahan", "resnet", "separable"])
def test_own_networks_are_the_same_in_pytorch(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    import torch

    from benchmarks import networks
    from benchmarks.workers import torch_models

    model, data = networks.network(name), networks.made_up(name, devices=1, examples=4)
    peer = torch_models.build(name, networks.named(model))
    ours = model.outputs(model.init(jax.random.key(0)), data.train.x)
    with torch.no_grad():
        theirs = peer(torch_models.inputs(name, data.train.x)).numpy()
    np.testing.assert_allclose(theirs, ours, atol=2e-5)


def test_the_tuning_grid_is_the_papers(measured, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.grid import specifications

    assert len({str(s.to_dict()) for s in specifications(200)}) == 95
    grid = json.loads((measured / "results.json").read_text())["grid"]
    assert (grid["configurations"], grid["rounds"], grid["failed"]) == (2, 2, 0)
    assert "2 configurations of W1 at 2 rounds, takes" in (measured / "page.md").read_text()


def test_the_page_names_machine_bars_and_what_was_not_measured(measured):
    page = (measured / "page.md").read_text()
    for part in ("cores of", "bare compiled loop", "Arithmetic limit", "not measured", "## Growth"):
        assert part in page


def test_a_contestant_that_cannot_be_had_is_absent_with_the_reason(tmp_path):
    code = """
import pathlib, sys
from benchmarks import environments
sys.executable = "false"  # an interpreter that fails at once
try:
    environments.python("torch", pathlib.Path(sys.argv[1]))
except environments.Absent as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "could not be set up" in done.stdout, done.stderr


def test_pages_and_readme_are_what_the_results_say(tmp_path, monkeypatch):
    """After new results: python -m benchmarks.report."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import networks_report, report, results

    found = results.read(results.DEFAULT)
    assert (ROOT / "docs" / "benchmarks.md").read_text() == report.page(found)
    for file, text in (
        (ROOT / "README.md", report.summary(found)),
        (ROOT / "docs" / "own-model.md", networks_report.summary(found)),
    ):
        copy = tmp_path / file.name
        copy.write_text(file.read_text())
        report.put_summary(copy, text)
        assert copy.read_text() == file.read_text()


def test_the_page_of_machines_is_what_the_results_say(monkeypatch):
    """After new results: python -m benchmarks.machines_report; its table of shares: with --shares."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import machines_report, results

    found = results.read(results.DEFAULT)
    page = (ROOT / "docs" / "machines.md").read_text()
    assert page == machines_report.put(page, machines_report.page(found["machines"], found["machine"]))
    for sample in machines_report.SAMPLES:
        shares = (f"{machines_report.excess(sample, machines):.0%}" for machines in machines_report.DEALT)
        assert f"| {sample:,} | {' | '.join(shares)} |".replace("%", " %") in page


def test_a_run_of_two_processes_is_measured_and_told(tmp_path):
    out, page = tmp_path / "results.json", tmp_path / "page.md"
    run("machines", "--workloads=W1", "--rounds=1", "--devices=30", "--sums=2", f"--out={out}")
    found = json.loads(out.read_text())["machines"]
    one = found["rounds"]["W1"]
    assert one["ratio"] > 0
    assert one["steps_ratio"] >= 1  # no lane is fuller than a machine that has what was drawn of its own
    # What 10 devices' rows add to the summand: x and lambda x of 610 numbers, lambda, 1.
    assert one["summand_bytes"] == 4 * (2 * 610 + 2)
    assert one["summand_bytes"] < one["sent_per_round"] < one["summand_bytes"] + 10 * 100
    assert [p["owned"] for p in found["memory"]["processes"]["2"]] == [15, 15]
    assert [p["states"] for p in found["memory"]["processes"]["2"]] == [15, 15]
    # The LSTM and the CNN take minutes: the page is made of numbers that are not theirs.
    found["rounds"] |= dict.fromkeys(("W3", "W4"), one)
    out.write_text(json.dumps(json.loads(out.read_text()) | {"machines": found}))
    page.write_text("before <!-- from benchmarks/results.json, by `python -m benchmarks.machines_report` --> stale"
                    "<!-- up to here --> after")  # fmt: skip
    run("machines_report", f"--results={out}", f"--page={page}")
    text = page.read_text()
    assert text.startswith("before")
    assert text.endswith("after")
    assert "stale" not in text
    for heading in ("### Time and traffic", "### Memory", "### A projection to a hundred machines", "The LSTM, c ="):
        assert heading in text


def test_the_projection_is_the_formula(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.machines_report import Link, Projection, excess, measured_link

    link = Link("", latency=1e-3, rate=1e8)
    assert link.all_reduce(2e6, 2) == pytest.approx(2 * (1e-3 + 1e6 / 1e8))
    sums = [{"bytes": size, "seconds": link.all_reduce(size, 2)} for size in (2**10, 2**20, 2**24)]
    found = measured_link(sums)
    assert (found.latency, found.rate) == pytest.approx((link.latency, link.rate), rel=0.02)
    one = Projection("", device_seconds=0.1, sent=2e6)
    assert one.training(4) == pytest.approx(1000 / 4 * 0.1 * (1 + excess(1000, 4)))
    limit = one.dominated_from(link)
    assert link.all_reduce(2e6, limit) > one.training(limit)
    assert link.all_reduce(2e6, limit - 1) <= one.training(limit - 1)
    assert Projection("", device_seconds=1e6, sent=1.0).dominated_from(link) is None


def test_rounds_are_compared_with_those_of_another_commit(tmp_path):
    """Of this one with itself; whether they agree within the bar is for a quiet machine to say."""
    out = tmp_path / "ratios.jsonl"
    command = [sys.executable, "benchmarks/against.py", "HEAD", "--workloads=W1", "--turns=1", f"--out={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    line = json.loads(out.read_text())
    assert (line["workload"], line["ratio"]) == ("W1", "new / old")
    assert 0.01 < line["processor"] < 100
    assert line["within"] == (0.97 <= line["median"] <= 1.03) == (done.returncode == 0)
