"""Which machine this is and where all meet: as told, or as the launcher that started it says."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from fedbc import checks
from fedbc.errors import InputError

LAUNCHERS = {"OMPI_COMM_WORLD_RANK": ("ompi", "Open MPI"), "SLURM_PROCID": ("slurm", "Slurm")}
"""Variables of the launchers whose meeting point JAX finds; its name for them, and theirs. Slurm comes second, for its
variables are there, too, where mpirun runs within a job of Slurm's."""
NUMBERS = {"RANK": "WORLD_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}
"""Variables that number the processes, and those that say how many there are."""


@dataclass(frozen=True)
class Place:
    """One machine's place among those that share a run."""

    address: str
    """host:port of machine 0, where all meet"""
    index: int
    count: int
    accelerators: Sequence[int] | None = None
    """numbers of the accelerators that are this process's, where a launcher starts several on a machine"""

    def __str__(self) -> str:
        return f"machine {self.index} of {self.count}"

    def host_and_port(self) -> tuple[str, int]:
        """The two parts of the address."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)


def place(address: str | None, index: int | None, count: int | None) -> Place:
    """The place as told, or as the environment has it."""
    if address is not None and index is not None and count is not None:
        found = Place(address, index, count)
    elif (address, index, count) != (None, None, None):
        raise InputError("address, index and count belong together: give all three, or none under a launcher")
    else:
        found = _of_variables() or _of_launcher()
    _check(found)
    return found


def _of_variables() -> Place | None:
    """MASTER_ADDR and MASTER_PORT say where; who is who, they or the launcher."""
    if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return None
    names = [pair for pair in NUMBERS.items() if set(pair) <= os.environ.keys()]
    if not names:
        return None
    values = {name: os.environ[name] for name in ("MASTER_PORT", *names[0])}
    for name, value in values.items():
        if not value.isdecimal():
            raise InputError(f"{name}={value!r} is not accepted: give a whole number")
    port, index, count = map(int, values.values())
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun itself listens at its port
        port += 1
    local = os.environ.get("LOCAL_RANK", "")
    several = os.environ.get("LOCAL_WORLD_SIZE", "1") != "1"
    host = os.environ["MASTER_ADDR"]
    host = f"[{host}]" if ":" in host else host
    return Place(f"{host}:{port}", index, count, [int(local)] if several and local.isdecimal() else None)


def _of_launcher() -> Place:
    """JAX knows how Slurm and Open MPI tell where their processes run."""
    from jax._src.clusters import ClusterEnv

    started = [names for variable, names in LAUNCHERS.items() if variable in os.environ]
    for method, _ in started:
        known = next(one for one in ClusterEnv._cluster_types if one.name == method)
        if known.is_env_present():
            told = os.environ.get("JAX_COORDINATOR_ADDRESS")
            found = ClusterEnv.auto_detect_unset_distributed_params(told, None, None, None, method, None)
            address, count, index, accelerators = found
            assert address is not None
            assert index is not None
            assert count is not None
            return Place(address, index, count, accelerators)
    if started:
        raise InputError(
            f"{started[0][1]} does not say where the machines meet: start this by its srun or mpirun, and if it is, "
            "set MASTER_ADDR to machine 0 and MASTER_PORT to a free port there, alike for all"
        )
    raise InputError(
        "nobody says where the machines meet: give address, index and count, or start this by srun, mpirun or "
        "something that sets MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE"
    )


def _check(place: Place) -> None:
    checks.integer("count", place.count, at_least=1)
    checks.integer("index", place.index, at_least=0)
    if place.index >= place.count:
        raise InputError(
            f"index={place.index} is not accepted: with count={place.count} give a number from 0 to {place.count - 1}"
        )
    host, _, port = place.address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(
            f"address={place.address!r} is not accepted: give host:port of machine 0, such as 10.0.0.1:9000"
        )
    try:
        socket.getaddrinfo(*place.host_and_port())
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"address={place.address!r} is not accepted: {reason}") from None
