"""A deployment without processes: the real ServerApp's strategy and the real ClientApps, messages passed by hand.

Every message goes through Flower's own serialisation, so that what arrives is what a wire would bring. Real processes
are in `deploy/loopback.py`; this is for the many cases that differ in content only.
"""

import itertools
import warnings

with warnings.catch_warnings():  # Flower's own imports warn
    warnings.simplefilter("ignore")
    from flwr.app import Context, RecordDict
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.supercore.task_identity import TaskIdentity

from fedbc.flower.server import finish, prepare
from fedbc.flower.settings import Deployment, built


class DirectGrid:
    """Flower's Grid as far as the strategy uses it; node ids are device numbers and 100."""

    def __init__(self, app, config, state_dir, devices):
        self.app, self.numbers, self.answers = app, itertools.count(1), {}
        self.sent, self.received = [], []
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower does before it starts an app
        self.contexts = {
            100 + device: Context(
                1, 100 + device, {"partition-id": device, "state-dir": str(state_dir)}, RecordDict(), dict(config)
            )
            for device in range(devices)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{next(self.numbers)}"
            arrived = message_from_proto(message_to_proto(message))
            self.sent.append(arrived)
            reply = self.app(arrived, self.contexts[message.metadata.dst_node_id])
            reply = message_from_proto(message_to_proto(reply))
            self.received.append(reply)
            self.answers[message.metadata.message_id] = reply
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, ids):
        return [self.answers.pop(i) for i in ids if i in self.answers]


def deploy(model, algorithm, app, config, tmp_path):
    """Run a deployment; gives the run folder and the grid that saw all messages."""
    config = {"run.join-seconds": 5, "run.out": str(tmp_path / "run"), **config}
    settings = Deployment.from_config(config)
    strategy = prepare(built(algorithm, config), model, settings)
    grid = DirectGrid(app, config, tmp_path / "state", settings.devices)
    strategy.start(grid)
    return finish(strategy), grid
