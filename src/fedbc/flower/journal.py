"""What the server keeps of a run: its state, which device's which round it took, history; and the run folder.

checkpoint.safetensors   the server's state and `accepted`, written once per round, of the same size in every round
rounds.jsonl             a line for each round's sum, with its devices' rows, before the round's checkpoint; and one
                         for what was measured after it. It only grows by what is new.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedbc import storage
from fedbc.errors import InputError
from fedbc.runs.deployed import ROUNDS
from fedbc.simulation.description import check_same_run
from fedbc.simulation.diagnostics import RoundReport, report_columns
from fedbc.simulation.result import Result, RunFolder

FORMAT = "fedbc-deployment-3"
CHECK = "crc32"
Row = dict[str, Any]


class Journal:
    """The durable record of one run."""

    def __init__(self, folder: Path, spec: dict[str, Any], server: Any) -> None:
        """A run that begins; `resume` takes over one that began earlier."""
        self.folder, self.spec, self.server = folder, spec, server
        name = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in folder.name).strip(".-_")
        self.run = f"{name[:60] or 'run'}-{secrets.token_hex(8)}"
        self.round = 0
        self.accepted = np.zeros(spec["data"]["devices"], np.int64)
        """the last round whose summand was taken, of each device; 0 if none"""
        self.history: list[Row] = []
        self.device_rows: list[Row] = []
        self.is_measured = True
        """whether the last round's row is complete"""

    @property
    def file(self) -> Path:
        """The checkpoint."""
        return RunFolder(self.folder).checkpoint

    @property
    def lines(self) -> Path:
        """The rounds' rows."""
        return self.folder / ROUNDS

    def resume(self) -> bool:
        """Go on from the folder's checkpoint, if it has one; one of another run is an InputError."""
        if not RunFolder(self.folder).has_checkpoint:
            storage.refuse_existing(self.folder)
            return False
        arrays, facts = storage.read_arrays(self.file)
        if facts.get("format") != FORMAT:
            raise InputError(f"{self.file} has format {facts.get('format')!r}; this version reads {FORMAT}")
        check_same_run(self.file, facts["spec"], self.spec)
        self.server = jax.tree.map(jax.numpy.asarray, storage.restored(self.server, arrays, "server"))
        self.accepted = arrays["accepted"]
        self.run, self.round = facts["run"], facts["round"]
        self._read_lines()
        storage.drop_leftovers(self.file)
        return True

    def save(self) -> None:
        """Write the checkpoint; the devices may be told of its round once this has returned."""
        with storage.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        facts = {"format": FORMAT, "spec": self.spec, "run": self.run, "round": self.round}
        arrays = {**storage.named(self.server, "server"), "accepted": self.accepted}
        storage.write_arrays(self.file, arrays, facts)

    def close_round(self, server: Any, taken: Mapping[int, tuple[int, Mapping[str, float]]]) -> None:
        """Record a round: the server's new state, and (examples, diagnostics) of the devices that were taken."""
        self.server, self.round = server, self.round + 1
        self.accepted[list(taken)] = self.round
        examples, info = zip(*(taken[device] for device in sorted(taken)), strict=True)
        names = tuple(info[0])
        values = np.asarray([[told[name] for name in names] for told in info])
        report = RoundReport(self.round, np.asarray(sorted(taken)), np.asarray(examples), names, values)
        columns = {name: column.tolist() for name, column in report_columns([report]).items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        self._take({"round": self.round, "row": {"round": self.round} | report.means(), "devices": rows}, write=True)

    def close_secure_round(self, server: Any, devices: list[int], row: Row) -> None:
        """Record a round of which only the sum is known: who took part, and means over them."""
        self.server, self.round = server, self.round + 1
        self.accepted[devices] = self.round
        rows = [{"round": self.round, "device": device} for device in devices]
        self._take({"round": self.round, "row": {"round": self.round} | row, "devices": rows}, write=True)

    def complete_row(self, row: Row) -> None:
        """Replace the last round's row of history by one that also has what was measured."""
        self._take({"round": self.round, "measured": row}, write=True)

    def _take(self, line: Row, *, write: bool = False) -> None:
        if write:
            with storage.explained(self.lines):
                self.folder.mkdir(parents=True, exist_ok=True)
                with self.lines.open("a") as file:
                    file.write(json.dumps(line | {CHECK: _check(line)}) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
        if "measured" in line:
            self.history[-1], self.is_measured = line["measured"], True
        else:
            self.history.append(line["row"])
            self.device_rows += line["devices"]
            self.is_measured = False

    def _read_lines(self) -> None:
        """Read the rounds up to the checkpoint's; what was written after it, or in part, is dropped."""
        end = 0
        with contextlib.suppress(FileNotFoundError), self.lines.open("r+b") as file:
            for text in file:
                try:
                    line = json.loads(text) if text.endswith(b"\n") else {"round": self.round + 1}
                    if line["round"] > self.round:
                        break
                    if line.pop(CHECK, None) != _check(line):
                        raise ValueError("its content does not match its checksum")
                    self._take(line)
                except (ValueError, KeyError, IndexError, TypeError) as error:
                    raise InputError(f"{self.lines} is damaged at byte {end}: {error!r}") from None
                end += len(text)
            self._check_rounds()
            file.truncate(end)
        self._check_rounds()

    def _check_rounds(self) -> None:
        if len(self.history) != self.round:
            raise InputError(f"{self.lines} has {len(self.history)} rounds, its checkpoint {self.round}: it is damaged")

    def result(self, global_model: Any) -> Result:
        """The run so far. Local models are not in it: they stay on their devices."""
        import pandas as pd

        devices = pd.DataFrame(self.device_rows)
        fullest: Row = max(self.history, key=lambda row: len(row), default={"round": 0, "seconds": 0.0})
        last = devices.drop_duplicates("device", keep="last").set_index("device") if len(devices) else devices
        population = len(self.accepted)
        duals = [
            last[name].reindex(range(population)).to_numpy() if name in last else np.full(population, np.nan)
            for name in ("multiplier", "tolerance")
        ]
        return Result(
            history=pd.DataFrame(self.history, columns=list(fullest)),
            devices=devices,
            global_model=jax.tree.map(np.asarray, global_model),
            multipliers=duals[0],
            tolerances=duals[1],
            spec=self.spec | {"run": {**self.spec["run"], "rounds": self.round}},
            participants=np.zeros(0, np.int64),
            participants_models=None,
        )


def _check(line: Row) -> int:
    return zlib.crc32(json.dumps(line).encode())
