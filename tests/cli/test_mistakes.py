"""What goes wrong outside of a computation: disks, processes at the same moment, damaged folders. One line each."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fedbc
from fedbc import progress, runs, storage
from fedbc.cli.main import main
from fedbc.cli.show import WITHOUT_RUNS
from fedbc.errors import Notice

QUICK = ["--rounds", "2", "--devices", "3", "--quiet"]


@pytest.fixture
def cli(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def test_runs_that_begin_at_the_same_moment_get_folders_of_their_own(tmp_path, monkeypatch):
    """As many processes may ask as like: none takes another's folder, and none is refused."""
    monkeypatch.chdir(tmp_path)
    specs = {"fedavg": fedbc.RunSpec({"name": "fedavg"})}
    barrier, taken = threading.Barrier(8), []

    def ask():
        barrier.wait()
        with runs.reserved_folder(specs) as folder:
            taken.append(folder)
            runs.begin(fedbc.RunFolder(folder), specs["fedavg"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, taken)) == [f"runs/fedavg-synthetic-{n}" for n in range(1, 9)]
    assert all((folder / "spec.json").exists() for folder in taken)


def test_a_run_that_cannot_begin_leaves_no_folder(cli, tmp_path):
    code, _, err = cli("run", "fedavg", *QUICK, "--sample", "99")
    assert (code, err.count("\n")) == (2, 1)
    assert "sample=99 is not accepted" in err
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_is_one_line(cli, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(storage.tempfile, "mkstemp", refuse)
    code, _, err = cli("data", "show", "--devices", "3", "--out", "picture.png")
    assert (code, err) == (2, "fedbc: cannot write picture.png: Read-only file system; nothing was left half-written\n")


def test_a_live_history_that_cannot_be_written_is_told_in_one_line(cli, tmp_path, monkeypatch):
    real = Path.open

    def refuse(self, *args, **kwargs):
        if self.name == "live.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    code, _, err = cli("run", "fedavg", *QUICK, "--out", "full")
    assert code == 0
    assert (
        err == "fedbc: warning: full/live.jsonl cannot be written (No space left on device): the run goes on without\n"
    )


def test_warnings_of_others_stay_what_they_are(capsys):
    import warnings

    with progress.notices_told(), pytest.warns(UserWarning, match="theirs"):
        warnings.warn("theirs", UserWarning, stacklevel=1)
    with progress.notices_told():
        warnings.warn("ours", Notice, stacklevel=1)
    assert capsys.readouterr().err == "fedbc: warning: ours\n"


NAMES = ("[/b]x", "$a_$", "<b>B</b>", "A|B", "../up", "007", "東京")


def test_names_are_shown_as_they_are(cli, tmp_path):
    """Brackets are no markup, dollars no formula, zeros before a number no decoration."""
    rows = [f"{name},{i},{'$i_$' if i % 2 else '[red]'}" for name in NAMES for i in (3, 5, 8, 4, 7)]
    (tmp_path / "t.csv").write_text("\n".join(["clinic,$x^$,ill", *rows]))
    own = ["--label", "ill", "--device", "clinic"]
    code, out, err = cli("data", "show", "t.csv", *own, "--out", "p.png")
    assert code == 0
    assert [name for name in (*NAMES, "$x^$", "[red]") if name not in out] == []
    assert err == "fedbc: warning: p.png: the font lacks 2 letters of its names, drawn as boxes\n"
    assert cli("run", "fedavg", "--data", "t.csv", *own, "--rounds", "1", "--out", "o[b]")[0] == 0
    assert "o[b]" in cli("show", "o[b]")[1]
    answers = cli("predict", "o[b]", "t.csv", "--local")[1]
    assert [line.split(",")[-1] for line in answers.splitlines()[1:]] == [name for name in NAMES for _ in range(5)]
    cli("export", "o[b]", "--out", "m")
    assert "| A\\|B | 1 |" in (tmp_path / "m" / "model-card.md").read_text()


@pytest.fixture
def small():
    return fedbc.models.logistic(60, 10), fedbc.data.synthetic(devices=3)


def unfinished(folder):
    """As a run leaves it that was stopped in the midst."""
    run = runs.RunFolder(folder)
    for file in (run.models, run.summary, run.history, run.devices):
        file.unlink()
    live = run.live.read_text().splitlines()
    run.live.write_text("\n".join(live[:-1]) + "\n")


def test_show_tells_how_far_an_unfinished_run_is(cli, tmp_path):
    cli("run", "fedavg", *QUICK, "--out", "half")
    unfinished(tmp_path / "half")
    code, out, err = cli("show", "half")
    assert (code, err) == (0, "")
    assert out.startswith("half: stopped, 2 of 2 rounds done, global accuracy ")
    assert out.endswith("go on with: fedbc run --resume half\n")
    assert '"state": "stopped"' in cli("show", "half", "--json")[1]


def test_show_does_not_mix_up_runs_of_one_name(cli, tmp_path, small):
    for place in ("a", "b"):
        fedbc.simulate(fedbc.FedAvg(), *small, rounds=1).save(tmp_path / "all" / place / "run")
    out = cli("show", "all")[1]
    assert "a/run" in out
    assert "b/run" in out


@pytest.mark.parametrize(
    ("mark", "words", "page"),
    [
        ("comparison.json", "A comparison of methods (fedbc compare).", "index.html"),
        ("study.json", "A tuning of hyper-parameters (fedbc tune).", "report.html"),
        ("results.jsonl", "A calibration of the tolerance (fedbc calibrate), 0 runs done.", "report.html"),
    ],
)
def test_show_says_what_a_folder_is_and_where_its_page_is(cli, tmp_path, mark, words, page):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / mark).touch()
    code, out, _ = cli("show", "x")
    assert code == 0
    assert out.startswith(words)
    assert "not written yet" in out
    (tmp_path / "x" / page).touch()
    (tmp_path / "x" / "best.toml").touch()
    out = cli("show", "x")[1]
    assert f"Page: x/{page}" in out
    assert ("Run it: fedbc run --config x/best.toml" in out) == (mark == "study.json")


