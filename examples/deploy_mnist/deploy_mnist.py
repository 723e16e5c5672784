"""FedBC on devices that hold different digits: MNIST, split by a Dirichlet distribution.

Every device reads the data files itself, from the folder that its FEDBC_DATA names, and keeps its own share.
"""

from flwr.app import Context

import fedbc
from fedbc.flower import client_app, one_device, server_app

model = fedbc.models.mlp()


def load_data(device: int, context: Context) -> fedbc.data.Federation:
    """This device's digits."""
    config = context.run_config
    whole = fedbc.data.mnist(
        devices=int(config["run.devices"]),
        partition="dirichlet",
        concentration=float(config["data.concentration"]),
    )
    return one_device(whole, device)


server = server_app(model)
client = client_app(model, load_data)
