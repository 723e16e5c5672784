"""Ray is an extra: without it everything else runs, and what asks for it is told what to install."""

import subprocess
import sys

import hidden
import worlds


def test_without_ray(tmp_path):
    environment = hidden.environment(tmp_path / "site", ["ray"])
    command = [sys.executable, worlds.__file__, "without-ray"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "fedbc: --ray needs Ray: pip install 'fedbc[ray]'\n" * 5
