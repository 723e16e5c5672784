"""Machines that fall silent: a stopped process or a cut cable closes no connection, and a meeting would wait for ever.

All machines ask JAX's coordination service now and then who is there. It answers when all who are there have asked, and
leaves out those of whom it heard nothing for `SILENCE` seconds. The service is machine 0's: whether that answers at all
is asked by itself, and given up after half of that, for after `SILENCE` seconds JAX would end the process with a stack
trace. A machine that waits in a meeting for one that is not there any more cannot be woken: its process ends, with one
line. The last whole checkpoint is on disk.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from fedbc.machines import world
from fedbc.machines.world import Machines


def watch(machines: Machines) -> None:
    """Watch from now on, until the process ends."""
    _Watch(machines)


class _Watch:
    def __init__(self, machines: Machines) -> None:
        self.machines, self.every = machines, world.SILENCE / 12
        self.missing: list[int] = []
        self.answered = time.monotonic()
        for work in (self._ask, self._knock, self._judge):
            threading.Thread(target=work, name=f"fedbc-machines-{work.__name__}", daemon=True).start()

    def _ask(self) -> None:
        """Who is there; where the service has gone, `_knock` notices."""
        everyone = list(range(self.machines.count))
        while (client := _client()) is not None:
            try:
                there = client.get_live_nodes(everyone)
            except Exception:
                return
            self.missing = [index for index in everyone if index not in there]
            time.sleep(2 * self.every)

    def _knock(self) -> None:
        """Whether machine 0 answers: a stopped one does not, and no connection closes."""
        while (client := _client()) is not None:
            with contextlib.suppress(Exception):
                client.key_value_set(f"fedbc-{self.machines.index}", "is there", allow_overwrite=True)
                self.answered = time.monotonic()
            time.sleep(self.every)

    def _judge(self) -> None:
        waited = 0.0
        while _client() is not None:
            time.sleep(self.every)
            silent = time.monotonic() - self.answered
            if silent > world.SILENCE / 2:
                self._end("machine 0", silent)
            # Only one that waits in vain for others ends: they may have finished, and left.
            waited = waited + self.every if self.machines.meeting and self.missing else 0.0
            if waited > 4 * self.every:
                self._end(", ".join(f"machine {index}" for index in self.missing), world.SILENCE)

    def _end(self, who: str, seconds: float) -> None:
        line = f"fedbc: {self.machines} heard nothing of {who} for {seconds:.0f} seconds and ends"
        os.write(2, f"{line}: start all machines again to go on from the last checkpoint\n".encode())
        os._exit(1)


def _client() -> Any:
    """JAX's connection with the service; None once this machine has left."""
    from jax._src.distributed import global_state

    return global_state.client
