"""How the machines of a run come together, and take leave of each other."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax

from fedbc import runtime
from fedbc.errors import InputError
from fedbc.machines import places, waiting, watching, world
from fedbc.machines.world import Machines

_world = Machines()
_LEAVING, _GRACE = 20, 2.0
"""Seconds to wait for the others at the end, and those that they have to take leave."""


def here() -> Machines:
    """The machines of this process: those that it joined, or itself alone."""
    return _world


def join(
    address: str | None = None, index: int | None = None, count: int | None = None, *, seconds: int = 60
) -> Machines:
    """Join the machines of a run, before anything is computed; every machine calls this, and then the same `simulate`.

    address: host:port of machine 0, where all meet.
    index, count: which machine this is, from 0, and how many there are.
    seconds: how long to wait for the others.

    Without the first three a launcher tells: Slurm's `srun` and Open MPI's `mpirun`, or whatever sets MASTER_ADDR,
    MASTER_PORT, RANK and WORLD_SIZE, as `torchrun` does (which listens at that port itself: machines meet at the next).
    """
    global _world
    if not _world.alone:
        raise InputError(f"this process is {_world} already: join is called once")
    if runtime.has_started():
        raise InputError("JAX has computed something already: join the machines before anything else")
    where = places.place(address, index, count)
    if where.count == 1:
        return _world
    if where.index:
        waiting.until_machine_0_answers(where, seconds)
    else:
        waiting.refuse_taken_port(where)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # A lost machine is an exception here, after which there is a checkpoint; JAX's own way is to end all processes.
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)

    def meet() -> None:
        jax.distributed.initialize(
            where.address,
            where.count,
            where.index,
            local_device_ids=where.accelerators,
            initialization_timeout=seconds + 30,
            heartbeat_timeout_seconds=world.SILENCE,
        )

    waiting.until_all_are_there(meet, where, seconds)
    _sum_by_own_address()
    _world = Machines(jax.process_index(), jax.process_count())
    atexit.register(_leave)
    watching.watch(_world)

    with _output_as_errors():
        _world.agree("number of machines", where.count)  # JAX believes machine 0
        _world.agree("software", ", ".join(f"{name} {version}" for name, version in runtime.versions().items()))
    return _world


def _sum_by_own_address() -> None:
    """Let Gloo listen where this machine reaches machine 0 from.

    Left to itself it takes the address that the machine's own name stands for: on many 127.0.0.1, where no other one
    finds it.
    """
    from jax._src import xla_bridge
    from jax._src.distributed import global_state
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    own = _own_address(str(global_state.coordinator_address))

    def client() -> Any:
        gloo = _jax.make_gloo_tcp_collectives(distributed_client=global_state.client, hostname=own)
        return xla_bridge.make_cpu_client(gloo)

    xla_bridge.register_backend_factory("cpu", client, priority=0, fail_quietly=False)


def _own_address(address: str) -> str:
    """This machine's own address on the way to another one's."""
    host, _, port = address.rpartition(":")
    family, kind, _, _, there = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as asking:
        asking.connect(there)  # a datagram's socket sends nothing yet, but knows its way
        return str(asking.getsockname()[0])


@contextmanager
def _output_as_errors() -> Iterator[None]:
    """At the first meeting Gloo says on standard output that it is connected: there, results are expected."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _leave() -> None:
    """At the end of the process. JAX would wait for a machine that was lost, and abort when it does not come."""
    from jax._src.distributed import global_state

    if _world.lost:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(1)
    with suppress(Exception):
        # Machine 0 has the service that the others take leave of: if it went first, JAX would abort them.
        client: Any = global_state.client
        client.wait_at_barrier("fedbc-leaves", _LEAVING * 1000)
    if _world.leads:
        time.sleep(_GRACE)
    with suppress(Exception):
        jax.distributed.shutdown()
