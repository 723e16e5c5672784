"""The documentation keeps up with the code: names, links and options; tests/site runs its snippets."""

import dataclasses
import re
from pathlib import Path

import click
import pytest

import fedbc
from fedbc.algorithms import ALGORITHMS
from fedbc.algorithms.solver import Part
from fedbc.cli.main import fedbc as commands
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


def test_what_a_method_takes_of_local_training_is_as_documented():
    """The table by method: a cell is yes, no, or the argument of the method with which it is yes."""
    rows = re.findall(r"^\| ((?:`\w+`,? ?)+)\|(.*)\|$", (ROOT / "docs" / "local-training.md").read_text(), re.MULTILINE)
    told = {}
    for names, cells in rows:
        found = [cell.strip() for cell in cells.split("|")]
        told |= dict.fromkeys(re.findall(r"`(\w+)`", names), found) if len(found) == 6 else {}
    assert told.keys() == ALGORITHMS.keys()
    parts = ["optimizer", "keep_optimizer", "clip", "weight_decay", "epsilon", "domain"]
    settings = {"with `lipschitz`": {"lipschitz": 1.0}, 'with `option="I"`': {"option": "I"}}
    for name, (*cells, schedules) in told.items():
        for part, cell in zip(parts, [*cells[:2], cells[2], *cells[2:]], strict=True):
            assert (ALGORITHMS[name]().refuses(Part(part)) is None) == (cell == "yes"), (name, part)
            if cell not in ("yes", "no"):
                assert ALGORITHMS[name](**settings[cell]).refuses(Part(part)) is None
        rates = {field.metadata.get("rate") for field in dataclasses.fields(ALGORITHMS[name])} - {None}
        assert schedules.split(", ") == sorted(rates, reverse=True), name


def test_options_in_the_documentation_exist():
    for name in ("run", "compare"):
        command = commands.get_command(click.Context(commands), name)
        known = {"--help", *(spelling for option in command.params for spelling in option.opts)}
        for page in PAGES:
            for typed in re.findall(rf"fedbc {name}\b[^\n`#]*", page.read_text()):
                assert set(re.findall(r"--[a-z-]+", typed)) <= known, typed
