"""A run's whole state, kept and taken over: one file, or where machines share the run one part per machine.

A part holds the devices that its machine owns, and all that the machines have in common. Parts are valid only as a
whole: the last whole set stays until the next one is complete, whenever a machine dies.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedbc import storage
from fedbc.errors import InputError
from fedbc.machines.world import Machines
from fedbc.simulation.description import check_same_run
from fedbc.simulation.diagnostics import Diagnostics

if TYPE_CHECKING:
    from fedbc.simulation.rounds import Simulation

FORMAT = "fedbc-checkpoint-1"
_PART = re.compile(r"-round-(\d+)-machine-(\d+)-of-(\d+)$")
_KNOWN = 4
"""How many rounds machines tell each other of: between two checkpoints there are at most two."""


class Part(NamedTuple):
    """One machine's part of a checkpoint."""

    round: int
    machine: int
    machines: int

    def beside(self, file: Path) -> Path:
        """Its file; `file` is that of a checkpoint as a whole."""
        name = f"{file.stem}-round-{self.round}-machine-{self.machine}-of-{self.machines}{file.suffix}"
        return file.with_name(name)


@dataclass
class Checkpoint:
    """A run's checkpoint, and how often it is kept: after so many rounds, or seconds, and at the end."""

    file: Path
    every: int | None = None
    seconds: float | None = None
    at_the_end: bool = True
    _kept_at: float = field(default_factory=time.perf_counter, repr=False)

    def is_due(self, number: int) -> bool:
        """Whether the state after this round is to be kept."""
        if self.seconds is not None and time.perf_counter() - self._kept_at > self.seconds:
            return True
        return self.every is not None and number % self.every == 0

    def keep(self, run: Simulation) -> None:
        """Write the state."""
        machines = run.machines
        if machines.alone:
            _save(run, self.file)
            superseded = list(parts(self.file))
        else:
            own = Part(run.round, machines.index, machines.count)
            machines.together("write its part of the checkpoint", lambda: _save(run, own.beside(self.file)))
            mine = [p for p in parts(self.file) if p.machine == machines.index or machines.leads]
            superseded = [p for p in mine if (p.round, p.machines) != (own.round, own.machines)]
            if machines.leads:
                self.file.unlink(missing_ok=True)
        for part in superseded:
            part.beside(self.file).unlink(missing_ok=True)
        self._kept_at = time.perf_counter()

    def restore(self, run: Simulation, *, missing: str = "begin") -> None:
        """Have a run take over the state that was kept; one of another run, or a damaged one, is an InputError.

        missing: what to do if there is none: "begin" leaves the run at its beginning, "refuse" is an InputError.
        """
        files = run.machines.together("find its checkpoint", lambda: find(self.file, run.machines))
        if not files and missing == "begin":
            return
        run.machines.together("read its checkpoint", lambda: _restore(run, files or [self.file]))


def exists(file: Path) -> bool:
    """Whether a run can go on from here."""
    return file.exists() or any(parts(file))


def is_whole(file: Path) -> bool:
    """Whether a checkpoint lies here of which nothing is missing."""
    return file.exists() or any(len(found) == count for (_, count), found in _sets(file).items())


def drop_unfinished(file: Path) -> None:
    """Remove the parts of a run's first checkpoint if a machine died before all were written; no other is kept yet."""
    if not is_whole(file):
        for part in parts(file):
            part.beside(file).unlink(missing_ok=True)


def parts(file: Path) -> list[Part]:
    """The parts that lie beside a checkpoint's file."""
    if not file.parent.is_dir():
        return []
    found = [_PART.search(path.stem) for path in file.parent.glob(f"{file.stem}-round-*{file.suffix}")]
    return sorted(Part(*map(int, match.groups())) for match in found if match)


def _sets(file: Path) -> dict[tuple[int, int], list[Part]]:
    """The parts that belong together, by round and number of machines."""
    sets: dict[tuple[int, int], list[Part]] = {}
    for part in parts(file):
        sets.setdefault((part.round, part.machines), []).append(part)
    return sets


def find(file: Path, machines: Machines) -> list[Path]:
    """The files of the newest whole checkpoint; none if there is no checkpoint. All machines find the same round.

    Where machines do not share a folder, as many machines as before can each go on from their own part.
    """
    sets = _sets(file)
    usable: dict[int, list[Path]] = {}
    for (number, count), found in sets.items():
        own = [part for part in found if count == machines.count and part.machine == machines.index]
        if len(found) == count or own:
            usable[number] = [part.beside(file) for part in (found if len(found) == count else own)]
    if file.exists():
        usable[0] = [file]  # it is there only if nothing newer is
    rounds = np.full(_KNOWN, -1)
    newest = sorted(usable, reverse=True)[:_KNOWN]
    rounds[: len(newest)] = newest
    told = machines.gather(rounds)
    common = [number for number in newest if all(number in row for row in told)]
    if common:
        return usable[common[0]]
    if sets or (told >= 0).any():
        lying = ", ".join(part.beside(file).name for part in parts(file)) or "nothing"
        raise InputError(
            f"{file.parent} holds no whole checkpoint: {lying}; all machines' parts of a round are needed (or none: "
            "delete them to begin anew)"
        )
    return []


def _save(run: Simulation, file: Path) -> None:
    """Write the whole state to one file, atomically."""
    columns = run.diagnostics.columns()
    arrays = {
        **storage.named(run.server, "server"),
        **storage.named(run.store.stacks, "devices"),
        "participants": run.store.devices,
        **{f"scores.{k}": v for k, v in run.evaluator.state().items()},
        **{f"device_rows.{k}": v for k, v in columns.items()},
    }
    facts = {
        "format": FORMAT,
        "round": run.round,
        "spec": run.spec,
        "history": run.history,
        "device_columns": list(columns),
    }
    storage.write_arrays(file, arrays, facts)


def _restore(run: Simulation, files: list[Path]) -> None:
    """From one file, or from one per machine; what other machines own is left to them."""
    own = np.ones(run.federation.devices, bool)
    if run.federation.owned is not None:
        own = np.isin(np.arange(run.federation.devices), run.federation.owned)
    read = [_read(file, run.spec) for file in files]
    arrays, facts = read[0]
    run.server = run.engine.lanes.put(storage.restored(run.server, arrays, "server"))[0]
    kept = [own[part["participants"]] for part, _ in read]
    stacks = [
        jax.tree.map(lambda a, k=k: a[k], storage.restored(run.store.template, part, "devices"))
        for (part, _), k in zip(read, kept, strict=True)
    ]
    participants = [part["participants"][k] for (part, _), k in zip(read, kept, strict=True)]
    run.store.restore(np.concatenate(participants), jax.tree.map(lambda *a: np.concatenate(a), *stacks))
    run.evaluator.restore([_under("scores.", part) for part, _ in read])
    columns = _under("device_rows.", arrays)
    diagnostics = Diagnostics({name: columns[name] for name in facts["device_columns"]})
    run.stand_after(facts["round"], facts["history"], diagnostics)


def _read(file: Path, spec: dict[str, Any]) -> tuple[storage.Arrays, dict[str, Any]]:
    arrays, facts = storage.read_arrays(file)
    if facts.get("format") != FORMAT:
        raise InputError(f"{file} has format {facts.get('format')!r}; this version reads {FORMAT}")
    check_same_run(file, facts["spec"], spec)
    return arrays, facts


def _under(prefix: str, arrays: storage.Arrays) -> storage.Arrays:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
