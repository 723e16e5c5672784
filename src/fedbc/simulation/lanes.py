"""Lanes: the same compiled function on several shares of the work at once, one thread per core (or an accelerator).

XLA computes in the thread that asks for it (see `fedbc.runtime`), with Python's lock free, so threads are all that
parallel lanes need. Lanes can also meet within compiled code, each on an XLA device of its own (`shard_map`): a call
takes longer then, a meeting less time than a return to Python. That pays for tiny models, many rounds per call.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from fedbc import runtime
from fedbc.rewriting import rewritten

STARTING = 0.0003
"""Seconds that the lanes need Python's lock for to start computing; what is done meanwhile would take it from them."""

LANE = "lane"
"""The name of the lanes' axis in code where they meet."""

Copies = list[Any]
"""A value for each thread of the lanes, on the device where the thread computes."""


class Lanes:
    """So many lanes, spread over threads; on an accelerator a thread has several lanes, batched (`vmap`)."""

    def __init__(self, count: int, *, threads: bool = True) -> None:
        """`threads=False` works through the lanes one after the other, for debugging."""
        self.count = count
        self.devices = runtime.lane_devices(count)
        self.width = count // len(self.devices)
        """lanes per thread"""
        self._threads = _threads(len(self.devices)) if threads and len(self.devices) > 1 else []
        meeting = runtime.meeting_devices(count)
        self.mesh = Mesh(meeting, (LANE,), axis_types=(AxisType.Auto,)) if meeting else None
        """where the lanes can meet; None if they cannot"""

    def put(self, tree: Any) -> Copies:
        """A value of the host that all lanes read. On a CPU it is placed once, in the host's memory where it can."""
        return self.share(jax.device_put(tree, self.devices[0], may_alias=True))

    def share(self, tree: Any) -> Copies:
        """A value on the first thread's device, for all lanes."""
        copies = {d: tree if d == self.devices[0] else jax.device_put(tree, d) for d in dict.fromkeys(self.devices)}
        return [copies[d] for d in self.devices]

    def gathered(self, parts: list[Any]) -> list[Any]:
        """The threads' outcomes, all on the first one's device."""
        first = self.devices[0]
        own = zip(parts, self.devices, strict=True)
        return [part if device == first else jax.device_put(part, first) for part, device in own]

    def program(self, function: Callable[..., Any], *, tiny: bool = False) -> Any:
        """What a thread runs, to be compiled: the work of its lanes. `tiny` work has no calls (see `fedbc.runtime`)."""

        def lanes_of_thread(own: Any, *shared: Any) -> Any:
            if self.width > 1:
                return jax.vmap(lambda one: function(one, *shared))(own)
            outcome = function(jax.tree.map(lambda a: a[0], own), *shared)
            return jax.tree.map(lambda a: a[None], outcome)

        return jax.jit(rewritten(lanes_of_thread), compiler_options=runtime.without_calls() if tiny else None)

    def compiled(self, function: Callable[..., Any], *, tiny: bool = False) -> Callable[..., list[Any]]:
        """`function(own, *shared)` is one lane's work; the result takes all lanes' `own`, stacked, and Copies.

        It returns one outcome per thread, with a leading axis for the thread's lanes. `meanwhile`, if given, is called
        once while the lanes compute.
        """
        start = self._starter(self.program(function, tiny=tiny))

        def run(own: Any, *shared: Copies, meanwhile: Callable[[], object] | None = None) -> list[Any]:
            arguments = [
                (jax.tree.map(lambda a, i=i: a[i * self.width : (i + 1) * self.width], own), *copies)
                for i, copies in enumerate(zip(*shared, strict=True) if shared else [()] * len(self.devices))
            ]
            return start(arguments, meanwhile)

        return run

    def meeting(self, function: Callable[..., Any], *, tiny: bool = False) -> Callable[..., Any]:
        """Like `compiled`, for lanes that meet: `function` may call `exchanged`, and its outcome must be the same in
        all lanes. What they share is given once, by the host or by `everywhere`; there is one outcome."""
        start = self._starter(self.meeting_program(function, tiny=tiny))

        def run(own: Any, *shared: Any, meanwhile: Callable[[], object] | None = None) -> Any:
            return start([(own, shared)], meanwhile)[0]

        return run

    def meeting_program(self, function: Callable[..., Any], *, tiny: bool = False) -> Any:
        """What the lanes that meet run, to be compiled."""
        assert self.mesh is not None

        one = rewritten(function)

        def lane(own: Any, shared: Any) -> Any:
            return one(jax.tree.map(lambda a: a[0], own), *shared)

        own, same = Spec(LANE), Spec()
        lanes = jax.shard_map(lane, mesh=self.mesh, in_specs=(own, same), out_specs=same, check_vma=False)
        return jax.jit(lanes, compiler_options=runtime.without_calls() if tiny else None)

    def everywhere(self, copies: Copies) -> Any:
        """A value that `put` placed, on every device of the lanes that meet."""
        assert self.mesh is not None
        return jax.device_put(copies[0], NamedSharding(self.mesh, Spec()))

    def _starter(self, program: Any) -> Callable[..., list[Any]]:
        """A function that calls a compiled program with some tuples of arguments, each in a thread."""
        known = False

        def start(arguments: list[Any], meanwhile: Callable[[], object] | None) -> list[Any]:
            nonlocal known
            if known and self._threads:
                return _in_threads(self._threads[: len(arguments)], program, arguments, meanwhile)
            # The first time one after the other: the first of them compiles for all.
            outcomes = [jax.block_until_ready(program(*own)) for own in arguments]
            known = True
            if meanwhile is not None:
                meanwhile()
            return outcomes

        return start


def exchanged(tree: Any) -> Any:
    """Within `Lanes.meeting`: every lane's value, with a leading axis for the lanes."""
    return jax.lax.all_gather(tree, LANE)


class _Thread:
    """A thread that waits for work. It keeps to one core, else the scheduler often leaves two lanes on the same."""

    def __init__(self, number: int) -> None:
        self.work: queue.SimpleQueue = queue.SimpleQueue()
        self.number = number
        threading.Thread(target=self._serve, name=f"fedbc-lane-{number}", daemon=True).start()

    def _serve(self) -> None:
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[self.number % len(cores)]})
        while True:
            call, arguments, wide, outcome = self.work.get()
            try:
                with jax.enable_x64(wide):  # settings made by a context manager hold for the asking thread only
                    outcome.put((jax.block_until_ready(call(*arguments)), None))
            except BaseException as error:
                outcome.put((None, error))


_all_threads: list[_Thread] = []
_making_threads = threading.Lock()


def _threads(count: int) -> list[_Thread]:
    """The process's first `count` lane threads; all runs share them."""
    with _making_threads:
        while len(_all_threads) < count:
            _all_threads.append(_Thread(len(_all_threads)))
    return _all_threads[:count]


def _in_threads(
    threads: list[_Thread], call: Any, work: list[Any], meanwhile: Callable[[], object] | None
) -> list[Any]:
    wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    outcomes: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in threads]
    for thread, arguments, outcome in zip(threads, work, outcomes, strict=True):
        thread.work.put((call, arguments, wide, outcome))
    try:
        if meanwhile is not None:
            time.sleep(STARTING)
            meanwhile()
    finally:  # whatever happens here, the lanes come to their end before the caller goes on
        done = [outcome.get() for outcome in outcomes]
    for _, error in done:
        if error is not None:
            raise error
    return [value for value, _ in done]
