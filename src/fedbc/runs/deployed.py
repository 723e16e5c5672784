"""How a deployment's run stands, as its server tells it in the run folder, for those who look on.

`status.json` is written anew at each step of a round; nothing is computed from it. `rounds.jsonl` is the server's
journal of rounds (`fedbc.flower.journal`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbc import storage
from fedbc.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

SUMS_ONLY = (
    "secure aggregation: the server has sums over devices, so that there are means and variances, and no table of "
    "devices, no worst device and no deciles"
)
"""For people who look for what a run with secure aggregation cannot show."""
FILE = "status.json"
ROUNDS = "rounds.jsonl"


@dataclass
class DeviceStatus:
    """What is known of a device."""

    device: int
    here: bool = False
    """whether its node was there when the server last looked"""
    node: int = 0
    taken: int = 0
    """the last round whose summand of it was taken; 0 if none"""
    asked: int = 0
    """the last round in which it was asked to train"""
    faults: int = 0
    """how often its answers could not be used, in this process of the server"""
    fault: str = ""
    """the last such time: what was wrong, and in which round"""


@dataclass
class Status:
    """How a run stands."""

    run: str
    rounds: int
    devices: list[DeviceStatus]
    round: int = 0
    """the last round that is complete"""
    phase: str = "begins"
    since: float = 0.0
    """when the phase began, in seconds since 1970"""
    largest_moves: dict[int, float] = field(default_factory=dict)
    """of the last round's devices that would have moved the server's state most: how far, in medians of all"""

    def look(self, holders: dict[int, int]) -> None:
        """Who is there, device to node."""
        for device in self.devices:
            device.here, device.node = device.device in holders, holders.get(device.device, 0)

    def fault(self, device: int, what: str) -> None:
        """A device's answer could not be used."""
        if 0 <= device < len(self.devices):
            found = self.devices[device]
            found.faults, found.fault = found.faults + 1, what

    def take(self, round: int, accepted: Iterable[int]) -> None:
        """A round is complete."""
        self.round = round
        for device, last in zip(self.devices, accepted, strict=True):
            device.taken = int(last)

    def enter(self, folder: Path, phase: str, asked: Collection[int] = (), number: int = 0) -> None:
        """Another step begins; what cannot be written is no reason to end a run."""
        self.phase, self.since = phase, time.time()
        for device in asked:
            self.devices[device].asked = number
        with contextlib.suppress(InputError):
            storage.write_atomically(folder / FILE, json.dumps(asdict(self)))


def read_status(folder: Path) -> Status | None:
    """The status of a run folder; None if it has none that can be read."""
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text())
        devices = [DeviceStatus(**device) for device in found.pop("devices")]
        moves = {int(device): float(move) for device, move in found.pop("largest_moves").items()}
        return Status(**found, devices=devices, largest_moves=moves)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def has_sums_only(devices: pd.DataFrame) -> bool:
    """Whether a run's table of devices is that of secure aggregation: who took part, and nothing else."""
    return list(devices.columns) == ["round", "device"]


def in_words(status: Status) -> str:
    """What a run is about, in a line."""
    here = sum(device.here for device in status.devices)
    faulty = [device for device in status.devices if device.faults]
    said = f"{status.phase}; {here} of {len(status.devices)} devices are there"
    if faulty:
        last = max(faulty, key=lambda device: device.asked)
        number = sum(device.faults for device in faulty)
        said += f"; {number} answers not used, such as device {last.device}'s: {last.fault}"
    return said


def read_rounds(file: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of history, and those of devices, that a journal of rounds holds so far."""
    history: dict[int, dict[str, Any]] = {}
    devices: dict[int, list[dict[str, Any]]] = {}
    for text in file.read_text().splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line may be half-written
            line = json.loads(text)
            if "measured" in line:
                history[line["round"]] = line["measured"]
            else:
                history[line["round"]], devices[line["round"]] = line["row"], line["devices"]
    return [history[n] for n in sorted(history)], [row for n in sorted(devices) for row in devices[n]]
