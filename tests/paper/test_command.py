"""`fedbc paper` on the command line."""

import pytest

from fedbc.cli import main
from fedbc.paper.catalogue import EXPERIMENTS
from fedbc.paper.gallery import FIGURES
from fedbc.paper.studies import STUDIES
from fedbc.paper.tables import PLANS


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["paper", *arguments])
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


def test_list_names_everything(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run(capsys, "list")
    assert code == 0
    for name in (*EXPERIMENTS, *STUDIES, *PLANS, *FIGURES):
        assert f"│{name} " in out


def test_status_of_an_empty_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run(capsys, "status", "synthetic-gamma", "theory", "--results", str(tmp_path))
    assert code == 0
    assert "hyper-parameters of synthetic-e5" in out
    assert "left with" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "total"),
    [
        ((), 600),
        (("--seeds", "1"), 120),
        (("--settings", "2"), 80),
        (("--seeds", "1", "--method", "fedbc", "--method", "fedavg-root"), 30),
    ],
)
def test_status_of_a_part(capsys, tmp_path, monkeypatch, arguments, total):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run(capsys, "status", "mnist-e1", *arguments, "--results", str(tmp_path))
    assert code == 0
    (row,) = (line for line in out.splitlines() if "MNIST, global accuracy" in line)
    assert [cell.strip() for cell in row.split("│")[3:5]] == ["0", str(total)]


def test_a_table_or_figure_stands_for_its_experiments(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run(capsys, "status", "controls", "mnist-global-e5", "--results", str(tmp_path))
    assert code == 0
    named = {line.split()[0].strip("│") for line in out.splitlines() if line.startswith("│")}
    experiments = {"synthetic", "synthetic-draws", "mnist-e5", "mnist-plain-e5", "mnist-weights", "mnist-e5-reference"}
    assert named - experiments == {"synthetic-e1", "synthetic-e5", "synthetic-e10", "synthetic-e25", "synthetic-e50"}
    assert experiments <= named


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "name is missing"),
        (("run", "toy", "--all"), "and not both"),
        (("run", "sinthetic"), "did you mean 'synthetic'?"),
        (("choose", "synthetic-e6"), "did you mean 'synthetic-e5'?"),
        (("status", "cifar"), "experiment='cifar' is unknown"),
        (("run", "synthetic", "--method", "fedbcc"), "did you mean 'fedbc'?"),
        (("run", "mnist-e1", "toy", "--method", "pfedme"), "method='pfedme' is not run there: mnist-e1 has fedavg, "),
    ],
)
def test_mistakes(capsys, arguments, message):
    code, _, errors = run(capsys, *arguments)
    assert code == 2
    assert message in errors


def test_a_study_and_the_report(capsys, tmp_path):
    results, html, markdown = tmp_path / "results", tmp_path / "r.html", tmp_path / "docs" / "p.md"
    code, out, _ = run(capsys, "run", "toy", "--results", str(results))
    assert code == 0
    assert out == f"Done: toy. The report of all that was run: fedbc paper report --results {results}\n"
    assert "Nothing is left to run." in run(capsys, "status", "toy", "--results", str(results))[1]
    arguments = ("--results", str(results), "--html", str(html), "--markdown", str(markdown))
    code, out, _ = run(capsys, "report", *arguments)
    assert code == 0
    assert str(html) in out
    assert "<svg" in html.read_text()
    assert (tmp_path / "docs" / "p" / "toy.svg").exists()
    assert "Not run: `fedbc paper run synthetic`" in markdown.read_text()


def test_a_report_of_nothing_is_refused_and_one_of_another_folder_stays_there(capsys, tmp_path, monkeypatch):
    """Neither may take the place of the project's own report."""
    monkeypatch.chdir(tmp_path)
    code, _, errors = run(capsys, "report", "--results", "mine")
    assert code == 2
    assert "nothing was run in mine" in errors
    assert list(tmp_path.iterdir()) == []
    run(capsys, "run", "toy", "--results", "mine")
    assert run(capsys, "report", "--results", "mine")[:2] == (0, "Report: mine/report.html\nMarkdown: mine/paper.md\n")
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "mine").rename("results")
    assert run(capsys, "report")[:2] == (0, "Report: results/report.html\nMarkdown: results/paper.md\n")
