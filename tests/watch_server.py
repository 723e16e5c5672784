"""A `fedbc watch` in a process of its own, for tests."""

import contextlib
import signal
import subprocess
import sys


@contextlib.contextmanager
def watching(folder, *arguments):
    """Its address; it is ended by Ctrl-C, and must end well."""
    command = [sys.executable, "-m", "fedbc", "watch", str(folder), "--no-open", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline()
            assert " at http://" in said, said + process.stderr.read()
            yield said.split(" at ")[1].split()[0]
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=20)
            assert (process.returncode, out, errors) == (0, "ended\n", "")
        finally:
            if process.poll() is None:
                process.kill()
