"""TensorBoard: event files in a folder, written by tensorboardX (no TensorFlow)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbc import storage
from fedbc.errors import InputError
from fedbc.trackers.base import Identity, Scalars, Tracker, flat

HEADLINES = ("global_accuracy", "local_accuracy", "global_loss")
"""The columns that the table of hyper-parameters shows beside them."""


class TensorBoard(Tracker):
    """Writes below `folder`, one folder per run; look with `tensorboard --logdir FOLDER`."""

    label, module, extra = "TensorBoard", "tensorboardX", "tensorboard"

    def __init__(
        self,
        folder: str | Path,
        name: str = "run",
        config: Mapping[str, Any] | None = None,
        memory: str | Path | None = None,
    ) -> None:
        super().__init__(name, config, memory)
        self.folder = Path(folder)

    @property
    def target(self) -> str:
        """The folder, wherever the run is resumed from."""
        return str(self.folder.resolve())

    def check(self) -> None:
        """Make the folder."""
        with storage.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def _open(self, known: Identity | None, first: int) -> tuple[Identity, int]:
        place = self.folder / (known["run"] if known else self.name)
        goes_on = _has_events(place) and (known is not None or first > 1)
        number = 2
        while not goes_on and _has_events(place):
            place = self.folder / f"{self.name}-{number}"
            number += 1
        with storage.explained(place):
            place.mkdir(parents=True, exist_ok=True)
        # Rounds after the checkpoint are computed and written again: the earlier events give way to the new ones.
        self._writer = self.library.SummaryWriter(
            str(place), purge_step=first if goes_on else None, filename_suffix=f".{first:07d}"
        )
        if not goes_on:
            self._describe()
        return {"run": str(place.relative_to(self.folder))}, first - 1 if goes_on else 0

    def _describe(self) -> None:
        self._write_hparams(dict.fromkeys(HEADLINES, 0.0), end=False)
        self._writer.add_text("specification", "    " + storage.to_json(self.config).replace("\n", "\n    "), 0)

    def _write_hparams(self, metrics: Scalars, *, end: bool) -> None:
        from tensorboardX.summary import hparams

        plain = {k: v if isinstance(v, bool | int | float) else str(v) for k, v in flat(self.config).items()}
        experiment, begun, ended = hparams(plain, metrics)
        for summary in (ended,) if end else (experiment, begun):
            self._writer.file_writer.add_summary(summary)

    def _log(self, number: int, scalars: Scalars) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, number)

    def _close(self, summary: Mapping[str, Any], state: str) -> None:
        for name, value in summary.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"summary/{name}", value, self._last)
        self._writer.add_text("state", state, self._last)
        self._write_hparams({}, end=True)
        self._writer.close()


def _has_events(folder: Path) -> bool:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    return any(folder.glob("events.out.tfevents.*"))
