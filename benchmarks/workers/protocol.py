"""How a contestant and the harness speak: JSON lines over standard input and output.

    {"job": ...}                                          -> {"seconds": ..., "versions": {...}, "facts": {...}}
    {"rounds": {n: [device, ...], ...}, "evaluate": bool} -> {"rounds": [{"round": n, "seconds": ..., "steps": ...,
                                                                          "accuracy": ... or null}, ...]}

The first request builds the contestant; each further one runs federated rounds on the given devices, one after the
other as in a run, with the accuracy of the new global model on all test examples if asked for. An error is answered as
{"error": traceback}. Time is taken here, in the same way for all, round by round, until the round's result is there.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Job = dict[str, Any]


class Round(NamedTuple):
    """What a round did."""

    steps: int
    accuracy: float | None = None


class Contestant(ABC):
    """A framework set up for one workload."""

    packages: tuple[str, ...] = ()
    """distributions whose versions are reported"""
    facts: dict[str, Any] = {}  # noqa: RUF012 (replaced, never changed)
    """what else the contestant found out when it was built"""

    def announce(self, devices: list[int], evaluate: bool) -> None:  # noqa: B027 (a hook that most leave empty)
        """Tell further processes of the contestant what comes, before the clock starts."""

    @abstractmethod
    def round(self, number: int, devices: list[int], evaluate: bool) -> Round:
        """Run one federated round to its end."""

    def close(self) -> None:  # noqa: B027
        """Release what outlives the process."""


class Arrays:
    """A prepared workload's arrays."""

    def __init__(self, job: Job) -> None:
        folder = Path(job["folder"])
        self.train_x, self.train_y = np.load(folder / "train_x.npy"), np.load(folder / "train_y.npy")
        self.test_x, self.test_y = np.load(folder / "test_x.npy"), np.load(folder / "test_y.npy")
        self.offsets = np.load(folder / "offsets.npy")
        with np.load(folder / "initial.npz") as initial:
            self.initial = dict(initial)

    @property
    def sizes(self) -> np.ndarray:
        """How many training examples each device has."""
        return np.diff(self.offsets)

    def of(self, device: int) -> slice:
        """A device's rows of the training arrays."""
        return slice(int(self.offsets[device]), int(self.offsets[device + 1]))


def serve(build: Callable[[Job], Contestant]) -> None:
    """Answer requests until standard input ends."""
    # Libraries print to standard output at will: the answers get a channel of their own, prints go to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant: Contestant | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if contestant is None:
                began = time.perf_counter()
                contestant = build(request["job"])
                answer: dict[str, Any] = {"seconds": time.perf_counter() - began}
                answer |= {"versions": _versions(contestant), "facts": contestant.facts}
            else:
                answer = {
                    "rounds": [
                        _timed(contestant, int(number), devices, request["evaluate"])
                        for number, devices in request["rounds"].items()
                    ]
                }
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    if contestant is not None:
        contestant.close()


def _timed(contestant: Contestant, number: int, devices: list[int], evaluate: bool) -> dict[str, Any]:
    contestant.announce(devices, evaluate)
    began = time.perf_counter()
    done = contestant.round(number, devices, evaluate)
    return {"round": number, "seconds": time.perf_counter() - began, **done._asdict()}


def _versions(contestant: Contestant) -> dict[str, str]:
    return {"python": sys.version.split()[0], **{name: metadata.version(name) for name in contestant.packages}}
