"""One run on many machines: each owns some of the devices, and each round adds one sum (`jax.distributed`)."""

from fedbc.machines.joining import here, join
from fedbc.machines.share import Share, load, owners
from fedbc.machines.world import Machines

__all__ = ["Machines", "Share", "here", "join", "load", "owners"]
