"""The options --tensorboard, --mlflow and --wandb, and the trackers that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from fedbc.errors import InputError
from fedbc.runs import RunFolder, RunSpec
from fedbc.trackers import MLflow, TensorBoard, Tracker, WandB

F = TypeVar("F", bound=Callable[..., Any])


def options(command: F) -> F:
    """The options of a command whose runs can be tracked."""
    for option in (
        click.option("--wandb-project", metavar="NAME", help="The project for --wandb.  [default: fedbc]"),
        click.option(
            "--wandb", is_flag=True, help="Write the history to Weights & Biases; WANDB_MODE=offline applies."
        ),
        click.option("--mlflow", metavar="URI", help="Write it to MLflow: a server, or sqlite:///mlflow.db."),
        click.option(
            "--tensorboard",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="Write it as TensorBoard's event files.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Wanted:
    """The trackers that were asked for; can be sent to another process."""

    tensorboard: Path | None = None
    mlflow: str | None = None
    wandb_project: str | None = None

    @classmethod
    def of_options(cls, tensorboard: Path | None, mlflow: str | None, wandb: bool, wandb_project: str | None) -> Wanted:
        """What the options ask for."""
        if wandb_project is not None and not wandb:
            raise InputError("--wandb-project is the project for --wandb, which was not given")
        return cls(tensorboard, mlflow, (wandb_project or "fedbc") if wandb else None)

    def check(self) -> None:
        """An InputError, before anything is computed, if one of them cannot be used."""
        for tracker in self.named("", {}):
            tracker.check()

    def of_run(self, parent: Path, folder: RunFolder, spec: RunSpec) -> list[Tracker]:
        """Those for a run, named after its folder; `parent` is the folder of all runs of the command."""
        self.check()
        own = folder.path.resolve()
        return self.named(parent.name if own == parent else f"{parent.name}-{own.name}", spec.to_dict(), folder.path)

    def named(self, name: str, config: Mapping[str, Any], memory: Path | None = None) -> list[Tracker]:
        """Those for a run of this name."""
        found: list[Tracker] = []
        if self.tensorboard is not None:
            found.append(TensorBoard(self.tensorboard, name, config, memory))
        if self.mlflow is not None:
            found.append(MLflow(self.mlflow, name, config, memory))
        if self.wandb_project is not None:
            found.append(WandB(self.wandb_project, name, config, memory))
        return found
