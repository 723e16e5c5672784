"""The group of commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

import click

from fedbc import __version__, progress
from fedbc.cli.errors import Stopped
from fedbc.errors import Diverged, FedBCError, MachineLost, RunsFailed

EXIT_BAD_INPUT = 2
EXIT_CODES: dict[type[FedBCError], int] = {Diverged: 1, MachineLost: 1, RunsFailed: 1, Stopped: 130}
COMMANDS = {
    "run": "run:run_command",
    "list": "inspect:list_command",
    "show": "show:show_command",
    "runs": "runs:runs_command",
    "predict": "predict:predict_command",
    "export": "predict:export_command",
    "watch": "watch:watch_command",
    "sweep": "sweep:sweep_command",
    "calibrate": "calibrate:calibrate_command",
    "tune": "tune:tune_command",
    "compare": "compare:compare_command",
    "personalize": "personalize:personalize_command",
    "paper": "paper:paper_group",
    "data": "inspect:data_group",
    "deploy": "deploy:deploy_group",
}
"""Every command and where it lives, in the order of the help page."""


class Commands(click.Group):
    """Imports a command when it is used: a run should not wait for what draws pages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        found: click.Command = getattr(importlib.import_module(f"fedbc.cli.{module}"), name)
        return found


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedbc")
def fedbc() -> None:
    """Federated learning beyond consensus: one global model, and a local model for every device."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the user's is one line on standard error and exit code 2."""
    try:
        with _terminated_like_interrupted(), progress.notices_told():
            code = fedbc.main(args=arguments, prog_name="fedbc", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = EXIT_BAD_INPUT
    except click.ClickException as error:
        code = _say(error.format_message(), EXIT_BAD_INPUT)
    except FedBCError as error:
        code = _say(str(error), next((c for kind, c in EXIT_CODES.items() if isinstance(error, kind)), EXIT_BAD_INPUT))
    except PermissionError as error:
        code = _say(f"{error.filename} cannot be reached: {error.strerror}", EXIT_BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        code = _say("stopped", EXIT_CODES[Stopped])
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stderr.close()
        code = 0
    sys.exit(code)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """`kill`, and a cluster whose time limit is over, do what Ctrl-C does: what is done is kept, and workers end."""

    def stop(_: int, frame: FrameType | None) -> None:
        on_interrupt = signal.getsignal(signal.SIGINT)  # a run lets its round end
        if not callable(on_interrupt):
            raise KeyboardInterrupt
        on_interrupt(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():  # only this one may have handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(message: str, code: int) -> int:
    print("fedbc: " + " ".join(message.split()), file=sys.stderr)
    return code
