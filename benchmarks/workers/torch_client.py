"""A device's local work in plain PyTorch, written for speed: the hand-written loop and Flower's client share it.

Which way to update the parameters and to lay out images is fastest depends on model, threads and machine: `fastest`
times the candidates where the benchmark runs, and the choice is written to the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from benchmarks.workers import torch_models
from benchmarks.workers.protocol import Arrays, Job

EVALUATION_BATCH = 1000
UPDATES = ("all at once", "one by one", "fused optimizer")
LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


class Client:
    """The data of all devices as tensors, and one model that trains on any of them."""

    def __init__(self, job: Job, threads: int, style: str | None = None) -> None:
        """`style` is an update and, for images, a layout, such as "all at once, channels last"; None: the fastest."""
        torch.set_num_threads(threads)
        torch.manual_seed(job["seed"])
        self.epochs, self.batch_size = job["epochs"], job["batch_size"]
        self.lr, self.momentum = job["lr"], job["momentum"]
        name, data = job["model"][0], Arrays(job)
        self.model = torch_models.build(name, data.initial)
        self.sizes = data.sizes.tolist()
        x, y = torch_models.inputs(name, data.train_x), torch.from_numpy(data.train_y).long()
        self.test_x, self.test_y = torch_models.inputs(name, data.test_x), torch.from_numpy(data.test_y).long()
        self.parameters = list(self.model.parameters())
        self.calibration: dict[str, float] = {}
        self.style = style or self._fastest(x[: self.batch_size], y[: self.batch_size])
        self._adopt(self.style)
        if "channels last" in self.style:
            x, self.test_x = (a.contiguous(memory_format=torch.channels_last) for a in (x, self.test_x))
        self.devices = [(x[data.of(i)], y[data.of(i)]) for i in range(len(self.sizes))]

    def _adopt(self, style: str) -> None:
        """Lay the model out and choose the step."""
        update, _, layout = style.partition(", ")
        if layout:
            self.model.to(memory_format=LAYOUTS[layout])
        self.values = [p.data for p in self.parameters]
        self.velocity = [torch.zeros_like(v) for v in self.values]
        self.optimizer = torch.optim.SGD(self.parameters, self.lr, momentum=self.momentum, fused=True)
        steps: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {
            "all at once": self._step_all_at_once,
            "one by one": self._step_one_by_one,
            "fused optimizer": self._step_fused,
        }
        self.step = steps[update]

    def _fastest(self, x: torch.Tensor, y: torch.Tensor) -> str:
        """The style with the shortest step, the best of several tries each, taken in turn; the model is restored."""
        initial = [p.data.clone() for p in self.parameters]
        layouts = [f", {layout}" for layout in LAYOUTS] if x.ndim == 4 else [""]
        best = dict.fromkeys((update + layout for update in UPDATES for layout in layouts), float("inf"))
        for _ in range(5):
            for style in best:
                self._adopt(style)
                batch = x.contiguous(memory_format=torch.channels_last) if "channels last" in style else x
                self.step(batch, y)
                began, steps = time.perf_counter(), 0
                while steps < 2 or (steps < 50 and time.perf_counter() - began < 0.05):
                    self.step(batch, y)
                    steps += 1
                best[style] = min(best[style], (time.perf_counter() - began) / steps)
        self.load(initial)
        self.calibration = {style: round(1e6 * seconds, 1) for style, seconds in best.items()}
        return min(best, key=best.__getitem__)

    def train(self, device: int) -> int:
        """Train the model on a device's data from where it stands; the number of steps."""
        x, y = self.devices[device]
        torch._foreach_zero_(self.velocity)
        self.optimizer.state.clear()
        for _ in range(self.epochs):
            # One gather an epoch; batches are then views, without work of their own.
            order = torch.randperm(len(y))
            shuffled = zip(x[order].split(self.batch_size), y[order].split(self.batch_size), strict=True)
            for batch_x, batch_y in shuffled:
                self.step(batch_x, batch_y)
        return self.steps(device)

    def steps(self, device: int) -> int:
        """The steps of a device's local training."""
        return self.epochs * -(-self.sizes[device] // self.batch_size)

    def _step_all_at_once(self, x: torch.Tensor, y: torch.Tensor) -> None:
        gradient = torch.autograd.grad(cross_entropy(self.model(x), y), self.parameters)
        torch._foreach_mul_(self.velocity, self.momentum)
        torch._foreach_add_(self.velocity, gradient)
        torch._foreach_add_(self.values, self.velocity, alpha=-self.lr)

    def _step_one_by_one(self, x: torch.Tensor, y: torch.Tensor) -> None:
        gradient = torch.autograd.grad(cross_entropy(self.model(x), y), self.parameters)
        for value, velocity, g in zip(self.values, self.velocity, gradient, strict=True):
            value.sub_(velocity.mul_(self.momentum).add_(g), alpha=self.lr)

    def _step_fused(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def load(self, values: list[torch.Tensor]) -> None:
        """Overwrite the model."""
        torch._foreach_copy_(self.values, values)

    def accuracy(self) -> float:
        """The share of right answers on all test examples."""
        return self.right_answers() / len(self.test_y)

    @torch.inference_mode()
    def right_answers(self, part: int = 0, parts: int = 1) -> int:
        """The right answers on all test examples, or on an even part of them."""
        begin, end = (len(self.test_y) * p // parts for p in (part, part + 1))
        x, y = self.test_x[begin:end], self.test_y[begin:end]
        batches = zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True)
        return sum(int((self.model(x).argmax(1) == y).sum()) for x, y in batches)
