"""A careful hand-written FedAvg loop in eager PyTorch; the variant is the number of threads."""

from __future__ import annotations

import torch

from benchmarks.workers.protocol import Contestant, Job, Round, serve
from benchmarks.workers.torch_client import Client


class PyTorchLoop(Contestant):
    packages = ("torch",)

    def __init__(self, job: Job) -> None:
        self.client = Client(job, threads=int(job["variant"].split()[0]))
        self.facts = {"style": self.client.style, "microseconds_a_step": self.client.calibration}
        self.z = [v.clone() for v in self.client.values]

    def round(self, number: int, devices: list[int], evaluate: bool) -> Round:
        total = [torch.zeros_like(v) for v in self.z]
        steps = 0
        for device in devices:
            self.client.load(self.z)
            steps += self.client.train(device)
            torch._foreach_add_(total, self.client.values, alpha=self.client.sizes[device])
        torch._foreach_div_(total, float(sum(self.client.sizes[d] for d in devices)))
        self.z = total
        if not evaluate:
            return Round(steps)
        self.client.load(self.z)
        return Round(steps, self.client.accuracy())


if __name__ == "__main__":
    serve(PyTorchLoop)
