"""Flower's simulation (ray backend, one actor a core) with the hand-written loop's client.

Flower runs its rounds by itself; here its strategy waits at the beginning of each round for the harness to ask.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# No telemetry; ray's own warnings and its usage report are of no interest.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.workers.protocol import Contestant, Job, Round, serve
from benchmarks.workers.torch_client import Client


@functools.cache
def cached_client(folder: str) -> Client:
    """One client an actor process, for all the devices that it plays."""
    job = json.loads((Path(folder) / "flower.json").read_text())
    return Client(job, threads=1, style=job["style"])


def client_app(folder: str) -> ClientApp:
    """Train on the node's partition, or tell its number."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from benchmarks.workers.flower import cached_client  # by name, so that the actor's cache is used

        client, device = cached_client(folder), int(context.node_config["partition-id"])
        client.load([torch.from_numpy(a) for a in message.content["arrays"].to_numpy_ndarrays()])
        client.train(device)
        arrays = ArrayRecord([value.numpy() for value in client.values])
        metrics = MetricRecord({"num-examples": client.sizes[device]})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.query()
    def which(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        return Message(RecordDict({"partition": MetricRecord({"id": number})}), reply_to=message)

    return app


class Stopped(Exception):
    """The harness asks for no more rounds."""


class Stepped(FedAvg):
    """Flower's FedAvg on the devices that the harness names, when it names them."""

    def __init__(self, requests: queue.Queue, node_of: dict[int, int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.requests, self.node_of, self.evaluate = requests, node_of, False

    def configure_train(self, server_round: int, arrays: Any, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        request = self.requests.get()
        if request is None:
            raise Stopped
        devices, self.evaluate = request
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return self._construct_messages(record, [self.node_of[d] for d in devices], MessageType.TRAIN)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():  # Flower would go on with the other devices, and do less work than asked
                raise RuntimeError(f"a device failed: {reply.error.reason}")
        return super().aggregate_train(server_round, replies)


class Flower(Contestant):
    packages = ("flwr", "ray", "torch")

    def __init__(self, job: Job) -> None:
        cores = len(os.sched_getaffinity(0))
        # The fastest step is found here, alone and with an actor's one thread; evaluation then uses all cores.
        self.client = Client(job, threads=1)
        torch.set_num_threads(cores)
        self.facts = {"style": self.client.style, "microseconds_a_step": self.client.calibration}
        (Path(job["folder"]) / "flower.json").write_text(json.dumps({**job, "style": self.client.style}))
        self.job = job
        self.requests: queue.Queue = queue.Queue()
        self.answers: queue.Queue = queue.Queue()
        server = ServerApp()
        server.main()(self._serve)
        settings = {
            "init_args": {"num_cpus": cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        }

        def simulate() -> None:
            try:
                run_simulation(server, client_app(job["folder"]), len(self.client.sizes), "ray", settings)
            except BaseException as error:
                self.answers.put(error)

        self.thread = threading.Thread(target=simulate, daemon=True)
        self.thread.start()
        self._answer()  # ready

    def _serve(self, grid: Grid, context: Context) -> None:
        nodes: list[int] = []
        while len(nodes) < len(self.client.sizes):
            nodes = list(grid.get_node_ids())
        asked = [Message(RecordDict(), dst_node_id=n, message_type=MessageType.QUERY) for n in nodes]
        node_of = {
            int(reply.content["partition"]["id"]): reply.metadata.src_node_id for reply in grid.send_and_receive(asked)
        }
        strategy = Stepped(self.requests, node_of)

        def after(number: int, arrays: ArrayRecord) -> None:
            accuracy = None
            if strategy.evaluate:
                self.client.load([torch.from_numpy(a) for a in arrays.to_numpy_ndarrays()])
                accuracy = self.client.accuracy()
            self.answers.put(accuracy)

        initial = ArrayRecord([value.numpy() for value in self.client.values])
        strategy.start(grid, initial, num_rounds=10**9, evaluate_fn=after)

    def _answer(self) -> float | None:
        answer = self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def round(self, number: int, devices: list[int], evaluate: bool) -> Round:
        self.requests.put((devices, evaluate))
        accuracy = self._answer()
        sizes = [self.client.sizes[d] for d in devices]
        return Round(self.job["epochs"] * sum(-(-n // self.job["batch_size"]) for n in sizes), accuracy)

    def close(self) -> None:
        self.requests.put(None)
        self.thread.join(timeout=60)


if __name__ == "__main__":
    serve(Flower)
