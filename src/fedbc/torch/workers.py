"""Processes that take local steps in PyTorch, one per core, each with one of PyTorch's threads.

They are forks of the running process, so that module, transform and data are there without being sent or copied; they
never call JAX. Processes, not threads, for three reasons: steps of small networks are mostly Python, which threads take
turns at; PyTorch's random numbers are one stream a process; and a module may keep what it likes in itself.

What travels goes through memory that both sides see, in slots: while a worker computes on one, the next one is filled.
Short facts go through a pipe. A worker ends when its pipe does, so none outlives the process that made it.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import signal
import sys
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

import numpy as np
import torch

from fedbc.errors import FedBCError

SLOTS = 2
Array = np.ndarray


class Place(NamedTuple):
    """Where an array lies in a slot."""

    begin: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        """Its size."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


class Layout:
    """Arrays one after the other in a slot, each at the beginning of a cache line."""

    LINE = 64

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, shape: tuple[int, ...], dtype: Any) -> Place:
        """Room for one more."""
        place = Place(self.bytes, shape, np.dtype(dtype))
        self.bytes += -(-place.bytes // self.LINE) * self.LINE
        return place


class Failed(FedBCError, RuntimeError):
    """A worker could not do what it was asked to; it says why."""


class Answer(NamedTuple):
    """What a worker sends back: short facts, or an error."""

    value: Any
    error: str | None = None
    kind: type[Exception] | None = None


Serve = Callable[["Slots", int, Any], Any]
"""A worker's work: from a slot's memory and short facts to short facts."""

_pipes: weakref.WeakSet[Connection] = weakref.WeakSet()
"""This side's ends of all workers' pipes; a worker closes those it inherits, or the others' would never end."""


class Slots:
    """Some slots of memory that this process and workers share."""

    def __init__(self, bytes: int, count: int = SLOTS) -> None:
        self.memory = [mmap.mmap(-1, max(bytes, mmap.PAGESIZE)) for _ in range(count)]

    def array(self, slot: int, place: Place) -> Array:
        """An array in a slot, as a view."""
        count = int(np.prod(place.shape))
        return np.frombuffer(self.memory[slot], place.dtype, count, place.begin).reshape(place.shape)


class Worker:
    """One process; `send` and `receive` may be called in turn, up to `SLOTS` requests ahead."""

    def __init__(self, serve: Serve, bytes: int) -> None:
        self.slots = Slots(bytes)
        self.pipe, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # JAX has threads, which a fork leaves behind; the child does not call JAX.
            warnings.simplefilter("ignore")
            self.number = os.fork()
        if self.number == 0:
            _live(serve, self.slots, theirs, [*_pipes, self.pipe])
        theirs.close()
        _pipes.add(self.pipe)
        self.close = weakref.finalize(self, _end, self.number, self.pipe)

    def send(self, slot: int, facts: Any) -> None:
        """Ask for the work in a slot."""
        try:
            self.pipe.send((slot, facts))
        except OSError:
            raise self._gone() from None

    def receive(self) -> Any:
        """The next answer; a `Failed` if there is none."""
        try:
            answer: Answer = self.pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if answer.error is not None:
            raise (answer.kind or Failed)(answer.error)
        return answer.value

    def _gone(self) -> Failed:
        return Failed("a worker process ended before its work was done: killed, or out of memory")


class InThisProcess:
    """The same, where processes cannot be forked: the work is done when it is asked for."""

    def __init__(self, serve: Serve, bytes: int) -> None:
        self.slots, self._serve = Slots(bytes), serve
        self._answers: list[Any] = []
        self.pipe = None

    def send(self, slot: int, facts: Any) -> None:
        """Do the work in a slot."""
        threads = torch.get_num_threads()
        with torch.random.fork_rng(devices=[]):
            torch.set_num_threads(1)
            try:
                self._answers.append(self._serve(self.slots, slot, facts))
            finally:
                torch.set_num_threads(threads)

    def receive(self) -> Any:
        """The next answer."""
        return self._answers.pop(0)

    def close(self) -> None:
        """Nothing to end."""


def start(serve: Serve, bytes: int) -> Worker | InThisProcess:
    """A worker process where the system has safe forks, else this process."""
    return Worker(serve, bytes) if sys.platform == "linux" else InThisProcess(serve, bytes)


def _live(serve: Serve, slots: Slots, pipe: Connection, inherited: list[Connection]) -> None:
    """A worker's life; it never returns to what the process was doing when it was forked."""
    try:
        gc.freeze()  # what the parent had is the parent's to delete
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
        for other in inherited:
            with contextlib.suppress(OSError):
                other.close()
        torch.set_num_threads(1)
        while True:
            slot, facts = pipe.recv()
            try:
                answer = Answer(serve(slots, slot, facts))
            except FedBCError as error:
                answer = Answer(None, str(error), type(error))
            except BaseException as error:
                answer = Answer(None, f"{type(error).__name__}: {error}", None)
            sys.stdout.flush()
            pipe.send(answer)
    except BaseException:
        pass  # the pipe has ended, and so does this
    finally:
        os._exit(0)


def _end(number: int, pipe: Connection) -> None:
    pipe.close()
    with contextlib.suppress(OSError):
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
