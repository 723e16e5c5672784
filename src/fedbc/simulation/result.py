"""What a run gives back, and the folder that keeps it: JSON, CSV and safetensors files."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedbc import checks, storage, trees
from fedbc.algorithms.domains import domain_from
from fedbc.data import Meaning
from fedbc.errors import InputError
from fedbc.simulation import checkpoints
from fedbc.simulation.answers import Metrics, answer_table, evaluate, predict
from fedbc.simulation.curves import curves, draw_curves
from fedbc.simulation.ending import COLUMN, Reason
from fedbc.simulation.telling import html, title_of, words

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "fedbc-result-1"
DEEP = 3
"""How many levels below a folder its runs may lie."""


class State(NamedTuple):
    """What a run needs to go on: the server's state, and those of the devices that took part."""

    server: Any
    participants: np.ndarray
    devices: Any
    """stacked in the order of the participants; from a file, its arrays by their names"""
    from_file: bool = False


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    history: one row per round; the columns are defined in `fedbc.simulation.metrics`, `seconds` is the wall time.
    devices: one row per round and sampled device: examples, multiplier (lambda_i), tolerance (gamma_i),
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
    meaning: Meaning = field(default=Meaning(), repr=False)
    """the names of devices and classes, and how a table's columns were encoded"""
    state: State | None = field(default=None, repr=False, compare=False)
    """what `simulate(initial=...)` goes on from; of a result read from a folder, it is in the folder's checkpoint"""
    diverged: str | None = None
    """why training ended before its last round, if it diverged: everything here is of the rounds before"""
    source: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)
    """gives the "model" and the "data" that the run was made with"""

    def __repr__(self) -> str:
        return words(self)

    def _repr_html_(self) -> str:
        return html(self)

    def part(self, which: str) -> Any:
        """The "model" or the "data" that the run was made with; an InputError where nobody says how to build it."""
        if self.source is None:
            raise InputError(
                f"the result does not know its {which}: give it by fedbc.load(folder, model=..., data=...)"
            )
        return self.source(which)

    def predict(self, x: Any, device: Any = None, *, probabilities: bool = False) -> np.ndarray:
        """Answer new examples: classes by name, or by number if they have no names, or quantities.

        x: an array of examples as the federation has them, or a table with the columns that the model learned from.
        device: whose own model answers, by name or number; a list with one for each example; None is the global model.
        probabilities: give each class's probability instead, in the order of `meaning.class_names`.
        """
        return predict(self, x, device, probabilities)

    def answer_table(self, frame: pd.DataFrame, *, device: Any = None, local: bool = False) -> pd.DataFrame:
        """A table with its rows answered: the columns "prediction", "probability" (of the predicted class) and "model".

        device: whose own model answers; the global model if not given.
        local: each row is answered by the model of its own device, rows of devices that the run did not have by the
            global model. Which one it was stands in the column "model".
        """
        return answer_table(self, frame, device, local)

    def evaluate(self, data: Any = None, metrics: Metrics | None = None, *, together: bool = False) -> pd.DataFrame:
        """Accuracy and loss of the global model and of each device's own, one row per device.

        data: a federation, whose test sets are taken, or a table with labels and devices; the run's own test sets if
            not given.
        metrics: names of `fedbc.metrics`, such as ["balanced_accuracy", "auc"]; or functions of one's own, of true
            labels and predictions, such as scikit-learn's, by the names of their columns.
        together: add a row, "all devices", of all devices' examples at once: answered by the global model, and each by
            its own device's model.
        """
        return evaluate(self, data, metrics, together=together)

    def plot(self, path: str | Path | None = None) -> Any:
        """Accuracy and loss over rounds: a Matplotlib figure, or a file (.png, .svg, .pdf) if a path is given."""
        name, title = str(self.spec.get("algorithm", {}).get("name", "run")), title_of(self)
        if path is None:
            return curves({name: self}, title=title)
        return draw_curves({name: self}, checks.path("path", path), title=title)

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
        if COLUMN in self.history:
            out[COLUMN] = str(self.history[COLUMN].iloc[-1])
        domain = domain_from(self.spec["run"].get("domain"))
        if domain is not None:
            out["diameter"] = domain.diameter(trees.size(self.global_model))
        if evaluated is None or evaluated.empty:
            return out
        tail = evaluated[evaluated["round"] > self.rounds - last]
        out |= {"last_rounds": last, "evaluated_of_them": len(tail)}
        skip = {"round", "seconds", "train_seconds", COLUMN}
        for column in tail.columns:
            if column not in skip:
                out[column] = float(tail[column].mean())
        return out

    def save(self, path: str | Path) -> Path:
        """Write the result to a new folder, which appears only when it is complete."""
        target = checks.path("path", path)
        with storage.new_folder(target) as folder:
            RunFolder(folder).write(self)
        return target


