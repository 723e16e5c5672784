"""The options of a run that several machines share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from fedbc.cli.options import ray_option
from fedbc.errors import InputError
from fedbc.machines import Machines, here
from fedbc.machines import join as join_machines

F = TypeVar("F", bound=Callable[..., object])

AUTO = "auto"


def options(command: F) -> F:
    """A command's options that say which machines share a run."""
    for option in (
        ray_option("Let --machines N processes of a Ray cluster share the run, which start anew if one dies"),
        click.option("--meet", metavar="HOST:PORT", help="Where they meet: an address of machine 0."),
        click.option("--machine", type=click.IntRange(0), help="Which of them this is, from 0."),
        click.option(
            "--machines",
            metavar="N|auto",
            help="How many machines share the run; `auto` where srun, mpirun or torchrun starts it on each.",
        ),
    ):
        command = option(command)
    return command


def on_ray(ray: str | None, machines: str | None, machine: int | None, meet: str | None) -> int:
    """How many machines Ray is to start; 1 where it is not asked for."""
    if ray is None:
        return 1
    if machine is not None or meet is not None:
        raise InputError(f"--ray {ray} takes no --machine and --meet: Ray places the machines")
    if machines is None:
        raise InputError(f"--ray {ray} needs --machines N: how many processes share the run")
    return _number(machines)


def _number(machines: str) -> int:
    if not machines.isdecimal() or int(machines) < 1:
        raise InputError(f"machines={machines!r} is not accepted: give a whole number, or auto")
    return int(machines)


def join(machines: str | None, machine: int | None, meet: str | None) -> Machines:
    """Join the machines, if there are several."""
    if machines is None:
        if machine is not None or meet is not None:
            raise InputError("machines is missing: --machine and --meet go with --machines N")
        return here()
    if machines == AUTO:
        if machine is not None or meet is not None:
            raise InputError("machines='auto' takes no --machine and --meet: the launcher tells them")
        return join_machines()
    count = _number(machines)
    if machine is None or meet is None:
        raise InputError(
            f"--machines {machines} needs --machine (which this is, from 0) and --meet HOST:PORT, or --ray"
        )
    return join_machines(meet, machine, count)
