"""MLflow: a run in an experiment of a tracking server or a database."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbc.errors import InputError
from fedbc.trackers.base import Identity, Scalars, Tracker, finite, flat, in_short

SEND_SECONDS = 1.0
"""How often rows are sent: a server takes some milliseconds each time."""
BATCH = 1000
"""Metrics that MLflow takes at once."""
STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """Writes to the tracking server or database at `uri`, such as http://127.0.0.1:5000 or sqlite:///mlflow.db."""

    label, module, extra = "MLflow", "mlflow.tracking", "mlflow"

    def __init__(
        self,
        uri: str,
        name: str = "run",
        config: Mapping[str, Any] | None = None,
        memory: str | Path | None = None,
        experiment: str = "fedbc",
    ) -> None:
        if "://" not in uri and uri != "databricks":
            raise InputError(
                f"mlflow={uri!r} is not accepted: MLflow keeps runs in folders no longer; give a server's address, "
                "such as http://127.0.0.1:5000, or a database, such as sqlite:///mlflow.db"
            )
        # A run does not wait for minutes for a server that is away, nor does anybody hear of it but the user.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        super().__init__(name, config, memory)
        self.uri, self.experiment = uri, experiment
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of every table it makes
        self._waiting: list[Any] = []
        self._sent_at = 0.0

    @property
    def target(self) -> str:
        """The URI, without a password."""
        return f"{re.sub('//[^/@]*@', '//', self.uri)} {self.experiment}"

    def check(self) -> None:
        """Ask for the experiment, and make it if it is not there."""
        try:
            self._client = self.library.MlflowClient(tracking_uri=self.uri)
            found = self._client.get_experiment_by_name(self.experiment)
            self._experiment = found.experiment_id if found else self._client.create_experiment(self.experiment)
        except ImportError as error:
            raise InputError(f"mlflow={self.target} needs {error.name}: pip install 'fedbc[mlflow]'") from None
        except Exception as error:  # whatever the server or database answers
            raise InputError(f"mlflow={self.target} cannot be used: {in_short(error)}") from None

    def _open(self, known: Identity | None, first: int) -> tuple[Identity, int]:
        self.check()
        if known is not None:
            self._run = known["run"]
            self._client.update_run(self._run, status="RUNNING")
            held = self._client.get_metric_history(self._run, "seconds")
            return known, max((m.step for m in held), default=0)
        from mlflow.entities import Param

        self._run = self._client.create_run(self._experiment, run_name=self.name).info.run_id
        parameters = [Param(k, str(v)[:6000]) for k, v in flat(self.config).items()]
        for begin in range(0, len(parameters), 100):
            self._client.log_batch(self._run, params=parameters[begin : begin + 100])
        return {"run": self._run}, 0

    def _log(self, number: int, scalars: Scalars) -> None:
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        self._waiting += [Metric(name, value, now, number) for name, value in scalars.items()]
        if time.monotonic() - self._sent_at >= SEND_SECONDS:
            self._send()

    def _send(self) -> None:
        for begin in range(0, len(self._waiting), BATCH):
            self._client.log_batch(self._run, metrics=self._waiting[begin : begin + BATCH])
        self._waiting.clear()
        self._sent_at = time.monotonic()

    def _close(self, summary: Mapping[str, Any], state: str) -> None:
        self._log(self._last, {f"summary.{k}": v for k, v in finite(summary).items()})
        self._send()
        self._client.set_terminated(self._run, STATES[state])
