"""Federations: data sets split over devices."""

from fedbc.data import partition
from fedbc.data.adapters import from_flwr, from_torch
from fedbc.data.cifar10 import cifar10
from fedbc.data.encoding import Encoding
from fedbc.data.federation import Federation, Split, federation, pooled, subset
from fedbc.data.frames import encode, from_frame, from_own_table
from fedbc.data.meaning import Meaning
from fedbc.data.mnist import mnist
from fedbc.data.partition import from_partition
from fedbc.data.picture import class_counts, picture
from fedbc.data.reading import read, rows_of_devices
from fedbc.data.shakespeare import OtherEditionWarning, shakespeare
from fedbc.data.splits import measured_examples, of_run, resplit, trained_on
from fedbc.data.synthetic import synthetic
from fedbc.data.tables import read_table
from fedbc.data.unseen import apart, unseen_devices
from fedbc.data.validation import held_out

__all__ = [
    "Encoding",
    "Federation",
    "Meaning",
    "OtherEditionWarning",
    "Split",
    "apart",
    "cifar10",
    "class_counts",
    "encode",
    "federation",
    "from_flwr",
    "from_frame",
    "from_own_table",
    "from_partition",
    "from_torch",
    "held_out",
    "measured_examples",
    "mnist",
    "of_run",
    "partition",
    "picture",
    "pooled",
    "read",
    "read_table",
    "resplit",
    "rows_of_devices",
    "shakespeare",
    "subset",
    "synthetic",
    "trained_on",
    "unseen_devices",
]
