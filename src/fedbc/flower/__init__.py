"""Every algorithm of the package on real devices, with Flower (`pip install fedbc[flower]`)."""

from typing import TYPE_CHECKING

from fedbc import lazy
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
from fedbc.flower.tables import table_loader

if TYPE_CHECKING:
    from fedbc.flower.keys import make_keys
    from fedbc.flower.scaffold import write_app

__all__ = [
    "AlgorithmStrategy",
    "Deployment",
    "TooFewDevices",
    "algorithm_from",
    "client_app",
    "make_keys",
    "one_device",
    "read_state",
    "server_app",
    "table_loader",
    "write_app",
]

__getattr__ = lazy.attributes("fedbc.flower", {"make_keys": "keys", "write_app": "scaffold"})
"""What prepares a deployment is imported when it is asked for: a device, which starts anew for each message, has no use
for it."""
