"""A federation of real processes on this machine: a SuperLink, SuperNodes, `flwr run`.

Every process is in a group of its own and ends with the test, by the id of its group.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fedbc

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(what, seconds, said="it"):
    """Poll until `what()` is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < end, f"{said} did not happen within {seconds} s"
        time.sleep(0.1)
    return value


class Process:
    """A process with its log."""

    def __init__(self, name, command, folder, env):
        self.name, self.command, self.log = name, [str(c) for c in command], folder / f"{name}.log"
        with self.log.open("ab") as out:
            self.popen = subprocess.Popen(
                self.command, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=folder, start_new_session=True
            )

    @property
    def text(self):
        return self.log.read_text(errors="replace")

    def end(self, how=signal.SIGKILL):
        """End the process and all it started."""
        try:
            os.killpg(self.popen.pid, how)
        except ProcessLookupError:
            pass
        self.popen.wait(timeout=20)


class Loopback:
    """SuperLink and SuperNodes with a Flower home of their own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.port = free_port()
        self.processes: list[Process] = []
        self.nodes: dict[int, Process] = {}
        self.env = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(fedbc.__file__).parents[1]),  # the package that is tested, wherever it is
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        }
        self.tls: list[str] = ["--insecure"]

    def start(self, name, *command) -> Process:
        process = Process(name, [BIN / command[0], *command[1:]], self.folder, self.env)
        self.processes.append(process)
        return process

    def superlink(self, *arguments) -> Process:
        config = self.folder / "flwr" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        security = "insecure = true" if self.tls == ["--insecure"] else f'root-certificates = "{self.tls[1]}"'
        config.write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{security}\n'
        )
        link = self.start("superlink", "flower-superlink", "--port", self.port, *(arguments or ["--insecure"]))
        until(lambda: "Application startup complete" in link.text or link.popen.poll() is not None, 30, "SuperLink")
        assert link.popen.poll() is None, link.text
        self.link = link
        return link

    def supernode(self, device, *arguments, config="", name=None) -> Process:
        node = self.start(
            name or f"node-{device}",
            "flower-supernode",
            *self.tls,
            *("--superlink", f"127.0.0.1:{self.port}", "--port", free_port(), *arguments),
            *("--node-config", f'partition-id={device} state-dir="{self.folder / "state"}" {config}'),
        )
        self.nodes[device] = node
        return node

    def flwr(self, *arguments, check=True) -> str:
        done = subprocess.run(
            [BIN / "flwr", *map(str, arguments)],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, app: Path, **config) -> int:
        """`flwr run` with a changed run-config; returns the run's id."""
        values = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        said = self.flwr("run", app, *(("--run-config", values) if values else ()))
        return int(said.split("Successfully started run ")[1].split()[0])

    def status(self, run: int) -> str:
        said = self.flwr("list", "--run-id", run, "--format", "json")
        return json.loads(said[said.index("{") :])["runs"][0]["status"]

    def wait(self, run: int, seconds: float) -> str:
        """Wait for a run's end; returns its log. The SuperLink's log is watched: asking by command costs seconds."""
        until(lambda: f"Finished run {run}" in self.link.text or self._finished(run), seconds, f"the end of run {run}")
        return self.said(run)

    def _finished(self, run: int) -> bool:
        started = re.search(rf"Started task (\d+) of run {run}\b", self.link.text)
        return bool(started and f"Finished task {started.group(1)} of run {run}" in self.link.text)

    def said(self, run: int) -> str:
        """The ServerApp's log."""
        return self.flwr("log", run, "--show")

    def close(self) -> None:
        for process in reversed(self.processes):
            process.end()
