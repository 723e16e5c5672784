"""Every algorithm of the package on real devices, with Flower (`pip install fedbc[flower]`)."""

from fedbc.errors import InputError

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise InputError("fedbc.flower needs Flower: pip install 'fedbc[flower]'") from error

from fedbc.flower.client import client_app
from fedbc.flower.data import one_device
from fedbc.flower.server import server_app
from fedbc.flower.settings import Deployment, algorithm_from
from fedbc.flower.state import read_state
from fedbc.flower.strategy import AlgorithmStrategy, TooFewDevices

__all__ = [
    "AlgorithmStrategy",
    "Deployment",
    "TooFewDevices",
    "algorithm_from",
    "client_app",
    "one_device",
    "read_state",
    "server_app",
]
