"""Waiting until all machines are there: with a line when it takes a while, and an end when it takes too long."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from fedbc.errors import InputError
from fedbc.machines.places import Place

SOON = 3.0
"""Seconds after which a machine that waits says so."""
STOPPED, GIVEN_UP = 130, 2
"""Exit codes."""


def refuse_taken_port(place: Place) -> None:
    """On machine 0: an InputError if something listens at its port already; JAX would end in a crash."""
    _, port = place.host_and_port()
    for family in (socket.AF_INET6, socket.AF_INET):
        with contextlib.suppress(OSError), socket.socket(family) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trying.bind(("", port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    continue  # such as a system without this family
                raise InputError(
                    f"address={place.address!r} is not accepted: port {port} of this machine cannot be had "
                    f"({error.strerror}); give another one, on all machines"
                ) from None


def until_machine_0_answers(place: Place, seconds: float) -> None:
    """On the other machines, before JAX asks: it would end the process with a stack trace of its own."""
    began = time.monotonic()
    told = False
    while (error := _unanswered(place)) is not None:
        waited = time.monotonic() - began
        if waited > seconds:
            raise InputError(
                f"nobody answers at {place.address} ({error}): is machine 0 started, and is this its address?"
            )
        if waited > SOON and not told:
            told = True
            _tell(f"{place} waits: nobody answers at {place.address} yet ({error}); for {seconds:g} seconds at most")
        time.sleep(0.2)


def until_all_are_there(meet: Callable[[], None], place: Place, seconds: float) -> None:
    """Call what waits for the other machines; ends the process if it takes too long, or at Ctrl-C.

    Nothing can interrupt JAX where it waits. So it does in a thread of its own, which ends with the process.
    """
    failed: list[BaseException] = []

    def work() -> None:
        try:
            meet()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="fedbc-machines-meet", daemon=True)
    thread.start()
    try:
        thread.join(min(SOON, seconds))
        if thread.is_alive():
            unanswered = None if place.index else _unanswered(place)
            doubt = f"; nobody answers at {place.address} ({unanswered}): is this its own address?"
            _tell(f"{place} waits for the others, {seconds:g} seconds at most{doubt if unanswered else ''}")
            thread.join(max(0.0, seconds - SOON))
    except KeyboardInterrupt:
        _end(f"{place} was stopped while it waited for the others", STOPPED)
    if thread.is_alive():
        _end(f"{place} waited {seconds:g} seconds for the others, and not all of them came", GIVEN_UP)
    if failed:
        raise failed[0]


def _unanswered(place: Place) -> str | None:
    """Why nobody answers at machine 0's address; None if somebody does."""
    try:
        socket.create_connection(place.host_and_port(), timeout=2).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _tell(line: str) -> None:
    """On standard error, also if Python's own is somebody else's: nothing else is said while machines wait."""
    os.write(2, f"fedbc: {line}\n".encode())


def _end(line: str, code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _tell(line)
    os._exit(code)
