"""A device's state on its own disk: durable, private, and in step with what the server took.

A device's new state counts only if the server took the summand that belongs to it; otherwise the two would drift apart
(SCAFFOLD's c_i, FedPD's dual). The device cannot know that when it answers, so it keeps two files, each written
atomically with a checksum:

    state.safetensors      the state after the last round that the server is known to have taken
    pending.safetensors    the state after the round that was answered last

Every message of the server says which round of this device it took last (`Order.accepted`); `settle` then adopts the
pending state, by renaming its file, or drops it. A power cut at any instant leaves the old or the new state.

The folder is <state-dir>/<run>/device-<number>, readable by its owner only.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from fedbc import storage
from fedbc.errors import InputError
from fedbc.flower.messages import MessageError, Order, layout

FORMAT = "fedbc-device-1"
log = logging.getLogger("flwr.fedbc")


def default_folder() -> Path:
    """Where devices keep their states unless the SuperNode's configuration says otherwise."""
    return platformdirs.user_data_path("fedbc", appauthor=False) / "devices"


@dataclass(frozen=True)
class Kept:
    """A state read from disk."""

    round: int
    state: Any


@dataclass
class DeviceState:
    """The files of one device in one run; `like` has the structure and shapes of its state."""

    root: Path
    run: str
    device: int
    like: Any
    reports: list[str] = field(default_factory=list)
    """what was found damaged or out of step, and what became of it"""

    @property
    def folder(self) -> Path:
        """The device's own folder."""
        return self.root / self.run / f"device-{self.device}"

    @property
    def _adopted(self) -> Path:
        return self.folder / "state.safetensors"

    @property
    def _pending(self) -> Path:
        return self.folder / "pending.safetensors"

    def settle(self, order: Order) -> Kept | None:
        """The state to work from, by the server's word on what it took; None if the device has to start anew.

        An order that is older than the state is refused with a MessageError, and changes nothing.
        """
        adopted, pending = self._read(self._adopted), self._read(self._pending)
        if adopted is not None and (order.accepted < adopted.round and order.round <= adopted.round):
            raise MessageError(f"an order of round {order.round} came after round {adopted.round} was taken: it is old")
        if pending is not None and pending.round == order.accepted:
            with storage.explained(self._adopted):
                storage.move_durably(self._pending, self._adopted)
            return pending
        if pending is not None:
            self._pending.unlink(missing_ok=True)
        if adopted is None or adopted.round == order.accepted:
            return adopted
        self._set_aside(
            self._adopted, f"it is of round {adopted.round}, but the server took round {order.accepted} last"
        )
        return None

    def own_folder(self) -> Path:
        """The device's own folder, made for its owner only."""
        with storage.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.root / self.run, self.folder):
                os.chmod(folder, 0o700)
        return self.folder

    def keep_pending(self, round: int, state: Any) -> None:
        """Write the state after a round, durably, before its summand is sent."""
        with storage.explained(self.own_folder()):
            for leftover in self.folder.glob(".*.safetensors.*"):  # of a write that a power cut ended
                if not leftover.name.endswith(".lock"):
                    leftover.unlink(missing_ok=True)
        facts = {"format": FORMAT, "run": self.run, "device": self.device, "round": round}
        storage.write_arrays(self._pending, storage.named(state, "device"), facts, private=True)

    def _read(self, file: Path) -> Kept | None:
        if not file.exists():
            return None
        try:
            arrays, facts = storage.read_arrays(file)
            if (facts.get("format"), facts.get("run"), facts.get("device")) != (FORMAT, self.run, self.device):
                raise InputError(f"{file} belongs to another run, device or version: {str(facts)[:200]}")
            wanted = layout(self.like, "device")
            if {n: (a.shape, a.dtype.name) for n, a in arrays.items()} != dict(wanted):
                raise InputError(f"{file} holds other arrays than this algorithm and model keep")
            return Kept(int(facts["round"]), self._tree(arrays))
        except (InputError, KeyError, TypeError, ValueError) as error:
            self._set_aside(file, str(error))
            return None

    def _tree(self, arrays: storage.Arrays) -> Any:
        return storage.restored(self.like, arrays, "device")

    def _set_aside(self, file: Path, reason: str) -> None:
        number = 1
        while (target := file.with_name(f"{file.stem}.set-aside-{number}.safetensors")).exists():
            number += 1
        with storage.explained(target):
            storage.move_durably(file, target)
        self.reports.append(f"device {self.device}: {reason}; set aside as {target}")
        log.warning(self.reports[-1])


def read_state(folder: Path, like: Any) -> Kept:
    """The adopted state of a device folder, for use of its local model; `like` as in `DeviceState`."""
    arrays, facts = storage.read_arrays(folder / "state.safetensors")
    if facts.get("format") != FORMAT:
        raise InputError(f"{folder}/state.safetensors has format {facts.get('format')!r}; this version reads {FORMAT}")
    return Kept(int(facts["round"]), storage.restored(like, arrays, "device"))
