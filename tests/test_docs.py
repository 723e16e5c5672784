"""The documentation keeps up with the code: names, links, commands and snippets."""

import re
from pathlib import Path

import pytest

import fedbc
from fedbc.algorithms import ALGORITHMS
from fedbc.cli.options import FLAGS
from fedbc.simulation import metrics

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_every_algorithm_is_documented():
    text = (ROOT / "docs" / "algorithms.md").read_text()
    for name, method in ALGORITHMS.items():
        assert f"| `{name}` | `fedbc.{method.__name__}` |" in text
        assert getattr(fedbc, method.__name__) is method


def test_every_column_is_documented(small, tiny_model):
    text = (ROOT / "docs" / "evaluation.md").read_text()
    result = fedbc.simulate(
        fedbc.FedBC(), tiny_model, small, rounds=1, evaluate=["global", "local", "train", "gradient", "lagrangian"]
    )
    for column in result.history.columns.difference(["round", "seconds", "train_seconds", "local_loss"]):
        assert f"`{column}`" in text
        assert column in metrics.__doc__


def test_options_in_the_documentation_exist():
    known = {flag.spelling for flag in FLAGS} | {
        *("--data", "--model", "--config", "--out", "--resume", "--quiet", "--json", "--help", "--checkpoint-every"),
        *("--data-dir", "--seeds", "--workers", "--tensorboard", "--mlflow", "--wandb", "--wandb-project"),
    }
    for page in PAGES:
        for command in re.findall(r"fedbc (?:run|compare)[^\n`#]*", page.read_text()):
            assert set(re.findall(r"--[a-z-]+", command)) <= known, command


@pytest.mark.parametrize("page", ["README.md", "docs/models.md"])
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(snippet.replace("rounds=200", "rounds=2"), page, "exec"), names)
    if page == "README.md":
        assert (tmp_path / "my-run" / "summary.json").exists()
        assert names["result"].history.shape[0] == 2
    else:
        fedbc.simulate(fedbc.FedAvg(), names["model"], fedbc.data.synthetic(devices=3), rounds=1)
