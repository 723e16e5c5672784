"""The command line: `fedbc run`, `fedbc list`, `fedbc show`, `fedbc data show`."""

from fedbc.cli.main import main

__all__ = ["main"]
