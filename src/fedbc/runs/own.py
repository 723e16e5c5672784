"""What a run has of one's own: data from files and a model from a Python file, told by their content."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedbc.data import Federation, reading
from fedbc.errors import InputError
from fedbc.models import Model

OWN = "own"
"""The name of one's own data, and of one's own model, in a specification."""


def located(table: Mapping[str, Any]) -> dict[str, Any]:
    """The [data] table with what a TOML file of details says, whole paths, and the checksum of what lies there."""
    whole = {k: v for k, v in table.items() if v is not None}
    if "file" not in whole:
        raise InputError("data file is missing: say which file or folder holds your data")
    file = Path(whole["file"]).expanduser()
    if file.suffix.lower() == reading.DETAILS:
        whole = reading.details(file) | {k: v for k, v in whole.items() if k != "file"}
        file = Path(whole["file"])
    whole["file"] = str(file.resolve())
    if "test_data" in whole:
        whole["test_data"] = str(Path(whole["test_data"]).expanduser().resolve())
    whole.setdefault("checksum", "")
    whole["checksum"] = whole["checksum"] or reading.checksum_of(whole["file"], whole.get("test_data"))
    return whole


def located_model(table: Mapping[str, Any]) -> dict[str, Any]:
    """The [model] table with a whole path and the checksum of the Python file."""
    if table.get("file") is None:
        raise InputError("model file is missing: say which Python file makes your model")
    file = Path(table["file"]).expanduser().resolve()
    return {**table, "file": str(file), "checksum": table.get("checksum") or _checksum(file)}


def _checksum(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise InputError(f"model={str(file)!r} cannot be read ({error.strerror})") from None


def load_model(
    file: str,
    function: str = "make",
    arguments: Mapping[str, Any] | None = None,
    features: int | None = None,
    classes: int | None = None,
    checksum: str | None = None,
) -> Model:
    """Your own model: what a function in a Python file of yours gives.

    file: the Python file.
    function: the function in it that gives a `fedbc.models.Model`.
    arguments: what the function is called with, such as hidden=64,dropout=0.1.
    features: handed to a function that has such an argument; how many numbers an example of the data has, if not given.
    classes: likewise; how many classes the data have, if not given.
    checksum: of the file that a run was made with; another content is refused.
    """
    path = Path(file).expanduser()
    if checksum is not None and _checksum(path) != checksum:
        raise InputError(f"model={file!r} is no longer the file that the run was made with (checksum {checksum})")
    make = _function(path, function)
    known = inspect.signature(make).parameters
    of_data = {"features": features, "classes": classes}
    given = {k: v for k, v in of_data.items() if k in known and v is not None} | dict(arguments or {})
    try:
        inspect.signature(make).bind(**given)
    except TypeError as error:
        raise InputError(f"model={path.name}:{function} cannot be called so: {error}") from None

    def called() -> Any:
        try:
            return make(**given)
        except Exception as error:
            raise InputError(f"model={path.name}:{function} failed: {_where(error, path)}") from error

    model = _seeded(FIRST_SEED, called)
    if not isinstance(model, Model):
        raise InputError(
            f"model={path.name}:{function} gives a {type(model).__name__}: it must give a fedbc.models.Model, such as "
            "fedbc.models.mlp(20, 64, 3), or one of your own init and apply"
        )
    return model if model.rounds is None else replace(model, init=_made_anew(model, called))


FIRST_SEED = 0
"""Under which a model is made whose weights do not count."""


def _made_anew(model: Model, called: Callable[[], Model]) -> Callable[[Any], Any]:
    """The model's `init`, with the module made by a seed of the key's.

    `fedbc.torch.model(Net())` starts from the weights that this Net has. In a file such a Net is made anew in every
    process, with other weights each time: methods and seeds would not start where the run's seed says.
    """

    def init(key: Any) -> Any:
        if isinstance(key, jax.core.Tracer):  # somebody asks for shapes
            return model.init(key)
        seed = int(np.asarray(jax.random.bits(key)))
        return _seeded(seed, called).init(key)

    return init


def _seeded(seed: int, make: Callable[[], Any]) -> Any:
    """What is made under PyTorch's seed, if PyTorch is there, whose random numbers go on afterwards as before."""
    torch = sys.modules.get("torch")
    if torch is None:
        return make()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _function(path: Path, function: str) -> Any:
    name = f"_fedbc_own_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"model={str(path)!r} is not accepted: give a Python file and a function, model.py:make")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"model={path.name} cannot be imported: {_where(error, path)}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise InputError(f"model={path.name} has no function {function!r}")
    return found


def _where(error: Exception, path: Path) -> str:
    """The error, with the line of the file in which it arose."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno or 0]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"


def usual_model(federation: Federation) -> str:
    """What is used if nobody says: for regression `linear`, else `logistic`."""
    return "linear" if federation.classes is None else "logistic"


SIZES = ("features", "classes", "outputs")
"""Arguments of models that the data say."""


def sizes(federation: Federation) -> dict[str, int | None]:
    """What models ask of the data: how many numbers an example has, how many classes or quantities there are."""
    features = 1
    for length in federation.train.x.shape[1:]:
        features *= length
    outputs = None if federation.classes is not None else int(federation.train.y[0].size)
    return {"features": features, "classes": federation.classes, "outputs": outputs}