class RunFolder:
    """The folder of one run: its specification, its checkpoint while it runs, its result when it is done."""

    def __init__(self, path: str | Path) -> None:
        self.path = checks.path("path", path)
        self.spec = self.path / "spec.json"
        self.history = self.path / "history.csv"
        self.devices = self.path / "devices.csv"
        self.models = self.path / "models.safetensors"
        self.summary = self.path / "summary.json"
        self.meaning = self.path / "meaning.json"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.live = self.path / "live.jsonl"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunFolder) and self.path == other.path

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def __hash__(self) -> int:
        return hash(self.path)

    @staticmethod
    def find(root: Path) -> list[RunFolder]:
        """The run folders at a place: itself, or those within it, a few levels down."""
        return list(_find(root, DEEP))

    @property
    def is_one(self) -> bool:
        """Whether a run was ever here; a deployment writes its specification at the end only."""
        return storage.is_there(self.spec) or self.live.exists() or self.has_checkpoint

    @property
    def is_finished(self) -> bool:
        """Whether the result is complete."""
        return self.summary.exists()

    @property
    def ended_early(self) -> bool:
        """Whether it is complete with fewer rounds than were asked for: it came to its target, or out of patience."""
        return self.is_finished and self._summary().get(COLUMN, Reason.ROUNDS) != Reason.ROUNDS

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run can go on from here."""
        return checkpoints.exists(self.checkpoint)

    def begin(self, spec: dict[str, Any]) -> None:
        """Make the folder, with the specification; one that exists is an InputError."""
        with storage.new_folder(self.path) as new:
            storage.write_atomically(RunFolder(new).spec, storage.to_json(spec))

    def read_spec(self) -> dict[str, Any]:
        """The specification, as nested tables; an InputError where there is none, or a damaged one."""
        try:
            tables = json.loads(self.spec.read_text())
        except FileNotFoundError:
            raise InputError(f"{self.path} is not a run folder: it has no {self.spec.name}") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.spec} is damaged: {error}") from None
        if not isinstance(tables, dict):
            raise InputError(f"{self.spec} is damaged: it holds no tables")
        return tables

    def write_meaning(self, meaning: Meaning) -> None:
        """Write what the numbers stand for, if it is not just numbers."""
        if meaning:
            storage.write_atomically(self.meaning, storage.to_json(meaning.to_plain()))

    def read_meaning(self) -> Meaning:
        """The names of devices and classes, and how a table's columns were encoded."""
        if not self.meaning.exists():
            return Meaning()
        try:
            return Meaning.from_plain(json.loads(self.meaning.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.meaning} is damaged: {error}") from None

    def write(self, result: Result, machines: int = 1) -> None:
        """Write a result's files; the summary comes last, as the sign of completeness.

        machines: how many share the run; the others write the local models of their devices by `write_part`.
        """
        storage.write_atomically(self.spec, storage.to_json(result.spec))
        self.write_meaning(result.meaning)
        sums = {}
        for file, frame in ((self.history, result.history), (self.devices, result.devices)):
            text = frame.to_csv(index=False)
            storage.write_atomically(file, text)
            sums[file.name] = _checksum(text.encode())
        arrays = {
            **storage.named(result.global_model, "global"),
            **_local(result),
            "multipliers": result.multipliers,
            "tolerances": result.tolerances,
        }
        facts = {"format": FORMAT, "checksums": sums, "diverged": result.diverged, "machines": machines}
        storage.write_arrays(self.models, arrays, facts)
        storage.write_atomically(self.summary, storage.to_json(result.summary()))

    def write_part(self, result: Result, machine: int) -> None:
        """Write the local models of the devices that a machine owns, beside what the first machine writes."""
        with storage.explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        storage.write_arrays(self._part(machine), _local(result), {"format": FORMAT})

    def _part(self, machine: int) -> Path:
        return self.models.with_stem(f"{self.models.stem}-machine-{machine}")

    def read(self) -> Result:
        """The result that is here."""
        if not self.path.is_dir():
            raise InputError(f"{self.path} is not a folder with a run")
        if not storage.is_there(self.models):
            hint = f"; it was not finished: go on with fedbc run --resume {self.path}" if self.has_checkpoint else ""
            raise InputError(f"{self.path} does not hold a finished run (no {self.models.name}){hint}")
        arrays, facts = _read_models(self.models)
        own = [arrays, *(_read_models(self._part(m))[0] for m in range(1, facts.get("machines", 1)))]
        models = [storage.nested(part, "local") for part in own]
        meaning = self.read_meaning()
        sums = facts.get("checksums", {})
        return Result(
            history=self._table(self.history, sums),
            devices=self._table(self.devices, sums, named=bool(meaning.device_names)),
            global_model=storage.nested(arrays, "global"),
            multipliers=arrays["multipliers"],
            tolerances=arrays["tolerances"],
            spec=self._whole_spec(),
            participants=np.concatenate([part["participants"] for part in own]),
            participants_models=jax.tree.map(lambda *a: np.concatenate(a), *models) if models[0] else None,
            meaning=meaning,
            diverged=facts.get("diverged"),
        )

    def _whole_spec(self) -> dict[str, Any]:
        spec = self.read_spec()
        for part in ("algorithm", "model", "data", "run"):
            if not isinstance(spec.get(part), dict):
                raise InputError(f"{self.spec} is damaged: it has no {part}")
        return spec

    def _table(self, file: Path, sums: dict[str, str], *, named: bool = False) -> pd.DataFrame:
        """A table as it was written: one that was cut short or changed would give other numbers than the run.

        Where devices have names, a clinic called 007 or NA is no number, and not missing.
        """
        import pandas as pd

        try:
            content = file.read_bytes()
            table = pd.read_csv(io.BytesIO(content), converters={"device": str} if named else None)
        except (OSError, ValueError) as error:  # a table without columns, too
            raise InputError(f"{file} is damaged: {error}") from None
        # Folders from before there were checksums tell how many rounds there are.
        rounds = None if file != self.history else self._summary().get("rounds")
        changed = sums[file.name] != _checksum(content) if file.name in sums else rounds not in (None, len(table))
        if changed:
            raise InputError(f"{file} is not as the run wrote it: it was cut short or changed; run it again")
        return table

    def _summary(self) -> dict[str, Any]:
        try:
            found = json.loads(self.summary.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InputError(f"{self.summary} is damaged: {error}") from None
        return found if isinstance(found, dict) else {}


def _checksum(content: bytes) -> str:
    """Of a text, whatever its lines end with: a version control system may have changed that."""
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()


def _local(result: Result) -> storage.Arrays:
    """The local models, and whose they are; none of them, if they stay on their devices."""
    return {**storage.named(result.participants_models, "local"), "participants": result.participants}


def _read_models(file: Path) -> tuple[storage.Arrays, dict[str, Any]]:
    arrays, facts = storage.read_arrays(file)
    if facts.get("format") != FORMAT:
        raise InputError(f"{file} has format {facts.get('format')!r}; this version reads {FORMAT}")
    return arrays, facts


def _find(folder: Path, deep: int) -> Iterator[RunFolder]:
    if RunFolder(folder).is_one:
        yield RunFolder(folder)
    elif deep:
        for inner in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
            if os.access(inner, os.R_OK | os.X_OK):  # those of other users are not ours to look into
                yield from _find(inner, deep - 1)
