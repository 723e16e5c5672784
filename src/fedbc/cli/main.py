"""The group of commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from fedbc import __version__
from fedbc.cli.compare import compare_command
from fedbc.cli.deploy import deploy_group
from fedbc.cli.errors import Stopped
from fedbc.cli.inspect import data_group, list_command, show_command
from fedbc.cli.paper import paper_group
from fedbc.cli.run import run_command
from fedbc.cli.sweep import sweep_command
from fedbc.errors import Diverged, FedBCError

EXIT_BAD_INPUT = 2
EXIT_CODES: dict[type[FedBCError], int] = {Diverged: 1, Stopped: 130}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedbc")
def fedbc() -> None:
    """Federated learning beyond consensus: one global model, and a local model for every device."""


fedbc.add_command(run_command)
fedbc.add_command(list_command)
fedbc.add_command(show_command)
fedbc.add_command(sweep_command)
fedbc.add_command(compare_command)
fedbc.add_command(paper_group)
fedbc.add_command(data_group)
fedbc.add_command(deploy_group)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the user's is one line on standard error and exit code 2."""
    try:
        code = fedbc.main(args=arguments, prog_name="fedbc", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = EXIT_BAD_INPUT
    except click.ClickException as error:
        code = _say(error.format_message(), EXIT_BAD_INPUT)
    except FedBCError as error:
        code = _say(str(error), next((c for kind, c in EXIT_CODES.items() if isinstance(error, kind)), EXIT_BAD_INPUT))
    except (KeyboardInterrupt, click.Abort):
        code = _say("stopped", EXIT_CODES[Stopped])
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stderr.close()
        code = 0
    sys.exit(code)


def _say(message: str, code: int) -> int:
    print("fedbc: " + " ".join(message.split()), file=sys.stderr)
    return code
