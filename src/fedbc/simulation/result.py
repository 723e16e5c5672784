"""What a run gives back, and how it is kept: a folder of JSON, CSV and safetensors files."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedbc import storage
from fedbc.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "fedbc-result-1"


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    history: one row a round; the columns are defined in `fedbc.simulation.metrics`, `seconds` is the wall time.
    devices: one row a round and sampled device: examples, multiplier (lambda_i), tolerance (gamma_i),
        drift (‖x_i - z‖²), loss (mean over its local steps), coefficient (its share in the server's mean) and
        coefficient_by_examples (n_i / Σ n, for comparison).
    global_model: z, a pytree.
    multipliers, tolerances: lambda_i and gamma_i of every device; NaN for methods that have none.
    spec: algorithm, model, data and run as plain values, with the versions that computed it.
    """

    history: pd.DataFrame
    devices: pd.DataFrame
    global_model: Any
    multipliers: np.ndarray
    tolerances: np.ndarray
    spec: dict[str, Any]
    participants: np.ndarray = field(repr=False)
    """the devices that took part at least once"""
    participants_models: Any = field(repr=False)
    """their local models, stacked in the same order; None if they stay on real devices"""

    @functools.cached_property
    def local_models(self) -> Any:
        """x_i of every device, with a leading device axis; a device that never took part has z."""
        if self.participants_models is None:
            raise InputError("the local models of a deployment stay on their devices: see fedbc.flower.read_state")

        def fill(z: Any, stack: Any) -> np.ndarray:
            whole = np.repeat(np.asarray(z)[None], len(self.multipliers), axis=0)
            whole[self.participants] = stack
            return whole

        return jax.tree.map(fill, self.global_model, self.participants_models)

    @property
    def rounds(self) -> int:
        """How many rounds were run."""
        return len(self.history)

    def summary(self, last: int = 20) -> dict[str, Any]:
        """The run in a few numbers: means over the evaluated ones of its `last` rounds, and its wall time."""
        evaluated = self.history.dropna(subset=["global_test_loss"]) if "global_test_loss" in self.history else None
        out: dict[str, Any] = {"rounds": self.rounds, "seconds": float(self.history["seconds"].sum())}
        if evaluated is None or evaluated.empty:
            return out
        tail = evaluated[evaluated["round"] > self.rounds - last]
        out |= {"last_rounds": last, "evaluated_of_them": len(tail)}
        skip = {"round", "seconds", "train_seconds"}
        for column in tail.columns:
            if column not in skip:
                out[column] = float(tail[column].mean())
        return out

    def save(self, path: str | Path) -> Path:
        """Write the result to a new folder, which appears only when it is complete."""
        target = Path(path)
        with storage.new_folder(target) as folder:
            self.write_into(folder)
        return target

    def write_into(self, folder: Path) -> None:
        """Write the result's files into an existing folder; summary.json comes last, as the sign of completeness."""
        storage.write_atomically(folder / "spec.json", storage.to_json(self.spec))
        storage.write_atomically(folder / "history.csv", self.history.to_csv(index=False))
        storage.write_atomically(folder / "devices.csv", self.devices.to_csv(index=False))
        arrays = {
            **storage.named(self.global_model, "global"),
            **storage.named(self.participants_models, "local"),  # nothing, if they stay on their devices
            "participants": self.participants,
            "multipliers": self.multipliers,
            "tolerances": self.tolerances,
        }
        storage.write_arrays(folder / "models.safetensors", arrays, {"format": FORMAT})
        storage.write_atomically(folder / "summary.json", storage.to_json(self.summary()))


def load(path: str | Path) -> Result:
    """Read a result that `Result.save` or `fedbc run` wrote; parameters come back as nested dicts of arrays."""
    import pandas as pd

    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder with a run")
    if not (folder / "models.safetensors").exists():
        hint = f"; it was not finished: go on with fedbc run --resume {folder}" if has_checkpoint(folder) else ""
        raise InputError(f"{folder} does not hold a finished run (no models.safetensors){hint}")
    arrays, facts = storage.read_arrays(folder / "models.safetensors")
    if facts.get("format") != FORMAT:
        raise InputError(f"{folder}/models.safetensors has format {facts.get('format')!r}; this version reads {FORMAT}")
    try:
        spec = json.loads((folder / "spec.json").read_text())
        history = pd.read_csv(folder / "history.csv")
        devices = pd.read_csv(folder / "devices.csv")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is damaged: {error}") from None
    return Result(
        history=history,
        devices=devices,
        global_model=storage.nested(arrays, "global"),
        multipliers=arrays["multipliers"],
        tolerances=arrays["tolerances"],
        spec=spec,
        participants=arrays["participants"],
        participants_models=storage.nested(arrays, "local") or None,
    )


def has_checkpoint(folder: Path) -> bool:
    """Whether a run was begun there."""
    return (folder / "checkpoint.safetensors").exists()
