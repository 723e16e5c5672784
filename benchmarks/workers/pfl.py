"""pfl-research's simulation with its PyTorch model; one process, or two under torchrun (rank 0 speaks)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy

from benchmarks.workers import torch_models
from benchmarks.workers.protocol import Arrays, Contestant, Job, Round, serve

EVALUATION_BATCH = 1000


class ChosenDevices(FederatedDatasetBase):
    """Gives the devices that the harness names; dealt to processes as pfl's own balanced sampler deals them."""

    def __init__(self, devices: list[Dataset]) -> None:
        super().__init__()
        self.devices = devices
        self.chosen: list[int] = []

    def __next__(self) -> Any:
        raise NotImplementedError("rounds ask for whole cohorts")

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Dataset, int]]:
        assert cohort_size == len(self.chosen)
        ranks = pytorch_ops.distributed.world_size
        load = np.zeros(ranks)
        for device in sorted(self.chosen, key=lambda d: -len(self.devices[d])):
            rank = int(np.argmin(load))
            load[rank] += len(self.devices[device])
            if rank == pytorch_ops.distributed.global_rank:
                yield self.devices[device], 0


class AfterEachRound(CentralEvaluationCallback):
    """pfl's central evaluation, without the one before training: each round here is a run of its own."""

    accuracy: float | None = None

    def on_train_begin(self, *, model: Any) -> Metrics:
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        stop, metrics = self._eval(model)  # the public method leaves out iteration 0
        self.accuracy = {str(k): v for k, v in metrics.to_simple_dict().items()}["Central val | accuracy"]
        return stop, metrics


def with_loss_and_metrics(module: torch.nn.Module) -> torch.nn.Module:
    """The two methods that pfl asks of a module."""

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(module(x), y)

    @torch.no_grad()
    def metrics(x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"accuracy": Weighted(int((module(x).argmax(1) == y).sum()), len(y))}

    module.loss, module.metrics = loss, metrics
    return module


class Pfl(Contestant):
    packages = ("pfl", "torch")

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // pytorch_ops.distributed.world_size))
        torch.manual_seed(job["seed"])
        self.job = job
        name, data = job["model"][0], Arrays(job)
        x, y = torch_models.inputs(name, data.train_x), torch.from_numpy(data.train_y).long()
        self.sizes = data.sizes
        devices = [Dataset((x[data.of(i)], y[data.of(i)]), user_id=str(i)) for i in range(len(data.sizes))]
        self.devices = ChosenDevices(devices)
        self.backend = SimulatedBackend(
            training_data=self.devices, val_data=self.devices, postprocessors=[WeightByDatapoints()]
        )
        module = with_loss_and_metrics(torch_models.build(name, data.initial))
        self.model = PyTorchModel(
            module,
            local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=job["momentum"]),
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        )
        test = Dataset((torch_models.inputs(name, data.test_x), torch.from_numpy(data.test_y).long()))
        self.evaluation = AfterEachRound(test, NNEvalHyperParams(local_batch_size=EVALUATION_BATCH))
        self.algorithm = FederatedAveraging()
        # An evaluation of every device before its training is no part of the task: iteration 0 would have one.
        self.algorithm._current_central_iteration = 1

    def announce(self, devices: list[int], evaluate: bool) -> None:
        if pytorch_ops.distributed.world_size > 1:
            torch.distributed.broadcast_object_list([devices, evaluate])

    def round(self, number: int, devices: list[int], evaluate: bool) -> Round:
        self.devices.chosen = devices
        training = NNAlgorithmParams(
            central_num_iterations=self.algorithm._current_central_iteration + 1,
            evaluation_frequency=10**9,
            train_cohort_size=len(devices),
            val_cohort_size=None,
        )
        local = NNTrainHyperParams(
            local_num_epochs=self.job["epochs"],
            local_learning_rate=self.job["lr"],
            local_batch_size=self.job["batch_size"],
        )
        self.algorithm.run(
            training,
            self.backend,
            self.model,
            local,
            callbacks=[self.evaluation] if evaluate else [],
            send_metrics_to_platform=False,
        )
        steps = self.job["epochs"] * -(-self.sizes[devices] // self.job["batch_size"])
        return Round(int(steps.sum()), self.evaluation.accuracy if evaluate else None)

    def follow(self) -> None:
        """What the other processes do: the rounds that rank 0 announces."""
        while True:
            request: list[Any] = [None, None]
            torch.distributed.broadcast_object_list(request)
            if request[0] is None:
                return
            self.round(0, *request)

    def close(self) -> None:
        self.announce(None, False)


def build(job: Job) -> Pfl:
    """The contestant, in every process."""
    if pytorch_ops.distributed.world_size > 1:
        torch.distributed.broadcast_object_list([job])
    return Pfl(job)


if __name__ == "__main__":
    if pytorch_ops.distributed.global_rank == 0:
        serve(build)
    else:
        job: list[Any] = [None]
        torch.distributed.broadcast_object_list(job)
        Pfl(job[0]).follow()
