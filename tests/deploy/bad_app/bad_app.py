"""An app whose devices misbehave as their SuperNode's configuration says, by Flower's mods."""

import time
from pathlib import Path

import numpy as np

import fedbc
from fedbc.flower import client_app, one_device, packs, server_app

model = fedbc.models.logistic(60, 10)


def load_data(device, context):
    return one_device(fedbc.data.synthetic(devices=6, seed=1), device)


def misbehave(message, context, call_next):
    """`faults` names one fault a round: nan, shapes, lambda, late, stall; good is none of them."""
    faults = str(context.node_config.get("faults", "")).split(",")
    number = int(message.content["fedbc"]["round"])
    training = message.metadata.message_type == "train"
    fault = faults[number - 1] if training and 0 < number <= len(faults) else "good"
    if fault == "stall":
        Path(str(context.node_config["stalled"])).write_text(str(number))
        time.sleep(600)
    reply = call_next(message, context)
    if fault == "late":
        time.sleep(float(context.run_config["run.round-seconds"]) + 1)
    if fault in CHANGES:
        arrays = {name: array.copy() for name, array in packs.load(reply.content["fedbc"]["arrays"]).items()}
        CHANGES[fault](arrays)
        reply.content["fedbc"]["arrays"] = packs.pack({name: np.asarray(a) for name, a in arrays.items()})
    return reply


CHANGES = {
    "nan": lambda arrays: arrays["summand.plain.w"].__setitem__((0, 0), np.nan),
    "shapes": lambda arrays: arrays.update({"summand.weighted.b": np.zeros(11, np.float32)}),
    "lambda": lambda arrays: arrays.update({"summand.weight": np.float32(50)}),
}

server = server_app(model)
client = client_app(model, load_data, mods=[misbehave])
