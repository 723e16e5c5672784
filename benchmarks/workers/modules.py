"""PyTorch modules in fedbc's simulator (`fedbc.torch.model`), with FedAvg; the modules are the PyTorch contestants'."""

from __future__ import annotations

import torch

import fedbc
from benchmarks import workloads
from benchmarks.workers import torch_models
from benchmarks.workers.fedbc import Ours
from benchmarks.workers.protocol import Arrays, Job, serve


class Modules(Ours):
    packages = ("fedbc", "jax", "torch")

    def __init__(self, job: Job) -> None:
        torch.manual_seed(job["seed"])
        name = job["model"][0]
        module = torch_models.build(name, Arrays(job).initial)
        model = fedbc.torch.model(module, channels_first=torch_models.takes_images(name))
        self.simulate(fedbc.FedAvg, model, workloads.build(job)[1], job)


if __name__ == "__main__":
    serve(Modules)
