"""Every code block of every page runs, or says why it does not; a block that does neither fails its page."""

import os
import re
from pathlib import Path

import pytest
from needs import missing
from snippets import PAGES, ROOT, blocks, fresh_arguments, read_toml, run_commands, run_python

import fedbc
from fedbc.cli.main import COMMANDS

NOT_RUN = {
    "README.md": 1,
    "docs/calibrate.md": 1,
    "docs/data.md": 2,
    "docs/index.md": 1,
    "docs/live.md": 1,
    "docs/machines.md": 4,
    "docs/notebook.md": 1,
    "docs/python.md": 2,
    "docs/reproduce.md": 1,
    "docs/secure.md": 1,
    "docs/tune.md": 1,
}
"""How many blocks of a page are marked as not run: a new one is a decision, not an accident."""
WHOLE = {"docs/twelve-clinics.md": "tests/site/test_twelve_clinics.py"}
"""Pages all of whose blocks, as they stand, are run by a test of their own."""
TYPED = {"docs/deploy.md": "tests/deploy/test_deploy_docs.py"}
"""Pages whose commands are typed by a test of their own, section by section."""
COVERED = {
    "fedbc calibrate": "tests/selection/test_calibrate.py",
    "fedbc compare": "tests/reports/test_compare_command.py",
    "fedbc tune": "tests/selection/test_tune.py",
    "fedbc watch": "tests/watch/test_watching.py",
}
"""Commands that run for minutes or serve until they are stopped, and the test that runs each of them."""
FILES = {
    "docs/own-data.md": {
        "my_model.py": "import fedbc\n\n\ndef make(features, classes, hidden=4):\n"
        "    return fedbc.models.mlp(features, hidden, classes)\n"
    },
}
"""Files that a page's commands suppose."""
REAL_DATA = re.compile(r"\b(mnist|cifar10|shakespeare)\b")
DATA = Path(os.environ.get("FEDBC_DATA") or ROOT.parent / "shared" / "data")


def smaller(command):
    """The same command with two rounds; on images and text one round, of one method and one device."""
    command = command.split("#")[0]
    real = REAL_DATA.search(command)
    if real and not DATA.exists():
        return ""
    if re.match(r"\s*fedbc sweep\b", command):
        return command + " --workers 1"
    if not re.match(r"\s*fedbc run\b", command) or "--resume" in command or "--config" in command:
        return command
    command = re.sub(r" --rounds \d+", "", command) + f" --rounds {1 if real else 2}"
    if real:
        command = re.sub(r" --(sample|evaluate|evaluate-every) \S+", "", command) + " --sample 1 --evaluate global"
        command = command.replace(" fedavg ", " ")
    return command


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and page not in WHOLE])
def test_every_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fresh_arguments(monkeypatch)
    for name, text in FILES.get(page, {}).items():
        (tmp_path / name).write_text(text)
    if DATA.exists():
        monkeypatch.setenv("FEDBC_DATA", str(DATA))
    names: dict = {"__name__": "__main__"}
    for block in blocks(page):
        if block.mark is not None:
            continue
        if block.language == "python":
            run_python(block.code.replace("rounds=200", "rounds=2"), page, block.line, names)
        elif block.language == "sh" and page not in TYPED:
            run_commands(block.code, smaller, COVERED)
        elif block.language == "toml":
            read_toml(block.code)
        else:
            assert block.language == "text" or page in TYPED, f"{page}:{block.line}: a block in {block.language!r}"
    if not DATA.exists() and any(REAL_DATA.search(b.code) for b in blocks(page) if b.language == "sh" and not b.mark):
        missing(f"the commands on real data of {page}: {DATA} is absent", "FEDBC_REQUIRE_DATA")
    if check := CHECKS.get(page):
        check(names, tmp_path)


def readme(names, folder):
    assert names["result"].history.shape[0] == 2
    assert (folder / "my-run" / "summary.json").exists()
    assert (folder / "runs" / "fedbc-fedavg-clinics-1" / "curves.png").exists()
    assert "Fichte" in (folder / "model" / "model-card.md").read_text()
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def home(names, folder):
    assert names["ours"].summary(last=5)["global_accuracy"] > 0.5
    assert (folder / "runs" / "fedbc-fedavg-synthetic-1" / "curves.png").exists()


def models(names, folder):
    fedbc.simulate(fedbc.FedAvg(), names["model"], fedbc.data.synthetic(devices=3), rounds=1)


def privacy(names, folder):
    assert len(names["result"].history) == 10


def pytorch(names, folder):
    import torch
    from torch import nn

    x, y = (torch.tensor(part) for part in (names["fed"].test.x, names["fed"].test.y))
    assert float(nn.functional.cross_entropy(names["module"](x), y.long()).detach()) < 2
    assert all(state.multiplier > 0 for state in names["states"].values())


def own_data(names, folder):
    assert (folder / "partition.png").stat().st_size > 1000


CHECKS = {
    "README.md": readme,
    "docs/index.md": home,
    "docs/models.md": models,
    "docs/own-data.md": own_data,
    "docs/privacy.md": privacy,
    "docs/pytorch.md": pytorch,
}


def test_blocks_that_are_not_run_say_why():
    counted = {}
    for page in PAGES:
        for block in blocks(page):
            if block.mark == "not run":
                counted[page] = counted.get(page, 0) + 1
                assert len(block.note.split()) >= 6, f"{page}:{block.line}: {block.note!r} is no reason"
                for file in re.findall(r"(?:tests|docs)/[\w/]+\.\w+", block.note):
                    assert (ROOT / file).exists(), f"{page}:{block.line}: there is no {file}"
    assert counted == NOT_RUN


def test_commands_left_to_other_tests_are_run_there():
    for command, test in COVERED.items():
        _, name = command.split()
        if name in COMMANDS:
            assert f'"{name}"' in (ROOT / test).read_text(), test


def test_excerpts_are_lines_of_their_files():
    found = [(page, block) for page in PAGES for block in blocks(page) if block.mark == "excerpt"]
    assert len(found) == 2
    for page, block in found:
        lines = (ROOT / block.note).read_text().splitlines()
        assert [line for line in block.code.splitlines() if line not in lines] == [], f"{page}:{block.line}"


@pytest.mark.parametrize("page", TYPED)
def test_pages_with_a_test_of_their_own_are_typed_whole(page):
    test = (ROOT / TYPED[page]).read_text()
    commands = [block for block in blocks(page) if block.language == "sh"]
    assert len(commands) > 10
    assert [block.line for block in commands if f'blocks("{block.section}")' not in test] == []


def test_a_page_with_a_block_that_nobody_can_run_fails():
    with pytest.raises(AssertionError, match="no way to run"):
        run_commands("rm -r something\n", smaller)
    with pytest.raises(AssertionError, match="ended with 2"):
        run_commands("fedbc run fedbcc\n", smaller)
