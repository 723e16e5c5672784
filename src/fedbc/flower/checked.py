"""The version of Flower whose inside this package knows."""

from __future__ import annotations

from importlib import metadata

from fedbc.errors import InputError

FLOWER = "1.41."


def check_version() -> None:
    """An InputError if another Flower is installed than the one whose inside is used."""
    found = metadata.version("flwr")
    if not found.startswith(FLOWER):
        raise InputError(f"flwr {found} is installed; fedbc.flower works with {FLOWER}*: pip install 'fedbc[flower]'")
