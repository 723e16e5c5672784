"""A careful hand-written FedAvg loop in eager PyTorch; the variant is the number of threads, or of processes.

Processes have one thread each; the round's devices are dealt to them, longest first, and their sums are added by
`torch.distributed`. Rank 0 speaks.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed

from benchmarks.workers.protocol import Contestant, Job, Round, serve
from benchmarks.workers.torch_client import Client

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class PyTorchLoop(Contestant):
    packages = ("torch",)

    def __init__(self, job: Job) -> None:
        number, kind = job["variant"].split()
        threads = 1 if kind == "processes" else int(number)
        self.client = Client(job, threads, style=_of_rank_0(None))
        if RANKS > 1 and RANK == 0:
            _of_rank_0(self.client.style)
        self.facts = {"style": self.client.style, "microseconds_a_step": self.client.calibration}
        self.z = [v.clone() for v in self.client.values]

    def announce(self, devices: list[int] | None, evaluate: bool) -> None:
        if RANKS > 1:
            distributed.broadcast_object_list([devices, evaluate])

    def _own(self, devices: list[int]) -> list[int]:
        """This process's share."""
        loads, shares = [0] * RANKS, [[] for _ in range(RANKS)]
        for device in sorted(devices, key=lambda d: -self.client.sizes[d]):
            rank = loads.index(min(loads))
            loads[rank] += self.client.sizes[device]
            shares[rank].append(device)
        return shares[RANK]

    def round(self, number: int, devices: list[int], evaluate: bool) -> Round:
        total = [torch.zeros_like(v) for v in self.z]
        for device in self._own(devices):
            self.client.load(self.z)
            self.client.train(device)
            torch._foreach_add_(total, self.client.values, alpha=self.client.sizes[device])
        if RANKS > 1:
            flat = torch.cat([t.reshape(-1) for t in total])
            distributed.all_reduce(flat)
            total = [part.view_as(t) for part, t in zip(flat.split([t.numel() for t in total]), total, strict=True)]
        torch._foreach_div_(total, float(sum(self.client.sizes[d] for d in devices)))
        self.z = total
        steps = sum(self.client.steps(d) for d in devices)
        if not evaluate:
            return Round(steps)
        self.client.load(self.z)
        right = torch.tensor(self.client.right_answers(RANK, RANKS))
        if RANKS > 1:
            distributed.all_reduce(right)
        return Round(steps, int(right) / len(self.client.test_y))

    def follow(self) -> None:
        """What the other processes do: the rounds that rank 0 announces."""
        while True:
            request: list[Any] = [None, None]
            distributed.broadcast_object_list(request)
            if request[0] is None:
                return
            self.round(0, *request)

    def close(self) -> None:
        self.announce(None, False)


def _of_rank_0(value: Any) -> Any:
    """What rank 0 found out; asked of it while it has not, None."""
    if RANKS == 1 or (RANK == 0 and value is None):
        return None
    box = [value]
    distributed.broadcast_object_list(box)
    return box[0]


def build(job: Job) -> PyTorchLoop:
    """The contestant, in every process."""
    if RANKS > 1:
        distributed.init_process_group("gloo")
        distributed.broadcast_object_list([job])
    return PyTorchLoop(job)


if __name__ == "__main__":
    if RANK == 0:
        serve(build)
    else:
        distributed.init_process_group("gloo")
        box: list[Any] = [None]
        distributed.broadcast_object_list(box)
        PyTorchLoop(box[0]).follow()
