"""A device's own table: read on the device, by the rule that all devices share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context

from fedbc.data import Federation, Meaning, from_own_table, read_table
from fedbc.errors import InputError
from fedbc.flower.data import LoadData


def table_loader(
    meaning: Meaning, *, test_column: str | None = None, test_share: float = 0.2, seed: int = 1
) -> LoadData:
    """A data function for `client_app`: the device's own table, as the simulator takes its rows of a common one.

    The table's path is `data` in the node's configuration: `NODE_CONFIG='data="/srv/clinic.csv"' ./supernode.sh 0`.

    meaning: the names of devices and classes, and the rule by which columns become numbers: `Federation.meaning`.
    test_column, test_share, seed: as in `fedbc.data.read`.
    """

    def load_data(device: int, context: Context) -> Federation:
        path = _path(device, context.node_config)
        owner = [meaning.encoding.device] if meaning.encoding is not None else []
        frame = read_table(path, owner)
        return from_own_table(meaning, frame, device, test_column=test_column, test_share=test_share, seed=seed)

    return load_data


def _path(device: int, node_config: Any) -> Path:
    said = node_config.get("data")
    if not isinstance(said, str) or not said:
        raise InputError(
            f"device {device} does not know where its table is: start it with "
            f"NODE_CONFIG='data=\"/srv/clinic.csv\"' ./supernode.sh {device}, or put the table into data/{device}.csv"
        )
    return Path(said).expanduser()
