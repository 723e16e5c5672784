"""A federation of real processes on this machine: SuperLink, SuperExec, SuperNodes, `flwr run`.

Every process is the leader of a group of its own and is ended with the test, by the id of its group.
"""

import contextlib
import functools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fedbc
from fedbc.flower import make_keys, write_app
from fedbc.flower.control import Control

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@functools.cache
def slowness() -> float:
    """How much slower than a quiet machine with two cores this one is now, from 1 to 8; limits stretch with it."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import fedbc.flower"], check=True, timeout=120)
    return min(8.0, max(1.0, (time.monotonic() - began) / 2.5))


def until(what, seconds, said):
    """Poll until `what()` is true; fail after so many seconds, more on a slow machine."""
    end = time.monotonic() + seconds * slowness()
    while not (value := what()):
        assert time.monotonic() < end, f"within {seconds} s there was no {said}"
        time.sleep(0.1)
    return value


class Process:
    """A process and its log."""

    def __init__(self, name, command, folder, log_folder, env):
        self.log = log_folder / f"{name}.log"
        with self.log.open("ab") as out:
            self.popen = subprocess.Popen(
                [str(c) for c in command],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=env,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def text(self):
        return re.sub(r"\x1b\[\d+m", "", self.log.read_text(errors="replace"))

    @property
    def ended(self):
        return self.popen.poll() is not None

    def listens(self):
        """The ports on which this group's processes listen."""
        sockets, ports = set(), set()
        for process in self.members(""):
            with contextlib.suppress(OSError):
                sockets |= {os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir()}
        for line in [line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                ports.add(int(words[1].rpartition(":")[2], 16))
        return ports

    def members(self, command):
        """The ids of the processes of this group that run a command."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = status.read_text().rpartition(")")[2].split()[:3]
                words = (status.parent / "cmdline").read_bytes()
                if int(group) == self.popen.pid and state != "Z" and command.encode() in words:
                    found.append(int(status.parent.name))
        return found

    def end(self, how=signal.SIGKILL):
        """End the process and all it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, how)
        self.popen.wait(timeout=20)


class Loopback:
    """The processes of one federation whose app folder `fedbc deploy init` wrote; a context that ends them."""

    def __init__(self, folder: Path):
        self.app = folder / "federation"
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        self.port = free_port()
        self.processes: list[Process] = []
        self.env = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(fedbc.__file__).parents[1]),  # the package that is tested, wherever it is
            "FLWR_HOME": str(self.app / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PORT": str(self.port),
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.end()

    def start(self, name, *command, folder=None, **env) -> Process:
        process = Process(name, command, folder or self.app, self.logs, self.env | env)
        self.processes.append(process)
        return process

    def shell(self, command, *, seconds=60, folder=None, check=True) -> str:
        """Run a command as a user would type it; its output."""
        done = subprocess.run(
            ["bash", "-c", command],
            env=self.env,
            cwd=folder or self.app,
            capture_output=True,
            text=True,
            timeout=seconds * slowness(),
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def prepare(self, devices, **options) -> None:
        """The app folder and its keys, as `fedbc deploy init` and `keys` make them; `options` are `write_app`'s."""
        write_app(self.app, algorithm="fedbc", devices=devices, address=f"127.0.0.1:{self.port}", **options)
        make_keys(self.app / "keys", devices=devices)

    def superlink(self) -> Process:
        self.link = self.start("superlink", "./superlink.sh")
        return self.listening(self.link)

    def listening(self, link) -> Process:
        until(lambda: link.ended or self._answers(), 60, "SuperLink")
        assert not link.ended, link.text
        return link

    def _answers(self) -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def superexec(self) -> Process:
        self.exec = self.start("superexec", "./superexec.sh")
        return self.exec

    def register(self) -> None:
        """Register the devices' public keys, as `fedbc deploy register` does."""
        with contextlib.closing(Control(self.app / "keys", f"127.0.0.1:{self.port}")) as control:
            control.register()

    def supernode(self, device, *, node_config="", name=None) -> Process:
        return self.start(
            name or f"device-{device}",
            "./supernode.sh",
            device,
            NODE_CONFIG=node_config,
        )

    def run(self, app: Path | None = None, **config) -> int:
        """`flwr run` with a changed run-config, `run__rounds` for run.rounds; returns the run's id."""
        values = " ".join(f"{k.replace('__', '.').replace('_', '-')}={json.dumps(v)}" for k, v in config.items())
        said = self.shell(f"flwr run {shlex.quote(str(app or '.'))} --run-config {shlex.quote(values)}")
        return int(said.split("Successfully started run ")[1].split()[0])

    def log(self, out: str) -> str:
        """What the server logged of a run, by its folder."""
        file = self.app / out / "log.txt"
        return file.read_text() if file.exists() else ""

    def finished(self, run: int) -> bool:
        started = re.search(rf"Started task (\d+) of run {run}\b", self.link.text)
        return bool(started and f"Finished task {started.group(1)} of run {run}" in self.link.text)

    def wait(self, run: int, seconds: float) -> None:
        until(lambda: self.finished(run), seconds, f"end of run {run}")

    def hears(self, out: str, pattern: str, seconds: float) -> re.Match:
        """Wait until the server of the run with this folder logs something."""
        try:
            return until(lambda: re.search(pattern, self.log(out)), seconds, f"{pattern!r} in the log")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.log(out)[-3000:]}") from None
