"""An error of the command line's own."""

from fedbc.errors import FedBCError


class Stopped(FedBCError):
    """Ctrl-C, as an ordinary error: click would turn a KeyboardInterrupt into a message of its own."""
