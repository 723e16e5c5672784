"""FedBC on devices that clip what they send and add noise to it; the run-config says how much."""

from flwr.app import Context

import fedbc
from fedbc.flower import client_app, one_device, server_app
from fedbc.flower.privacy import privacy_mod, private_from

model = fedbc.models.logistic(60, 10)


def load_data(device: int, context: Context) -> fedbc.data.Federation:
    """This device's share; with data of your own, return ((x, y), (x, y)), training and test."""
    config = context.run_config
    whole = fedbc.data.synthetic(devices=int(config["run.devices"]), seed=int(config["data.seed"]))
    return one_device(whole, device)


server = server_app(model, algorithm=private_from)
client = client_app(model, load_data, mods=[privacy_mod])
