"""The app of a federation whose devices hold tables: its module, the rule that all share, and rows to try it with."""

from __future__ import annotations

import pprint
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbc.data import rows_of_devices
from fedbc.errors import InputError
from fedbc.runs import OWN, RunSpec

SPLIT = ("test_column", "test_share", "seed")
"""What a device's own table is divided by."""

MODULE = '''"""The model, this device's own table, and the two apps that Flower runs."""
{imports}
from fedbc.flower import client_app, server_app, table_loader{after}
from {module}_meaning import MEANING

model = {model}
# Each device reads its own table, on itself: data/NUMBER.csv, or the path in its NODE_CONFIG. The rule by which columns
# become numbers is the same for all.
load_data = table_loader({arguments})

server = server_app(model, meaning=MEANING)
client = client_app(model, load_data)
'''

MEANING = '''"""The names of devices and classes, and the rule by which columns become numbers, made from {file}."""

from fedbc.data import Meaning

MEANING = Meaning.from_plain(
{table}
)
'''


def own_files(spec: RunSpec, module: str) -> dict[str, str]:
    """The files of an app for the data and the model of a specification, by their paths in its folder."""
    data = spec.data
    if data.get("test_data") is not None:
        raise InputError("test_data does not apply to a deployment: a device has one table; mark rows by test_column")
    federation = spec.build_part("data")
    if federation.encoding is None:
        raise InputError(
            f"data={data['file']!r} holds no tables: for arrays and images write the app without --data and fill in "
            "its load_data"
        )
    said = {name: data[name] for name in SPLIT if data.get(name) is not None}
    arguments = ", ".join(["MEANING", *(f"{name}={value!r}" for name, value in said.items())])
    imports, after, model = _model(spec.model)
    plain = pprint.pformat(federation.meaning.to_plain(), width=110, sort_dicts=False)
    files = {
        f"{module}.py": MODULE.format(imports=imports, after=after, module=module, model=model, arguments=arguments),
        f"{module}_meaning.py": MEANING.format(file=Path(data["file"]).name, table=plain),
    }
    if spec.model["name"] == OWN:
        own = Path(spec.model["file"])
        if own.name in files:
            raise InputError(f"model={own.name} has the name of the app's own file: give the folder another name")
        files[own.name] = own.read_text(encoding="utf-8")
    for device, rows in enumerate(rows_of_devices(federation.meaning, data["file"], data.get("device"))):
        files[f"data/{device}.csv"] = rows.to_csv(index=False)
    return files


def _model(table: Mapping[str, Any]) -> tuple[str, str, str]:
    """The imports that a model needs before and after the app's own, and the expression that makes it."""
    given = {k: v for k, v in table.items() if k not in ("name", "file", "function", "checksum") and v is not None}
    if table["name"] != OWN:
        return (
            "\nimport fedbc",
            "",
            f"fedbc.models.{table['name']}({', '.join(f'{k}={v!r}' for k, v in given.items())})",
        )
    place = f'str(Path(__file__).with_name("{Path(table["file"]).name}"))'
    words = [place, repr(table.get("function", "make")), *(f"{k}={v!r}" for k, v in given.items())]
    return "\nfrom pathlib import Path\n", "\nfrom fedbc.runs import load_model", f"load_model({', '.join(words)})"
