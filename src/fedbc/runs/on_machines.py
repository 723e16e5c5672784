"""A run that nodes of a Ray cluster share: Ray places a process on each, and starts all anew if one dies."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbc import checks, progress
from fedbc.errors import FedBCError, InputError, MachineLost
from fedbc.runs.in_folders import resume, run_methods
from fedbc.runs.pool import ray_cluster
from fedbc.runs.spec import RunSpec
from fedbc.simulation.result import Result, RunFolder

ATTEMPTS = 3
"""How often machines are started that do not get a round further, before that is given up."""


def run_on_ray(
    specs: Sequence[RunSpec],
    out: str | Path,
    *,
    ray: str,
    machines: int,
    checkpoint_every: int = 20,
    quiet: bool = False,
) -> dict[str, Result]:
    """Run methods on one federation, each shared by machines of a Ray cluster; the results by name, as `run_methods`.

    ray: the cluster's address; "local" starts Ray on this machine.
    machines: how many processes share a run, on nodes of their own where there are as many.
    out: a folder that all of them see. A machine that dies costs the rounds since the last checkpoint.
    """
    checks.integer("machines", machines, at_least=1)
    if not specs:
        raise InputError("specs=[] is not accepted: give at least one specification")
    folder = Path(out).resolve()
    if folder.exists():
        raise InputError(f"out={str(folder)!r} exists already: give another folder")
    rounds = {str(s.algorithm["name"]): s.settings()[0] for s in specs}
    with ray_cluster(ray, lanes=None) as library, progress.shown(quiet=quiet) as display:
        attempts, before = 0, ""
        while not _is_done(folder, rounds):
            try:
                _once(library, list(specs), folder, machines, checkpoint_every)
            except MachineLost as error:
                state = _state(folder)
                attempts = 1 if state != before else attempts + 1
                before = state
                if attempts >= ATTEMPTS:
                    raise
                display.say(f"{error}; the machines start again from {state or 'the beginning'}")
    return {found.read_spec()["algorithm"]["name"]: found.read() for found in RunFolder.find(folder)}


def _is_done(folder: Path, rounds: dict[str, int]) -> bool:
    if not folder.is_dir():
        return False
    done = {str(f.read_spec()["algorithm"]["name"]) for f in RunFolder.find(folder) if f.is_finished}
    return done >= rounds.keys()


def _state(folder: Path) -> str:
    """What the checkpoints are, in words: it changes when the machines get further."""
    return ", ".join(sorted(path.name for path in folder.rglob("checkpoint*"))) if folder.is_dir() else ""


def _once(library: Any, specs: list[RunSpec], folder: Path, machines: int, checkpoint_every: int) -> None:
    """Start the machines and wait for them; MachineLost if one of them dies."""
    remote = library.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(_Machine)
    actors = [remote.remote() for _ in range(machines)]
    try:
        address = library.get(actors[0].address.remote())
        work = [
            actor.run.remote(address, index, machines, specs, str(folder), checkpoint_every)
            for index, actor in enumerate(actors)
        ]
        waiting = list(work)
        while waiting:
            ended, waiting = library.wait(waiting, num_returns=1)
            error = library.get(ended[0])
            if error is not None:
                raise error
    except library.exceptions.RayActorError as error:
        raise MachineLost(f"a machine died: {str(error).splitlines()[0]}") from None
    finally:
        for actor in actors:
            library.kill(actor)


class _Machine:
    """What runs on a node."""

    def address(self) -> str:
        """A free port of this node."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(
        self, address: str, index: int, count: int, specs: list[RunSpec], folder: str, checkpoint_every: int
    ) -> FedBCError | None:
        """Join, and run or go on; the error, if it is one of fedbc's."""
        from fedbc.machines import join

        progress.silence()
        try:
            world = join(address, index, count)
            begun = world.any(Path(folder).is_dir())[0]
            if begun:
                resume(folder, checkpoint_every=checkpoint_every, quiet=True)
            else:
                run_methods(specs, folder, checkpoint_every=checkpoint_every, quiet=True)
        except FedBCError as error:
            return error
        return None
