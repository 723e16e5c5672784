"""Ctrl-C that lets the running round end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def patient_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the running round end; the second one interrupts at once, as usual."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    usual = signal.getsignal(signal.SIGINT)

    def remember(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, usual)

    if usual is not signal.default_int_handler:  # somebody else handles Ctrl-C: leave it to them
        yield lambda: False
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, usual)
