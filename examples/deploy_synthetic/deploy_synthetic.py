"""FedBC, or any other method of the package, on devices that hold the paper's synthetic data."""

from flwr.app import Context

import fedbc
from fedbc.flower import client_app, one_device, server_app

model = fedbc.models.logistic(60, 10)


def load_data(device: int, context: Context) -> fedbc.data.Federation:
    """This device's share; with data of your own, return ((x, y), (x, y)), training and test."""
    config = context.run_config
    whole = fedbc.data.synthetic(devices=int(config["run.devices"]), seed=int(config["data.seed"]))
    return one_device(whole, device)


server = server_app(model)
client = client_app(model, load_data)
