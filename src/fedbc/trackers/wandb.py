"""Weights & Biases: a run in a project; its own variables (WANDB_MODE=offline, WANDB_ENTITY, WANDB_DIR) apply."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbc.errors import InputError
from fedbc.trackers.base import Identity, Scalars, Tracker, finite

EXIT_CODES = {"finished": 0, "stopped": 130, "failed": 1}


class WandB(Tracker):
    """Writes to a project of Weights & Biases."""

    label, module, extra = "Weights & Biases", "wandb", "wandb"

    def __init__(
        self,
        project: str = "fedbc",
        name: str = "run",
        config: Mapping[str, Any] | None = None,
        memory: str | Path | None = None,
    ) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to its makers
        super().__init__(name, config, memory)
        self.project = project

    @property
    def target(self) -> str:
        """The project."""
        return self.project

    def check(self) -> None:
        """Log in, where that is needed, while the user is there: a run must not wait for a password in the midst."""
        if os.environ.get("WANDB_MODE", "online") != "online":
            return
        try:
            self.library.login()
        except (self.library.errors.Error, OSError) as error:
            raise InputError(
                f"wandb needs a login ({error}); WANDB_MODE=offline keeps the run on this machine for now"
            ) from None

    def _open(self, known: Identity | None, first: int) -> tuple[Identity, int]:
        settings = self.library.Settings(silent=True, console="off")
        self._run = self.library.init(
            project=self.project,
            name=self.name,
            config=self.config,
            id=known["run"] if known else None,
            resume="allow" if known else None,
            reinit="create_new",  # several runs of a process are several runs
            settings=settings,
        )
        # The service knows which rounds it has; offline, what is written here is joined to the run when it is sent.
        held = 0 if known is None else self._run.step - 1 if self._run.step else first - 1
        return {"run": self._run.id}, held

    def _log(self, number: int, scalars: Scalars) -> None:
        self._run.log({"round": number, **scalars}, step=number)

    def _close(self, summary: Mapping[str, Any], state: str) -> None:
        self._run.summary.update({f"summary.{k}": v for k, v in finite(summary).items()} | {"state": state})
        self._run.finish(exit_code=EXIT_CODES[state])
