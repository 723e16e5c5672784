"""fedbc's simulator, advanced round by round; the variant is the algorithm."""

from __future__ import annotations

from typing import Any

import jax

import fedbc
from benchmarks import workloads
from benchmarks.workers.protocol import Contestant, Job, Round, serve
from fedbc.simulation.rounds import Simulation
from fedbc.simulation.settings import Settings

ALGORITHMS = {"FedBC": fedbc.FedBC, "FedAvg": fedbc.FedAvg}


class Ours(Contestant):
    packages = ("fedbc", "jax", "jaxlib", "numpy")

    def __init__(self, job: Job) -> None:
        self.simulate(ALGORITHMS[job["variant"]], *workloads.build(job), job)

    def simulate(self, algorithm: Any, model: Any, federation: Any, job: Job) -> None:
        """Set the run up."""
        self.run = Simulation(
            algorithm(lr=job["lr"], momentum=job["momentum"]),
            model,
            federation,
            Settings(
                epochs=job["epochs"],
                batch_size=job["batch_size"],
                sample=job["sample"],
                seed=job["seed"],
                evaluate=("global",),
                evaluate_every=10**9,  # rounds are evaluated when asked to, as the last round of a run is
            ),
        )
        self.steps = self.run.planner.batching.steps(federation.train.sizes, job["epochs"])

    def expect(self, rounds: int) -> None:
        # As within a run, more rounds follow and are planned; but none of theirs may be trained in this turn.
        whole_strides = rounds % self.run.training.at_once == 0
        self.ahead = 2 * rounds if whole_strides else rounds

    def round(self, number: int, devices: list[int], evaluate: bool) -> Round:
        self.ahead -= 1
        row = self.run.advance(last=evaluate, ahead=self.ahead)
        jax.block_until_ready(self.run.server)
        trained = self.run.diagnostics.last.devices.tolist()
        if (row["round"], trained) != (number, devices):
            raise ValueError(f"round {row['round']} trained {trained}, not {devices} as round {number} asks")
        return Round(int(self.steps[devices].sum()), row["global_accuracy"] if evaluate else None)


if __name__ == "__main__":
    serve(Ours)
