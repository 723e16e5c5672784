"""A device with a registered key that does not run this package, and answers orders with what a server should survive.

hostile.py ADDRESS KEY: the order to train of round 1 is answered with a list that would unpack to much more than was
sent, that of round 2 with an answer that is announced and never sent, that of round 3 with objects nested where none
belong. Nothing is ever confirmed, so that orders may come again.
"""

import sys
import time
from pathlib import Path

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity

from fedbc.flower.app_process import reply_of
from fedbc.flower.link import Link
from fedbc.flower.node_key import read_private_key


def nested(tree):
    """The same tree with a leaf below its record."""
    tree = ObjectTree.FromString(tree)
    tree.children[0].children[0].children.append(ObjectTree(object_id="0" * 64))
    return tree.SerializeToString()


def main(address, key):
    link = Link(address, "keys/ca.crt", read_private_key(Path(key)))
    public = public_key_to_bytes(link.key.public_key())
    node = Node(
        node_id=link.ask("ActivateNode", fleet.ActivateNodeRequest(public_key=public, heartbeat_interval=600)).node_id
    )
    while True:
        found = link.ask("PullMessages", fleet.PullMessagesRequest(node=node)).messages_list
        if not found:
            time.sleep(0.3)
            continue
        order = message_from_proto(found[0])
        run_id = order.metadata.run_id
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 0, node.node_id
        trains, number = order.metadata.message_type == "train", int(order.metadata.group_id)
        fields = {"metrics": [0] * 1_000_000} if number == 1 else {"x": number}
        content = RecordDict({"fedbc": ConfigRecord(fields)}) if trains else Error(0, "no")
        reply = reply_of(Message(content, reply_to=order))
        tree = nested(reply.tree) if trains and number == 3 else reply.tree
        request = fleet.PushMessagesRequest(
            node=node,
            messages_list=[MessageProto.FromString(reply.message)],
            message_object_trees=[ObjectTree.FromString(tree)],
            clientapp_runtime_list=[0.0],
        )
        taken = link.ask("PushMessages", request)
        for object_id, content in reply.objects.items() if not trains or number != 2 else ():
            push = PushObjectRequest(node=node, run_id=run_id, object_id=object_id, object_content=content)
            push.session_id = taken.session_id
            link.ask("PushObject", push)


if __name__ == "__main__":
    main(*sys.argv[1:])
