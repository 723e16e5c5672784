"""The sum of a round's summands, of the devices that the others' answers let pass.

A device's answer is judged by how far it alone would move the server's state: ‖update(server, its summand) - server‖,
over all that the server keeps. That is one number for every method, and has the method's own meaning: for FedBC and
FedAvg it is ‖x_i - z‖, for SCAFFOLD the move of z and of the control variate. A device whose move is beyond the limit
is left out; the sum of the rest is the method's own.

The others' median is known when all have answered, so summands wait in a file; memory stays constant in the number of
devices, and the sum, formed in float64 in the order of device numbers, does not depend on who answered first.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbc import storage
from fedbc.algorithms.base import Algorithm
from fedbc.flower.packs import Layout, MessageError

LEAST_TO_COMPARE = 3
"""How many devices must have answered before one is compared with the median of the others."""


@dataclass(frozen=True)
class Entry:
    """A device's answer that waits to be added."""

    device: int
    examples: int
    info: dict[str, float]
    move: float
    begin: int
    """where its summand lies in the file"""


class RoundSum:
    """The summands of one round; a context that removes its file."""

    def __init__(self, wanted: Layout) -> None:
        self.wanted = wanted
        self.entries: dict[int, Entry] = {}
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with this context)

    def __enter__(self) -> RoundSum:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, device: int, summand: storage.Arrays, examples: int, info: dict[str, float], move: float) -> None:
        """Take a summand that passed its checks."""
        begin = self._file.seek(0, 2)
        for name in self.wanted:
            self._file.write(summand[name].tobytes())
        self.entries[device] = Entry(device, examples, info, move, begin)

    def beyond(self, limit: float, factor: float) -> Iterator[tuple[Entry, str]]:
        """Leave out the devices that would move the server's state too far; tells which, and why.

        limit: how far a device may move it; factor: how many medians of the other devices' moves. 0 is no limit.
        """
        if factor and len(self.entries) >= LEAST_TO_COMPARE:
            moves = {device: entry.move for device, entry in self.entries.items()}
            for device, entry in list(self.entries.items()):
                others = statistics.median(move for other, move in moves.items() if other != device)
                if entry.move > factor * others > 0:
                    del self.entries[device]
                    times = entry.move / others
                    yield entry, f"it moves the model {times:.3g} times as far as the others' median, limit {factor:g}"
        for device, entry in list(self.entries.items()):
            if limit and entry.move > limit:
                del self.entries[device]
                yield entry, f"it moves the model by {entry.move:.3g}, limit {limit:g}"

    def largest(self, count: int = 3) -> dict[int, float]:
        """The devices that move the server's state most, and how far, in medians of all."""
        median = statistics.median([entry.move for entry in self.entries.values()] or [0.0])
        ranked = sorted(self.entries.values(), key=lambda entry: -entry.move)[:count]
        return {entry.device: entry.move / median if median > 0 else 0.0 for entry in ranked}

    def total(self) -> storage.Arrays:
        """The sum of those that are left, in the types of a summand."""
        total = {n: np.zeros(spec.shape, np.promote_types(spec.dtype, np.float64)) for n, spec in self.wanted.items()}
        for _, entry in sorted(self.entries.items()):
            self._file.seek(entry.begin)
            for name, spec in self.wanted.items():
                total[name] += np.frombuffer(self._file.read(spec.bytes), spec.dtype).reshape(spec.shape)
        return {name: array.astype(self.wanted[name].dtype) for name, array in total.items()}


class Mover:
    """How far a summand alone would move the server's state."""

    def __init__(self, algorithm: Algorithm, devices: int) -> None:
        def square(server: Any, summand: Any) -> Any:
            after = algorithm.update(server, summand, jnp.asarray(devices, float))
            return sum(
                jnp.sum(jnp.square(jnp.asarray(new, float) - old))
                for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(server), strict=True)
                if not jnp.issubdtype(new.dtype, jnp.integer)  # a count of rounds
            )

        self._square = jax.jit(square)

    def move(self, server: Any, summand: Any) -> float:
        """The norm of its move; one that is not finite is a MessageError."""
        if not any(np.any(leaf) for leaf in jax.tree.leaves(summand)):
            return 0.0  # it adds nothing, where a mean of it alone would be undefined
        found = float(np.sqrt(float(self._square(server, summand))))
        if not np.isfinite(found):
            raise MessageError("it would make the global model diverge")
        return found
