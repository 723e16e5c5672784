"""`fedbc deploy superexec`: Flower's SuperExec, which starts a run's process on the server.

A task's token goes to its process through a pipe: a command line can be read by every user of the machine.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from fedbc.flower.checked import check_version
from fedbc.flower.memory import cap_memory

__all__ = ["app", "main"]

ENTRY = "from fedbc.flower.superexec import app; app()"
"""What a task's process runs."""


def main(arguments: list[str]) -> None:
    """Run `flower-superexec` with these arguments."""
    check_version()
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor
    from flwr.supercore.superexec.executor.types import LaunchResult

    def launch(self: Any, spec: Any) -> Any:
        command = [sys.executable, "-c", ENTRY, str(spec.task_type)]
        command += ["--runtime-api-address", spec.runtime_api_address]
        if spec.insecure:
            command.append("--insecure")
        elif spec.root_certificates_path is not None:
            command += ["--root-certificates", spec.root_certificates_path]
        if spec.parent_pid is not None:
            command += ["--parent-pid", str(spec.parent_pid)]
        out = subprocess.DEVNULL if spec.suppress_output else None
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)
        assert process.stdin is not None
        process.stdin.write(spec.token.encode() + b"\n")
        process.stdin.close()
        return LaunchResult.accepted()

    executor: Any = subprocess_executor.SubprocessExecutor
    executor.launch = launch
    sys.argv = ["flower-superexec", *arguments]
    flower_superexec()


def app() -> None:
    """The process of one task: a run's ServerApp, with the token that came through the pipe."""
    kind, *arguments = sys.argv[1:]
    from flwr.supercore.constant import TaskType

    if kind != TaskType.SERVER_APP:
        sys.exit(f"fedbc: a task of type {kind} is not run here")
    from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

    cap_memory()
    token = sys.stdin.readline().strip()
    sys.argv = ["flwr-serverapp", "--token", token, *arguments]  # of this process only: ps shows the real command
    flwr_serverapp()
