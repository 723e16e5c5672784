"""`fedbc compare` from the command line to the page in a browser."""

import json
import re
import shutil

import pandas as pd
import pytest
from browser import PHONE

from fedbc.cli import main
from fedbc.reports import page
from fedbc.runs import MethodRuns, methods

SETTINGS = ["--devices", "6", "--rounds", "8", "--sample", "3", "--tolerance", "0.05", "--evaluate-every", "2"]
METHODS = ["fedbc", "fedavg"]
CHARTS = {
    *("tradeoff", "global-accuracy", "local-accuracy", "global-loss", "fairness-global", "fairness-local"),
    *("multiplier", "tolerance", "constraint", "drift", "coefficients-lambda", "coefficients-size"),
    *("partition-sizes", "partition-classes"),
}


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    return stopped.value.code or 0


def in_this_process(jobs, **_):
    """In the place of worker processes, where a test is about something else."""
    return [job.work() for job in jobs]


@pytest.fixture
def no_figures(monkeypatch):
    """They take their time; the tests that look at them have them."""
    monkeypatch.setattr(page, "write_figure", lambda *_: [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two methods, two seeds, in a real worker process."""
    out = tmp_path_factory.mktemp("compare") / "both"
    assert run("compare", *METHODS, *SETTINGS, "--seeds", 2, "--workers", 1, "--quiet", "--out", out) == 0
    return out


def test_everything_is_written(folder):
    assert {p.stem for p in (folder / "figures").glob("*.png")} == CHARTS
    assert {p.stem for p in (folder / "figures").glob("*.svg")} == CHARTS
    tables = {"summary", "constraint", "specification-differs", "specification-same"}
    assert {p.stem for p in (folder / "tables").glob("*.tex")} == tables
    assert {p.stem for p in (folder / "tables").glob("*.csv")} == tables | {"differences", "runs", "devices"}
    assert pd.read_csv(folder / "tables" / "summary.csv")["seeds"].tolist() == [2, 2]
    assert len(pd.read_csv(folder / "tables" / "devices.csv")) == 2 * 2 * 6
    assert [f.name.rsplit("-", 1)[0] for f in sorted((folder / "runs").iterdir())] == [
        *("fedavg-seed-0", "fedavg-seed-1", "fedbc-seed-0", "fedbc-seed-1"),
    ]


def test_a_second_call_uses_the_runs_again(folder, tmp_path, monkeypatch, capsys, no_figures):
    out = shutil.copytree(folder, tmp_path / "again")
    shutil.rmtree(next((out / "runs").glob("fedavg-seed-1-*")))
    ran = []
    monkeypatch.setattr(methods, "do_jobs", lambda jobs, **_: ran.extend(jobs) or iter(()))
    assert run("compare", *METHODS, *SETTINGS, "--seeds", 2, "--json", "--out", out) == 0
    assert [(j.about["spec"]["algorithm"]["name"], j.about["spec"]["run"]["seed"]) for j in ran] == [("fedavg", 1)]
    printed = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["seeds"]) for row in printed] == [("fedbc", 2), ("fedavg", 1)]


def test_run_folders_are_compared_without_running(folder, tmp_path, capsys, no_figures):
    assert run("compare", folder / "runs", "--out", tmp_path / "loaded") == 0
    assert "method" in capsys.readouterr().out
    theirs = pd.read_csv(tmp_path / "loaded" / "tables" / "summary.csv").set_index("method")
    ours = pd.read_csv(folder / "tables" / "summary.csv").set_index("method")
    pd.testing.assert_frame_equal(theirs.loc[METHODS], ours)


def test_a_method_that_diverges_is_named_and_the_others_are_shown(tmp_path, monkeypatch, capsys, no_figures):
    monkeypatch.setattr(methods, "do_jobs", in_this_process)
    out = tmp_path / "out"
    settings = ["--devices", 4, "--rounds", 3, "--penalty", "1e30"]
    assert run("compare", "fedavg", "ditto", *settings, "--out", out) == 0
    assert "ditto, seed 0: training diverged" in capsys.readouterr().err
    assert "Missing: ditto, seed 0: training diverged" in (out / "index.html").read_text()
    assert pd.read_csv(out / "tables" / "summary.csv")["method"].tolist() == ["fedavg"]
    assert run("compare", "ditto", *settings, "--out", tmp_path / "none") == 2
    assert "nothing to compare: ditto, seed 0" in capsys.readouterr().err
    assert run("compare", "ditto", *settings, "--out", tmp_path / "none") == 2  # again, from what it had kept
    assert "ditto, seed 0: training diverged" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(MethodRuns, "run", stopped)
    assert run("compare", *METHODS, *SETTINGS, "--out", tmp_path / "out") == 130
    assert "the same command goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedbx"], "did you mean 'fedbc'?"),
        (["fedbc", "{runs}"], "give algorithms to run, or folders of runs, not both"),
        (["some/where"], "'some/where' does not exist"),
        (["{runs}", "--lr", "1"], "--lr cannot be given with folders of runs"),
        (["{runs}", "--seeds", "2"], "--seeds cannot be given with folders of runs"),
        (["{figures}"], "holds no runs"),
        (["fedbc", "--seeds", "0"], "seeds=0 is not accepted"),
        (["fedbc", "--workers", "0"], "workers=0 is not accepted"),
        (["fedbc", "--out", "{runs}"], "exists already"),
        (["fedbc", "--sample", "31"], "sample=31 is not accepted"),
    ],
)
def test_mistakes_are_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    here, runs, figures = (tmp_path / name for name in ("here", "runs", "figures"))
    for folder in (here, runs / "some-run", figures):
        folder.mkdir(parents=True)
    (runs / "some-run" / "spec.json").write_text("{}")
    monkeypatch.chdir(here)
    assert run("compare", *(a.format(runs=runs, figures=figures) for a in arguments)) == 2
    assert said in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_the_page_in_a_browser(folder, browser):
    """Drawn without complaint; toggles and picks act on all charts."""
    browser.open(folder / "index.html")
    assert set(browser.charts()) == CHARTS
    before = {chart: browser.marks(chart) for chart in CHARTS}
    assert min(before.values()) > 0
    assert before["fairness-global"] == 2 * 6 + 2  # a point per device and method, and two lines
    assert before["partition-sizes"] == 12

    browser.click("[data-toggles=hidden] input[value=fedavg]")
    after = {chart: browser.marks(chart) for chart in CHARTS}
    same = {"multiplier", "tolerance", "constraint", "coefficients-lambda", "partition-sizes", "partition-classes"}
    assert {chart for chart in CHARTS if after[chart] < before[chart]} == CHARTS - same  # FedAvg is not in those
    assert {chart for chart in CHARTS if after[chart] == before[chart]} == same
    browser.click("[data-toggles=hidden] input[value=fedavg]")
    assert {chart: browser.marks(chart) for chart in CHARTS} == before

    faint = "return document.querySelectorAll(`[data-chart=${arguments[0]}] g.role-mark path[opacity='0.12']`).length"
    assert browser.run(faint, "fairness-local") == 0
    browser.choose("select[data-pick=device]", "2")
    assert browser.run(faint, "fairness-local") == 2 * 5
    browser.screenshot("compare-device-picked")
    point = "[data-chart=fairness-local] g.mark-symbol path:last-child"  # drawn last: nothing lies on it
    label = browser.run("return document.querySelector(arguments[0]).ariaLabel", point)
    device = re.search(r"device: (\d+)", label).group(1)
    browser.click(point)
    assert browser.run("return document.querySelector('select[data-pick]').value") == device
    assert browser.run(faint, "fairness-local") == 2 * 5


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, PHONE])
def test_the_page_in_light_and_dark_wide_and_narrow(dark, width, folder, browser):
    browser.open(folder / "index.html", width=width, dark=dark)
    assert browser.sideways() <= 0
    page = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (page == "rgb(18, 23, 28)") == dark
    ink = browser.run("return document.querySelector('[data-chart=tradeoff] .role-axis text').getAttribute('fill')")
    assert ink == ("#e3e8ed" if dark else "#1d2733")
    browser.screenshot(f"compare-{'dark' if dark else 'light'}-{width}")


def test_the_split_is_repeated_and_the_verdict_says_so(tmp_path, monkeypatch, no_figures, capsys):
    monkeypatch.setattr(methods, "do_jobs", in_this_process)
    arguments = ("compare", *METHODS, *SETTINGS, "--splits", 2, "--out", tmp_path / "c")
    assert run(*arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "over seeds and splits" in out
    assert "the error from splits and finite test sets" in out or "no difference" in out
    found = pd.read_csv(tmp_path / "c" / "tables" / "differences.csv")
    assert found["splits"].notna().any()
    names = {f.name.rsplit("-", 1)[0] for f in (tmp_path / "c" / "runs").iterdir()}
    assert names == {"fedbc-seed-0", "fedavg-seed-0", "fedbc-seed-0-split-1", "fedavg-seed-0-split-1"}
    # The runs by themselves are the same comparison.
    assert run("compare", tmp_path / "c" / "runs", "--json", "--out", tmp_path / "again") == 0
    assert [row["splits"] for row in json.loads(capsys.readouterr().out)] == [2, 2]


def test_metrics_from_the_command_line(folder, tmp_path, no_figures, capsys):
    assert run("compare", folder / "runs", "--metrics", "auc,f1", "--out", tmp_path / "m") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "highest AUC, mean over devices" in out
    assert "z, all" in out
    assert "local_f1" in pd.read_csv(tmp_path / "m" / "tables" / "devices.csv")
    one = next((folder / "runs").iterdir())
    assert run("show", one, "--metrics", "auc") == 0
    assert "all devices" in capsys.readouterr().out
    assert run("show", one, "--metrics", "auc", "--json") == 0
    rows = next(iter(json.loads(capsys.readouterr().out).values()))["devices"]
    assert [row["device"] for row in rows] == [*range(6), "all devices"]
    for wrong, words in (("f2", "metrics='f2' is unknown"), ("rmse", "predicts classes")):
        assert run("compare", folder / "runs", "--metrics", wrong, "--out", tmp_path / "x") == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "x").exists()


def test_controls_stand_beside_the_methods(tmp_path, monkeypatch, no_figures, capsys):
    monkeypatch.setattr(methods, "do_jobs", in_this_process)
    settings = ["--devices", "3", "--rounds", "2", "--tolerance", "0.05"]
    assert run("compare", "fedbc", *settings, "--controls", "--json", "--out", tmp_path / "c") == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["fedbc", "fedavg", "ditto", "localonly"]
    assert 0 < rows["fedavg"]["finetuned_accuracy"] <= 1
    assert rows["fedbc"]["finetuned_accuracy"] == "nan"  # FedBC was not asked for it
    assert run("compare", tmp_path / "c" / "runs", "--controls", "--out", tmp_path / "d") == 2
    assert "--controls cannot be given with folders of runs" in capsys.readouterr().err
