"""Flower's grid without processes: orders go straight to ClientApps, each with a SuperNode's configuration.

Every message goes through Flower's own serialisation, so that what arrives is what a wire would bring. This is for
what needs no network; `deploy/loopback.py` has the real thing.
"""

import functools
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

with warnings.catch_warnings():  # Flower's own imports warn
    warnings.simplefilter("ignore")
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.serverapp import Grid
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supercore.task_identity import TaskIdentity

import fedbc
from fedbc.flower import client_app, one_device
from fedbc.flower.server import finish, prepare
from fedbc.flower.settings import Deployment, algorithm_from, resolve


@functools.cache
def private_key(device: int) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_of(device: int) -> ec.EllipticCurvePublicKey:
    return private_key(device).public_key()


def public_key(device: int) -> bytes:
    return public_key_to_bytes(key_of(device))


def write_keys(folder: Path, devices: int) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for device in range(devices):
        text = key_of(device).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"device-{device}.pub").write_bytes(text)
        own = private_key(device).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (folder / f"device-{device}").write_bytes(own)
    return str(folder)


@dataclass
class Node:
    app: ClientApp
    config: dict
    answer: Callable[[Message, Callable[[], Message]], list[Message]] = lambda order, work: [work()]
    """what the node sends back for an order, from the honest work; [] is silence, two are two answers"""


@dataclass
class InProcessGrid(Grid):
    run_config: dict
    nodes: dict[int, Node] = field(default_factory=dict)
    replies: list[Message] = field(default_factory=list)
    orders: list[Message] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)
    """all that nodes sent; `replies` are those that nobody asked for yet"""
    errors_travel: bool = True
    """whether a node's error becomes its answer, as in Flower, or ends the test"""

    def __post_init__(self):
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        """Every node shows the key of the device that it is."""
        return [
            SimpleNamespace(node_id=number, public_key=public_key(node.config["partition-id"]))
            for number, node in self.nodes.items()
        ]

    def push_messages(self, messages: Iterable[Message]):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            ids.append(message.object_id)
            order = wired(message)
            self.orders.append(order)
            node = self.nodes[message.metadata.dst_node_id]

            def work(node=node, message=order):
                context = Context(
                    run_id=1,
                    node_id=message.metadata.dst_node_id,
                    node_config=node.config,
                    state=RecordDict(),
                    run_config=self.run_config,
                )
                try:
                    return node.app(message, context)
                except Exception as error:
                    if not self.errors_travel:
                        raise
                    return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

            answers = [wired(answer) for answer in node.answer(order, work)]
            self.answers += answers
            self.replies += answers
        return ids

    def pull_messages(self, message_ids: Iterable[str]):
        wanted = set(message_ids)
        found = [r for r in self.replies if r.metadata.reply_to_message_id in wanted]
        self.replies = [r for r in self.replies if r.metadata.reply_to_message_id not in wanted]
        return found

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def wired(message: Message) -> Message:
    """The message as it arrives."""
    return message_from_proto(message_to_proto(message))


def direct_grid(app: ClientApp, config: dict, state_dir: Path, devices: int) -> InProcessGrid:
    """The same app on so many nodes, one per device; an error on one of them ends the test."""
    nodes = {}
    for device in range(devices):
        key = str(Path(config.get("run.keys", "keys")) / f"device-{device}")
        nodes[100 + device] = Node(app, {"partition-id": device, "state-dir": str(state_dir), "key": key})
    return InProcessGrid(dict(config), nodes, errors_travel=False)


def deploy(model, algorithm, app, config, folder: Path) -> tuple[Path, InProcessGrid]:
    """Run a deployment; gives the run folder and the grid that saw all messages."""
    config = {"run.join-seconds": 5, "run.out": str(folder / "run"), **config}
    config["run.keys"] = write_keys(folder / "keys", config.get("run.devices", 3))
    settings = Deployment.from_config(config)
    strategy = prepare(resolve(algorithm, config), model, settings)
    grid = direct_grid(app, config, folder / "state", settings.devices)
    strategy.start(grid)
    return finish(strategy), grid


class Small:
    """A small federation whose devices are ClientApps in this process, and a server to run on them."""

    def __init__(self, folder: Path, federation, model, **config):
        self.folder, self.federation, self.model = folder, federation, model
        base = {"run.devices": federation.devices, "run.out": str(folder / "run"), "run.join-seconds": 0}
        base["run.keys"] = write_keys(folder / "keys", federation.devices)
        self.config = base | {key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}
        self.grid = InProcessGrid(self.config)
        for device in range(federation.devices):
            self.add(100 + device, device)

    def add(self, node, device, **rest):
        app = client_app(self.model, lambda number, context: one_device(self.federation, number))
        key = str(self.folder / "keys" / f"device-{device}")
        config = {"partition-id": device, "state-dir": str(self.folder / "state"), "key": key}
        self.grid.nodes[node] = Node(app, config, **rest)

    @property
    def settings(self):
        return Deployment.from_config(self.config)

    def strategy(self, **changes):
        config = self.config | {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
        return prepare(algorithm_from(config), self.model, Deployment.from_config(config))

    def run(self, **changes) -> fedbc.Result:
        strategy = self.strategy(**changes)
        strategy.start(self.grid)
        return fedbc.load(finish(strategy))

    def state_file(self, device, name="state"):
        (file,) = (self.folder / "state").glob(f"*/device-{device}/{name}.safetensors")
        return file
