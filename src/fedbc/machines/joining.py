"""How the machines of a run find each other: an address, a launcher, or the environment that launchers make."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax

from fedbc import checks, runtime
from fedbc.errors import InputError
from fedbc.machines import watching, world
from fedbc.machines.world import Machines

_world = Machines()
_LEAVING, _GRACE = 20, 2.0
"""Seconds to wait for the others at the end, and those that they have to take leave."""

LAUNCHERS = {"SLURM_PROCID": "Slurm", "OMPI_COMM_WORLD_RANK": "Open MPI"}
"""Variables by which JAX itself knows that a launcher started this process."""


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

    Without these a launcher tells: Slurm's `srun` and Open MPI's `mpirun`, or whatever sets MASTER_ADDR, MASTER_PORT,
    RANK and WORLD_SIZE, as `torchrun` does.
    """
    global _world
    if not _world.alone:
        raise InputError(f"this process is {_world} already: join is called once")
    if runtime.has_started():
        raise InputError("JAX has computed something already: join the machines before anything else")
    address, index, count = _from_environment(address, index, count)
    if address is not None:
        assert index is not None
        assert count is not None
        _check(address, index, count)
        if count == 1:
            return _world
        if index:
            _wait_for(address, seconds)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # A lost machine is an exception here, after which there is a checkpoint; JAX's own way is to end all processes.
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)
    with _Patience(seconds, index, count):
        jax.distributed.initialize(
            address, count, index, initialization_timeout=seconds + 30, heartbeat_timeout_seconds=world.SILENCE
        )
    _sum_by_own_address()
    _world = Machines(jax.process_index(), jax.process_count())
    atexit.register(_leave)
    watching.watch(_world)

    with _output_as_errors():
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


def _from_environment(
    address: str | None, index: int | None, count: int | None
) -> tuple[str | None, int | None, int | None]:
    given = address is not None, index is not None, count is not None
    if all(given):
        return address, index, count
    if any(given):
        raise InputError("address, index and count belong together: give all three, or none under a launcher")
    if any(name in os.environ for name in LAUNCHERS):
        return None, None, None
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InputError(
            "nobody says where the machines meet: give address, index and count, or start this by srun, mpirun or "
            f"something that sets {', '.join(names)}"
        )
    host, port, rank, size = (os.environ[name] for name in names)
    try:
        return f"{host}:{port}", int(rank), int(size)
    except ValueError:
        raise InputError(f"RANK={rank!r} and WORLD_SIZE={size!r} are not accepted: give whole numbers") from None


def _check(address: str, index: int, count: int) -> None:
    checks.integer("count", count, at_least=1)
    checks.integer("index", index, at_least=0)
    if index >= count:
        raise InputError(f"index={index} is not accepted: with count={count} give a number from 0 to {count - 1}")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"address={address!r} is not accepted: give host:port of machine 0, such as 10.0.0.1:9000")
    try:
        socket.getaddrinfo(host, int(port))
    except OSError as error:
        raise InputError(f"address={address!r} is not accepted: {error.strerror or error}") from None


def _wait_for(address: str, seconds: int) -> None:
    """Until machine 0 listens; JAX itself would end the process with a stack trace of its own."""
    host, _, port = address.rpartition(":")
    ends = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > ends:
                raise InputError(
                    f"nobody answers at {address} ({error.strerror or error}): is machine 0 started, and is this its "
                    "address?"
                ) from None
            time.sleep(0.2)


class _Patience:
    """Ends the process with one line if the machines are not complete in time: nothing else ends JAX's waiting."""

    def __init__(self, seconds: int, index: int | None, count: int | None) -> None:
        who = "this machine" if index is None else f"machine {index} of {count}"
        self.text = f"fedbc: {who} waited {seconds} seconds for the others, and not all of them came"
        self.timer = threading.Timer(seconds, self._give_up)
        self.timer.daemon = True

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()

    def _give_up(self) -> None:
        os.write(2, f"{self.text}\n".encode())
        os._exit(2)


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
