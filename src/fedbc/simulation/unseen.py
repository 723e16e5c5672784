"""How the global model serves devices that took no part in training."""

from __future__ import annotations

from typing import Any

from fedbc.data.federation import Federation
from fedbc.models.base import Model
from fedbc.simulation import batches, metrics
from fedbc.simulation.lanes import Lanes
from fedbc.simulation.scoring import Scorer


class Unseen:
    """Measures z on the devices that were kept out."""

    def __init__(self, model: Model, federation: Federation, lanes: Lanes) -> None:
        self.model, self.lanes = model, lanes
        self.data = lanes.put(batches.host_data(federation.test, federation.shared))
        self.scorer = Scorer(model, federation, federation.test, lanes, depth=1)

    def row(self, z: Any) -> metrics.Row:
        """Columns of history."""
        scores = self.scorer.by_device(*self.scorer.one(self.lanes.share(z), self.data))
        return metrics.unseen_row(scores, accuracy=self.model.correct is not None)
