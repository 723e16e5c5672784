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


def wait_until(what, process):
    """Until something holds that a running process brings about."""
    for _ in range(12000):
        if what():
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.kill()
    raise AssertionError(f"nothing happened in four minutes: {process.communicate()}")
