"""The second in which the program `fedbc` loads its libraries: Ctrl-C ends it there and then, without a traceback.

Only where `fedbc` is the program: whoever imports it from Python, or in a notebook, keeps Python's own way.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

IMPORTED_TO_BE_RUN = "-m"
"""What Python calls the program while it imports the package for `python -m fedbc`."""


def begin() -> None:
    """From now on Ctrl-C ends the program at once: what is loaded may turn a KeyboardInterrupt into an ImportError."""
    if _is_ours() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def end() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again."""
    if _is_ours() and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_ours() -> bool:
    program = sys.argv[0] if sys.argv else ""
    named = program == IMPORTED_TO_BE_RUN or Path(program).stem == "fedbc"
    return named and threading.current_thread() is threading.main_thread()
