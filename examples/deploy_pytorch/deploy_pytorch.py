"""FedBC on devices that train with PyTorch.

The model is any `nn.Module`, the data any `DataLoader`, neither of which knows of federated learning. Of the training
loop two lines are new: `local.attach` and `local.record`.
"""

import torch
from flwr.app import Context
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedbc
from fedbc.flower import server_app
from fedbc.torch.flower import client_app, initial_model


class Net(nn.Module):
    """A model as one finds it, BatchNorm and dropout included."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(60, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def load_data(device: int, context: Context) -> tuple[DataLoader, DataLoader]:
    """This device's data, training and test; here a share of the paper's synthetic data, in your case your own."""
    config = context.run_config
    whole = fedbc.data.synthetic(devices=int(config["run.devices"]), seed=int(config["data.seed"]))
    train, test = (
        TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64))
        for x, y in (whole.train.of(device), whole.test.of(device))
    )
    # BatchNorm cannot train on a last batch of one example.
    return DataLoader(train, batch_size=20, shuffle=True, drop_last=True), DataLoader(test, batch_size=500)


def train(module: nn.Module, loader: DataLoader, local: fedbc.torch.LocalRound, config: dict) -> None:
    """One round's local training."""
    optimizer = local.attach(torch.optim.SGD(module.parameters(), lr=config["algorithm.lr"], momentum=0.5))
    for _ in range(config["run.epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), y)
            loss.backward()
            optimizer.step()
            local.record(loss)


torch.manual_seed(0)
model = initial_model(Net())
server = server_app(model)
client = client_app(Net, load_data, train, model=model)
