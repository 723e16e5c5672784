"""Federations: data sets split over devices."""

from fedbc.data import partition
from fedbc.data.cifar10 import cifar10
from fedbc.data.federation import Federation, Split, federation, pooled
from fedbc.data.mnist import mnist
from fedbc.data.partition import from_partition
from fedbc.data.picture import picture
from fedbc.data.shakespeare import OtherEditionWarning, shakespeare
from fedbc.data.synthetic import synthetic
from fedbc.data.validation import held_out

__all__ = [
    "Federation",
    "OtherEditionWarning",
    "Split",
    "cifar10",
    "federation",
    "from_partition",
    "held_out",
    "mnist",
    "partition",
    "picture",
    "pooled",
    "shakespeare",
    "synthetic",
]
