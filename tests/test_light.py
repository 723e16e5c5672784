"""What `pip install fedbc` brings is enough to simulate and to deploy; what draws is asked for in one clear line."""

import re
import subprocess
import sys
from pathlib import Path

import hidden
import pytest

import fedbc
from fedbc.drawing import LIBRARIES

ROOT = Path(__file__).parents[1]


@pytest.fixture
def light(tmp_path):
    """Runs Python where nothing that draws can be imported, in this process's place or in its children."""
    environment = hidden.environment(tmp_path / "site", LIBRARIES)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def test_a_simulation_needs_nothing_that_draws(light):
    code = """
import fedbc
fed = fedbc.data.synthetic(devices=4)
result = fedbc.simulate(fedbc.FedBC(), fedbc.models.logistic(60, 10), fed, rounds=2)
result.save("kept")
assert fedbc.load("kept").rounds == 2
import fedbc.runs, fedbc.selection, fedbc.reports, fedbc.flower
print(fedbc.compare([result]).table["method"].tolist())
"""
    done = light("-c", code)
    assert (done.returncode, done.stdout) == (0, "['fedbc']\n"), done.stderr


def test_a_run_goes_without_its_picture_and_says_so(light, tmp_path):
    done = light("-m", "fedbc", "run", "fedbc", "--rounds", "2", "--devices", "4", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "Curves: not drawn (drawing needs Matplotlib: pip install 'fedbc[report]')" in done.stdout
    assert not (tmp_path / "run" / "curves.png").exists()
    assert light("-m", "fedbc", "show", "run").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "fedbc", "fedavg", "--rounds", "2"],
        ["calibrate", "--rounds", "2"],
        ["tune", "fedavg", "--rounds", "2"],
        ["watch", "."],
        ["paper", "report"],
        ["data", "show", "synthetic", "--out", "a.png"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_draws_says_what_it_needs_before_it_computes(light, tmp_path, arguments):
    done = light("-m", "fedbc", *arguments)
    assert done.returncode == 2
    assert re.fullmatch(r"fedbc: drawing needs \w+: pip install 'fedbc\[report\]'\n", done.stderr), done.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"site"}


def test_one_source_of_the_version():
    assert f"version: {fedbc.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert "0.1.0" not in (ROOT / "pyproject.toml").read_text().split("[build-system]")[0]
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
