"""A run that nodes of a Ray cluster share: Ray places a process on each, and starts all anew if one dies."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from fedbc import checks, progress, runtime
from fedbc.errors import FedBCError, InputError, MachineLost
from fedbc.runs.live import Follower
from fedbc.runs.outcome import Row
from fedbc.runs.pool import enter, ray_cluster
from fedbc.simulation import checkpoints
from fedbc.simulation.result import RunFolder

ATTEMPTS = 3
"""How often machines are started that do not get a round further, before that is given up."""
LOOK_SECONDS = 0.5
"""How often the process that waits for the machines looks how far they are."""
ROOM_SECONDS = 30
"""After so many seconds without room for all machines on the cluster, that is told."""
Told = Mapping[RunFolder, Callable[[Row], None]]
"""Who is told each round of a folder's run."""


def share(work: Callable[[], object], told: Told, *, ray: str, machines: int, say: Callable[[str], None]) -> None:
    """Let machines of a Ray cluster do one work together, which begins runs in their folders or goes on with them.

    work: what each of them does once they have joined; can be sent to another process.
    ray: the cluster's address; "local" starts Ray on this machine.
    machines: how many processes share the work, on nodes of their own where there are as many.
    """
    checks.integer("machines", machines, at_least=1)
    cores = runtime.usable_cores()
    if ray == "local" and machines > cores:
        raise InputError(f"machines={machines} is not accepted: each takes a core, and this machine has {cores}")
    followed = [_Followed(folder, function) for folder, function in told.items()]

    def look() -> None:
        for one in followed:
            one.look()

    with ray_cluster(ray, lanes=None) as library:
        attempts, before = 0, ""
        fresh = [folder.checkpoint for folder in told if not checkpoints.exists(folder.checkpoint)]
        while True:
            try:
                _once(library, work, machines, look, say)
                return look()
            except MachineLost as error:
                for file in fresh:
                    checkpoints.drop_unfinished(file)
                state = _state(told)
                attempts = 1 if state != before else attempts + 1
                before = state
                if attempts >= ATTEMPTS:
                    raise
                say(f"{error}; the machines start again from {state or 'the beginning'}")


class _Followed:
    """Tells the rounds of a run that others do, each once, though the machines may do some of them again."""

    def __init__(self, folder: RunFolder, function: Callable[[Row], None]) -> None:
        self.follower, self.function = Follower(folder), function
        self.last = self._read()[-1:]

    def _read(self) -> list[Row]:
        self.follower.refresh()
        return [*self.follower.rows]

    def look(self) -> None:
        """Tell what is new."""
        last = self.last[0]["round"] if self.last else 0
        for row in self._read():
            if row["round"] > last:
                # The live history has null where a number is not finite.
                self.function({key: math.nan if value is None else value for key, value in row.items()})
                self.last = [row]


def _state(told: Told) -> str:
    """What the checkpoints are, in words: it changes when the machines get further."""
    folders = [folder for folder in told if folder.path.is_dir()]
    return ", ".join(sorted(file.name for folder in folders for file in folder.path.glob("checkpoint*")))


def _once(
    library: Any, work: Callable[[], object], machines: int, look: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Start the machines and wait for them; MachineLost if one of them dies."""
    remote = library.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(_Machine)
    actors = [remote.remote() for _ in range(machines)]
    try:
        address = _placed(library, actors, say)
        waiting = [actor.run.remote(address, index, machines, os.getcwd(), work) for index, actor in enumerate(actors)]
        while waiting:
            ended, waiting = library.wait(waiting, num_returns=1, timeout=LOOK_SECONDS)
            look()
            for one in ended:
                error = library.get(one)
                if error is not None:
                    raise error
    except library.exceptions.RayActorError as error:
        raise MachineLost(f"a machine died: {str(error).splitlines()[0]}") from None
    finally:
        for actor in actors:
            library.kill(actor)


def _placed(library: Any, actors: list[Any], say: Callable[[str], None]) -> str:
    """Wait until Ray has found a place for each machine: where the first one can be met."""
    addresses = [actor.address.remote() for actor in actors]
    _, missing = library.wait(addresses, num_returns=len(actors), timeout=ROOM_SECONDS)
    if missing:
        say(
            f"Ray has no room yet for {len(missing)} of {len(actors)} machines, each of which takes a core; "
            f"the cluster has {library.cluster_resources().get('CPU', 0):g}"
        )
    first, *_ = library.get(addresses)
    return first


class _Machine:
    """What runs on a node."""

    def address(self) -> str:
        """A free port of this node."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, address: str, index: int, count: int, folder: str, work: Callable[[], object]) -> FedBCError | None:
        """Join, and do the work; the error, if it is one of fedbc's."""
        from fedbc.machines import join

        progress.silence()
        enter(folder)
        try:
            join(address, index, count)
            work()
        except FedBCError as error:
            return error
        return None
