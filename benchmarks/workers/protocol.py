"""How a contestant and the harness speak: JSON lines over standard input and output.

    {"job": ...}                                          -> {"seconds": ..., "versions": {...}, "facts": {...}}
    {"rounds": {n: [device, ...], ...}, "evaluate": bool} -> {"round": first n, "seconds": ..., "steps": ...,
                                                              "accuracy": ... or null}

The first request builds the contestant; each further one runs federated rounds on the given devices, one after the
other as in a run, with the accuracy of the new global model on all test examples if asked for. An error is answered as
{"error": traceback}. Time is taken here, in the same way for all, until a round's result is there. Seconds and steps
are means over the rounds of a request, for a contestant may train rounds along with earlier ones; the accuracy is that
after the last.
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

    def expect(self, rounds: int) -> None:  # noqa: B027 (a hook that most leave empty)
        """Hear how many rounds a request has, before the clock starts."""

    def announce(self, devices: list[int], evaluate: bool) -> None:  # noqa: B027
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
                answer = _turn(contestant, request["rounds"], request["evaluate"])
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    if contestant is not None:
        contestant.close()


def _turn(contestant: Contestant, rounds: dict[str, list[int]], evaluate: bool) -> dict[str, Any]:
    contestant.expect(len(rounds))
    done, seconds = [], 0.0
    for number, devices in rounds.items():
        contestant.announce(devices, evaluate)
        began = time.perf_counter()
        done.append(contestant.round(int(number), devices, evaluate))
        seconds += time.perf_counter() - began
    steps = sum(round.steps for round in done)
    return {
        "round": int(next(iter(rounds))),
        "seconds": seconds / len(done),
        "steps": steps / len(done),
        "accuracy": done[-1].accuracy,
    }


def _versions(contestant: Contestant) -> dict[str, str]:
    return {"python": sys.version.split()[0], **{name: metadata.version(name) for name in contestant.packages}}