MAY_NOT = [
    "setpriv",
    "--no-new-privs",
    *(f"--{kind}=-dac_override,-dac_read_search" for kind in ("bounding-set", "inh-caps")),
]
"""Takes from root what lets it read everything."""


def test_folders_that_may_not_be_read_are_one_line(cli, tmp_path):
    cli("run", "fedavg", *QUICK, "--out", "mine")
    (tmp_path / "closed" / "run").mkdir(parents=True)
    (tmp_path / "closed").chmod(0)
    said = {}
    commands = ("runs .", "runs closed", "predict closed/run t.csv", "data show closed/t.csv --label a --device b",
                "data show closed --label a", "run fedavg --devices 3 --rounds 1 --out closed/run/new")  # fmt: skip
    try:
        for command in commands:
            prefix = MAY_NOT if os.geteuid() == 0 else []
            done = subprocess.run(
                [*prefix, sys.executable, "-m", "fedbc", *command.split()], cwd=tmp_path, capture_output=True, text=True
            )
            said[command] = done.stderr or done.stdout
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert "mine" in said.pop("runs .")
    assert "Path 'closed' is not readable" in said.pop("runs closed")
    assert [words for words in said.values() if words.count("\n") != 1 or "ermission denied" not in words] == []


def test_runs_are_removed_and_nothing_else(cli, tmp_path):
    """A folder with runs may be one's home, with the table that they learned from."""
    cli("run", "fedavg", *QUICK, "--out", "own/one")
    (tmp_path / "home").mkdir()
    (tmp_path / "own").rename(tmp_path / "home" / "runs")
    (tmp_path / "home" / "clinics.csv").write_text("mine")
    (tmp_path / "home" / "runs" / "curves.png").touch()
    assert cli("runs", "home", "--delete", "--yes") == (0, "removed home/runs/one\n", "")
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["clinics.csv"]
    cli("run", "fedavg", *QUICK, "--out", "here")
    assert cli("runs", ".", "--delete", "--yes")[1] == "removed here\n"
    assert (tmp_path / "home" / "clinics.csv").read_text() == "mine"


INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == "jax":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv[0] = "{program}"
import fedbc
"""


@pytest.mark.parametrize("program", ["/usr/bin/fedbc", "-m", "notebook.py"])
def test_an_interrupt_while_libraries_are_loaded_is_no_traceback(program):
    code = INTERRUPTED.format(program=program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT
    assert ("KeyboardInterrupt" in done.stderr) == (program == "notebook.py")
    after = 'import sys, signal; sys.argv[0] = "fedbc"; import fedbc; print(signal.getsignal(signal.SIGINT))'
    assert "default_int_handler" in subprocess.run([sys.executable, "-c", after], capture_output=True, text=True).stdout


@pytest.mark.parametrize(("mark", "words", "see"), WITHOUT_RUNS)
def test_show_says_what_a_folder_without_runs_is(cli, tmp_path, mark, words, see):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / mark).touch()
    assert cli("show", "x") == (0, f"{words}\nSee: x/{see}\n", "")


def test_show_says_that_a_run_diverged(cli):
    code, _, err = cli("run", "fedbc", "--lr", "3", "--rounds", "300", "--devices", "10", "--quiet", "--out", "div")
    assert code == 1
    assert "training diverged in round 2" in err
    out = cli("show", "div")[1]
    assert "diverged in round 2" in " ".join(out.split())
    assert "div (diverged)" in out
    cli("run", "fedavg", *QUICK, "--out", "a-folder-whose-name-is-longer-than-any-narrow-terminal-would-like-it-to-be")
    listed = cli("runs", ".")[1]
    assert "a-folder-whose-name-is-longer-than-any-narrow-terminal-would-like-it-to-be" in listed
    (said,) = (line.split() for line in listed.splitlines() if line.startswith("div"))
    assert said[1] == "diverged"
    both = " ".join(cli("show", ".")[1].split())
    assert "The runs differ in data and rounds: their numbers are no comparison." in both
    assert "(1 to 2 of them evaluated)" in both
