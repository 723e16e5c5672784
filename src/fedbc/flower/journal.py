"""What the server keeps of a run: its state, which device's which round it took, history; and the run folder."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedbc import storage
from fedbc.errors import InputError
from fedbc.simulation.result import Result, has_checkpoint
from fedbc.simulation.simulate import CHECKPOINT, check_same_run

FORMAT = "fedbc-deployment-1"
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

    @property
    def file(self) -> Path:
        """The checkpoint."""
        return self.folder / CHECKPOINT

    def resume(self) -> bool:
        """Go on from the folder's checkpoint, if it has one; one of another run is an InputError."""
        if not has_checkpoint(self.folder):
            storage.refuse_existing(self.folder)
            return False
        arrays, facts = storage.read_arrays(self.file)
        if facts.get("format") != FORMAT:
            raise InputError(f"{self.file} has format {facts.get('format')!r}; this version reads {FORMAT}")
        check_same_run(self.file, facts["spec"], self.spec)
        self.server = jax.tree.map(jax.numpy.asarray, storage.restored(self.server, arrays, "server"))
        self.accepted = arrays["accepted"]
        self.run, self.round = facts["run"], facts["round"]
        self.history, self.device_rows = facts["history"], facts["device_rows"]
        return True

    def save(self) -> None:
        """Write the checkpoint; the devices may be told of its round once this has returned."""
        with storage.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "format": FORMAT,
            "spec": self.spec,
            "run": self.run,
            "round": self.round,
            "history": self.history,
            "device_rows": self.device_rows,
        }
        arrays = {**storage.named(self.server, "server"), "accepted": self.accepted}
        storage.write_arrays(self.file, arrays, facts)

    def close_round(self, server: Any, taken: Mapping[int, tuple[int, Mapping[str, float]]]) -> None:
        """Record a round: the server's new state, and (examples, diagnostics) of the devices that were taken."""
        self.server, self.round = server, self.round + 1
        self.accepted[list(taken)] = self.round
        weights = {device: info.get("weight", np.nan) for device, (_, info) in taken.items()}
        total, examples = sum(weights.values()), sum(n for n, _ in taken.values())
        for device, (n, info) in sorted(taken.items()):
            shown = {name: value for name, value in info.items() if name != "weight"}
            coefficient = weights[device] / total if total > 0 else 1 / len(taken) if total == 0 else np.nan
            self.device_rows.append(
                {"round": self.round, "device": device, "examples": n, **shown}
                | {"coefficient": coefficient, "coefficient_by_examples": n / examples}
            )
        means = {
            name: float(np.mean([info.get(key, np.nan) for _, info in taken.values()]))
            for name, key in (("drift", "drift"), ("local_loss", "loss"))
        }
        self.history.append({"round": self.round} | means)

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
