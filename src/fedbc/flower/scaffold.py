"""The app folder that `fedbc deploy init` writes: ready to run, with a data function to fill in."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedbc import checks, storage
from fedbc.algorithms.base import Algorithm
from fedbc.errors import InputError
from fedbc.flower.own_app import own_files
from fedbc.flower.settings import Deployment
from fedbc.runs import RunSpec
from fedbc.runs.catalog import entry

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
TEMPLATES = ("pyproject.toml", "app.py", "env.sh", "superlink.sh", "superexec.sh", "supernode.sh", "README.md")
FILL_IN = "Fill in `load_data` in `{module}.py`."
OWN_TABLES = (
    "Each device reads its own table: the one in its `NODE_CONFIG='data=\"/srv/table.csv\"'`,\n"
    "or `data/NUMBER.csv`, which holds rows to try the app with."
)

MOST_EXAMPLES = 100_000
"""Of a device, in an app with secure aggregation: the range of n_i needs an end."""
LARGEST_MULTIPLIER = 10.0
"""The range of lambda_i needs one, too."""
SUMS = """
`run.secure = true`: the server learns sums over devices, and no device's part of them (docs/secure.md says what that
takes and what remains). Each device needs the public keys of all, `keys/device-*.pub`, from you and not from the
server: `fedbc deploy pack machines` puts them there. `supernode.sh` starts devices that refuse all but secure sums.
"""


def write_app(
    folder: Path,
    *,
    algorithm: str = "fedbc",
    devices: int = 3,
    rounds: int = 20,
    address: str = "127.0.0.1:8000",
    own: RunSpec | None = None,
    secure: bool = False,
) -> list[Path]:
    """Write a Flower app to a new folder, whose name becomes the app's; returns its files.

    algorithm: its name; its hyper-parameters stand in pyproject.toml with their defaults.
    devices: how many there are. rounds: how many to run. address: where devices reach the SuperLink.
    own: a specification with your own tables, whose algorithm, devices and model are taken; each device then reads a
        table of its own, and what is here of each lies in `data`, to try the app with.
    secure: with secure aggregation, and devices that refuse all else.
    """
    if own is not None:
        devices = own.build()[2].devices  # the model is made, too: one that fails would fail on every device
    checks.integer("devices", devices, at_least=1)
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise InputError(f"folder={str(folder)!r} is not accepted: its name becomes the app's, begin it with a letter")
    if name == "fedbc":
        raise InputError("folder='fedbc' is not accepted: an app of that name hides the package; take another one")
    host, port = split_address(address)
    method = own.build_part("algorithm") if own is not None else entry("algorithm", algorithm).build()
    settings = Deployment(devices=devices, rounds=rounds, min_devices=max(1, (devices + 1) // 2), out=f"runs/{name}")
    if secure:
        method, settings = _secured(method, settings)
    module = name.replace("-", "_")
    words = {
        "name": name,
        "module": module,
        "algorithm": _algorithm_lines(method),
        "run": _run_lines(settings),
        "begin": FILL_IN.format(module=module) if own is None else OWN_TABLES,
        "devices": str(devices),
        "last": str(devices - 1),
        "address": address,
        "host": host,
        "port": str(port),
        "node_config": "secure=true " if secure else "",
        "sums": SUMS if secure else "",
    }
    files = own_files(own, module) if own is not None else {}
    templates = resources.files("fedbc.flower").joinpath("template")
    with storage.new_folder(folder) as new:
        for template in TEMPLATES:
            text = Template(templates.joinpath(f"{template}.template").read_text("utf-8"))
            target = new / (f"{words['module']}.py" if template == "app.py" else template)
            storage.write_atomically(target, text.substitute(words))
            if target.suffix == ".sh" and target.name != "env.sh":
                os.chmod(target, 0o755)
        for name, content in files.items():
            (new / name).parent.mkdir(exist_ok=True)
            storage.write_atomically(new / name, content)
        storage.write_atomically(new / ".gitignore", "keys/\nmachines/\nflwr/\nstate/\nruns/\ndata/\n")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _secured(method: Algorithm, settings: Deployment) -> tuple[Algorithm, Deployment]:
    """With secure aggregation, and with ends to what has none."""
    checks.integer("devices with secure aggregation", settings.devices, at_least=2)
    least = max(2, settings.min_devices)
    settings = dataclasses.replace(settings, secure=True, min_devices=least, most_examples=MOST_EXAMPLES)
    if getattr(method, "lambda_max", 0) == math.inf:
        arguments: dict[str, Any] = {"lambda_max": LARGEST_MULTIPLIER}
        method = dataclasses.replace(method, **arguments)
    return method, settings


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address; what is not one is an InputError: it becomes part of shell scripts."""
    host, _, port = address.rpartition(":")
    if not HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"address={address!r} is not accepted: give host:port, such as server.example.org:8000")
    return host, int(port)


def _algorithm_lines(algorithm: Algorithm) -> str:
    """The hyper-parameters that a run-config can hold, with what each means."""
    lines: list[tuple[str, Any, str]] = [("algorithm.name", algorithm.name, "")]
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if isinstance(value, bool | int | float | str):
            lines.append((f"algorithm.{field.name.replace('_', '-')}", value, field.metadata.get("help", "")))
    return _lines(lines)


def _run_lines(settings: Deployment) -> str:
    fields = dataclasses.fields(settings)
    return _lines([(f"run.{f.name.replace('_', '-')}", getattr(settings, f.name), f.metadata["help"]) for f in fields])


def _lines(rows: list[tuple[str, Any, str]]) -> str:
    texts = [f"{key} = {_toml(value)}" for key, value, _ in rows]
    width = min(44, max(len(text) for text in texts))
    return "\n".join(
        f"{text:<{width}}  # {help}" if help else text for text, (_, _, help) in zip(texts, rows, strict=True)
    )


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)  # TOML writes inf as Python does
