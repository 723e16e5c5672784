"""Machines that fall silent: a stopped process or a cut cable closes no connection, and a meeting would wait for ever.

All machines ask JAX's coordination service now and then who is there. It answers when all who are there have asked, and
leaves out those of whom it heard nothing for `SILENCE` seconds. A machine that waits in a meeting for one that is not
there any more cannot be woken: its process ends, with one line. The last whole checkpoint is on disk.
"""

from __future__ import annotations

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
        self.machines, self.every = machines, world.SILENCE / 6
        self.missing: list[int] = []
        self.answered = time.monotonic()
        for work in (self._ask, self._judge):
            threading.Thread(target=work, name=f"fedbc-machines-{work.__name__}", daemon=True).start()

    def _ask(self) -> None:
        from jax._src.distributed import global_state

        client: Any = global_state.client
        everyone = list(range(self.machines.count))
        while True:
            try:
                there = client.get_live_nodes(everyone)
            except Exception:  # nobody answers: `_judge` counts the seconds
                return
            self.answered = time.monotonic()
            self.missing = [index for index in everyone if index not in there]
            time.sleep(self.every)

    def _judge(self) -> None:
        waited = 0.0
        while True:
            time.sleep(self.every)
            silent = time.monotonic() - self.answered > 2 * world.SILENCE
            # Only one that waits in vain ends: others may have finished, and left.
            waited = waited + self.every if self.machines.meeting and (self.missing or silent) else 0.0
            if waited > 2 * self.every:
                who = ", ".join(map(str, self.missing)) or "machine 0"
                line = f"fedbc: {self.machines} heard nothing of {who} for {world.SILENCE} seconds and ends"
                os.write(2, f"{line}: start all machines again to go on from the last checkpoint\n".encode())
                os._exit(1)
