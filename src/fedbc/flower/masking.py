"""A device's part in a secure sum: what an order of a stage is answered with, whichever of the two sums it is for.

An order of a stage is an order to train or to evaluate that also says `stage`, `attempt` and `secure`, the protocol's
own text; the order of stage "masked" brings the arrays to work from. The answer has the protocol's bytes in the place
of arrays, no metrics, and 1 in the place of the number of examples. What a device does at each stage: `fedbc.secure`.

The device signs with the key by which the server knows it, and knows the others by their public keys, from the folder
in which its own key is: `fedbc deploy keys` made them, and `fedbc deploy pack` put them there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedbc.errors import InputError
from fedbc.flower.messages import Kind, MessageError, Order
from fedbc.flower.node_key import read_private_key
from fedbc.flower.roster import registered_keys
from fedbc.flower.settings import Deployment
from fedbc.secure import Participant, Session, Stage
from fedbc.secure.record import File
from fedbc.secure.vectors import Layout

FIELDS = ("stage", "attempt", "secure")
RECORD = "secure.safetensors"
"""The record of an attempt, in the device's own folder."""


def session_of(run: str, round: int, phase: Kind, attempt: int, layout: Layout, settings: Deployment) -> Session:
    """What all who take part in an attempt agree on."""
    return Session(run, round, str(phase), attempt, settings.min_devices, layout.digest, layout.length)


def answer(
    order: Order,
    phase: Kind,
    config: Mapping[str, Any],
    layout: Layout,
    settings: Deployment,
    folder: Path,
    node_config: Mapping[str, Any],
    vector: Callable[[], np.ndarray],
) -> bytes:
    """The protocol's answer of a device to an order; `folder` is its own, `vector` gives what it contributes."""
    stage, attempt, text = _fields(config)
    session = session_of(order.run, order.round, phase, attempt, layout, settings)
    return participant(order.device, folder, node_config).answer(stage, session, text, vector)


def participant(number: int, folder: Path, node_config: Mapping[str, Any]) -> Participant:
    """The device with its key, and the list of the others'."""
    named = node_config.get("key")
    if not named:
        raise InputError("a device needs its key for secure sums: start it with supernode.sh, or give key=FILE")
    file = Path(str(named)).expanduser()
    keys = registered_keys(Path(str(node_config.get("keys") or file.parent)).expanduser())
    return Participant(number, read_private_key(file), keys, File(folder / RECORD))


def _fields(config: Mapping[str, Any]) -> tuple[Stage, int, bytes]:
    stage, attempt, text = (config.get(name) for name in FIELDS)
    if stage is None:
        raise MessageError("an order without a stage: this run has secure sums only")
    if stage not in list(Stage) or type(attempt) is not int or attempt < 0 or not isinstance(text, bytes):
        raise MessageError(f"its stage {stage!r:.40}, attempt or text are not of a secure sum")
    return Stage(stage), attempt, text
