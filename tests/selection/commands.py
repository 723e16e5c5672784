"""The command line in a process of its own, for the tests of calibration and tuning."""

import subprocess
import sys
import time

TINY = ["--devices", "4", "--rounds", "3", "--sample", "3"]


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "fedbc", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_refused(command, folder, arguments, message):
    """Wrong input: one line that says why, before anything is run or written; what others keep there is left alone."""
    (folder / "other").mkdir()
    (folder / "other" / "file").write_text("mine")
    code, _, errors = command(*arguments)
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert [p.name for p in folder.iterdir()] == ["other"]


def wait_until(what, process):
    """Until something holds that a running process brings about."""
    for _ in range(12000):
        if what():
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.kill()
    raise AssertionError(f"nothing happened in four minutes: {process.communicate()}")
