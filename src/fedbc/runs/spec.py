"""A run as plain values: what a TOML file, the command line and a run folder's spec.json hold."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbc import checks, storage
from fedbc.algorithms.finetune import FineTune
from fedbc.data.files import VARIABLE as DATA_PLACE
from fedbc.errors import InputError, unknown
from fedbc.runs import own
from fedbc.runs.catalog import Entry, entry
from fedbc.simulation.amounts import canonical
from fedbc.simulation.settings import Settings
from fedbc.simulation.simulate import simulate
from fedbc.simulation.telling import data_name

USUAL_MODEL = {"synthetic": "logistic", "mnist": "mlp", "cifar10": "cnn", "shakespeare": "lstm"}
"""The model that the paper uses for each data set."""

RUN_OPTIONS = {
    name: p
    for name, p in inspect.signature(simulate).parameters.items()
    if name in {"rounds", *(f.name for f in dataclasses.fields(Settings))}
}
"""The arguments of `simulate` that a specification holds."""

PARTS = ("algorithm", "data", "model", "run")

NOT_COMPUTED = {("run", "lanes"), ("data", "data_dir"), ("data", "file"), ("data", "test_data"), ("model", "file")}
"""Arguments that say how and where, not what: they do not count for a run's identity. One's own files count by their
checksums."""

Tables = Mapping[str, Mapping[str, Any]]
Problem = tuple[Any, Any, Any]
"""The algorithm, the model and the federation of a specification."""


@dataclass(frozen=True)
class RunSpec:
    """Algorithm, data, model and run; each part is a table of plain values, the first three with a `name`."""

    algorithm: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=lambda: {"name": "synthetic"})
    model: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entry("algorithm", self.algorithm.get("name"))
        entry("data", self.data.get("name"))
        has_own_data = self.data["name"] == own.OWN
        if has_own_data:
            object.__setattr__(self, "data", own.located(self.data))
        if "name" not in self.model:
            usual = own.usual_model(self.build_part("data")) if has_own_data else USUAL_MODEL.get(self.data["name"])
            if usual is None:
                raise InputError(f"model is missing: data {self.data['name']} has no usual one")
            object.__setattr__(self, "model", {"name": usual, **self.model})
        wanted = entry("model", self.model["name"])
        if self.model["name"] == own.OWN:
            object.__setattr__(self, "model", own.located_model(self.model))
        if has_own_data:
            self._fit_model(wanted)
        for name in self.run:
            if name not in RUN_OPTIONS:
                raise unknown("run: argument", name, RUN_OPTIONS)
        # TOML has no None: a word stands for it where None is accepted.
        run = {k: None if v == "none" and "None" in str(RUN_OPTIONS[k].annotation) else v for k, v in self.run.items()}
        if isinstance(run.get("evaluate"), str):  # a word by itself is a list of one
            run["evaluate"] = [run["evaluate"]]
        for name in ("epochs", "steps"):  # a pair is a draw, which JSON and TOML would take for a list of two
            if isinstance(run.get(name), tuple):
                run[name] = canonical(name, run[name])
        object.__setattr__(self, "run", run)

    def _fit_model(self, wanted: Entry) -> None:
        """What the model asks of the data and nobody has said: one's own data have sizes of their own."""
        lacking = [name for name in own.SIZES if name in wanted.options and self.model.get(name) is None]
        if lacking:
            found = own.sizes(self.build_part("data"))
            known = {name: found[name] for name in lacking if found[name] is not None}
            object.__setattr__(self, "model", {**self.model, **known})

    @property
    def data_name(self) -> str:
        """What the data are called: one's own by their file."""
        return data_name(self.data)

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> RunSpec:
        """From nested tables, as TOML and JSON give them; `versions` may be there and is passed over."""
        for name, table in tables.items():
            if name == "versions":
                continue
            if name not in PARTS:
                raise unknown("table", name, PARTS)
            if not isinstance(table, Mapping):
                raise InputError(f"{name}={table!r} is not accepted: give a table, such as [{name}]")
        if "algorithm" not in tables:
            raise InputError('the table [algorithm] is missing: it needs at least name = "fedbc"')
        return cls(**{name: dict(tables[name]) for name in PARTS if name in tables})

    @functools.cached_property
    def identity(self) -> str:
        """A hash of what the run computes."""
        return identity({part: getattr(self, part) for part in PARTS})

    def build(self) -> Problem:
        """The algorithm, the model and the federation; who builds the same data again soon gets the same object."""
        algorithm, model = self.build_part("algorithm"), self.build_part("model")
        return algorithm, model, self.build_part("data")

    def build_part(self, part: str) -> Any:
        """One of the three, from its table."""
        table = dict(getattr(self, part))
        named = entry(part, table.pop("name"))
        if part == "data":
            return _build_data(named.name, storage.to_json(table), named.build, os.environ.get(DATA_PLACE))
        return named.make(table)

    def to_dict(self) -> dict[str, Any]:
        """All values, the defaults included, so that a stored specification does not depend on them."""
        full: dict[str, Any] = {}
        for part in ("algorithm", "data", "model"):
            table = dict(getattr(self, part))
            name = table.pop("name")
            defaults = {k: o.default for k, o in entry(part, name).options.items()}
            full[part] = {"name": name, **defaults, **table}
        full["run"] = {k: p.default for k, p in RUN_OPTIONS.items()} | dict(self.run)
        full["run"]["evaluate"] = list(full["run"]["evaluate"])
        return full

    def to_toml(self) -> str:
        """The file that `fedbc run --config` takes: every value that TOML can say, the defaults included."""
        lines = []
        for part, table in self.to_dict().items():
            options = RUN_OPTIONS if part == "run" else entry(part, table["name"]).options
            said = {
                k: "none" if v is None and options[k].default is not None else v  # type: ignore[attr-defined]
                for k, v in table.items()
            }
            lines += [f"[{part}]", *toml_lines(said), ""]
        return "\n".join(lines)

    def run_arguments(self) -> dict[str, Any]:
        """The arguments of `simulate` besides algorithm, model and federation."""
        run = self.to_dict()["run"]
        how = run["fine_tune"]
        return run | {"fine_tune": fine_tune_from(how) if how is not None else None}

    def settings(self) -> tuple[int, Settings]:
        """How many rounds, and the settings of the simulation."""
        run = self.run_arguments()
        rounds = checks.integer("rounds", run.pop("rounds"), at_least=1)
        return rounds, Settings(**run | {"evaluate": tuple(run["evaluate"])}).completed(rounds)

    def check(self, algorithm: Any, model: Any, federation: Any) -> None:
        """Raise an InputError if the run could not be carried out with what was built."""
        self.settings()[1].check(algorithm, model, federation)

    def with_seed(self, seed: int) -> RunSpec:
        """The same run with another seed."""
        return dataclasses.replace(self, run={**self.run, "seed": seed})

    def with_split(self, split: int) -> RunSpec:
        """The same run on another division of the devices' examples into training and test sets."""
        return dataclasses.replace(self, run={**self.run, "resplit": split})

    @property
    def split(self) -> int:
        """Which division that is."""
        return int(self.run.get("resplit", RUN_OPTIONS["resplit"].default))

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.run.get("seed", RUN_OPTIONS["seed"].default))


def identity(tables: Tables) -> str:
    """A hash of what the tables of a specification compute, whether or not they say their defaults.

    Only what differs from the defaults counts, so that an argument which is added to a method later, with a default,
    leaves the identities of all earlier runs as they are. How a run is done and where its files lie do not count.
    """
    counted = {}
    for part in PARTS:
        table = tables.get(part, {})
        try:
            counted[part] = _counted_of_text(part, json.dumps(table, sort_keys=True))
        except TypeError:  # values that only `storage.plain` makes plain
            counted[part] = what_counts(part, table)
    return hashlib.sha256(json.dumps(counted).encode()).hexdigest()[:16]


def what_counts(part: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """What of a table counts: the arguments that differ from the defaults, sorted; not how, nor where files lie."""
    defaults = _defaults(part, str(table.get("name", "")))
    return {
        key: plain
        for key, value in sorted(table.items())
        if (part, key) not in NOT_COMPUTED and (plain := _number(value)) != defaults.get(key, _ABSENT)
    }


@functools.lru_cache(maxsize=2**14)
def _counted_of_text(part: str, table: str) -> dict[str, Any]:
    """The same of a table as text: thousands of runs share their tables."""
    return what_counts(part, json.loads(table))


_ABSENT = object()


@functools.cache
def _defaults(part: str, name: str) -> dict[str, Any]:
    options: Mapping[str, Any] = RUN_OPTIONS
    if part != "run":
        try:
            options = entry(part, name).options
        except InputError:  # a description by the simulator, not by names
            return {}
    return {key: _number(option.default) for key, option in options.items()}


def _number(value: Any) -> Any:
    """A value as a hash sees it: 1 and 1.0 are the same number."""
    value = storage.plain(value)
    if isinstance(value, dict):
        return {key: _number(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_number(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@functools.lru_cache(maxsize=2)
def _build_data(name: str, arguments: str, *sources: object) -> Any:
    """A process runs many specifications on the same data; `sources` are the function that builds them, and the place
    where the data sets lie, if that is said."""
    return entry("data", name).make(json.loads(arguments))


def fine_tune_from(table: object) -> FineTune:
    """Fine-tuning from a table such as { steps = 1, lr = 0.01, on = "train", of = "local" }."""
    names = [f.name for f in dataclasses.fields(FineTune)]
    if not isinstance(table, Mapping):
        raise InputError(f"fine_tune={table!r} is not accepted: give a table with some of {', '.join(names)}")
    for name in table:
        if name not in names:
            raise unknown("fine_tune: argument", name, names)
    return FineTune(**table)


def toml_lines(table: Mapping[str, Any]) -> list[str]:
    """A table's assignments in TOML; what is None is left out."""
    return [f"{key} = {_literal(value)}" for key, value in table.items() if value is not None]


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(toml_lines(value))} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(v) for v in value)}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)


def read_toml(path: Path) -> dict[str, Any]:
    """A specification's tables from a TOML file; paths of one's own files start at its folder."""
    try:
        return _own_files(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except FileNotFoundError:
        raise InputError(f"config={str(path)!r} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"config={str(path)!r} is not valid TOML: {error}") from None
    except OSError as error:
        raise InputError(f"config={str(path)!r} cannot be read: {error.strerror}") from None


def _own_files(tables: dict[str, Any], folder: Path) -> dict[str, Any]:
    """[data] and [model], also those of a sweep, with whole paths; one that has a file is one's own."""
    for part in ("data", "model"):
        table = tables.get(part)
        if isinstance(table, dict) and isinstance(table.get("file"), str):
            places = [key for key in ("file", "test_data") if isinstance(table.get(key), str)]
            tables[part] = {"name": own.OWN, **table, **{k: str(folder / Path(table[k]).expanduser()) for k in places}}
    for inner in tables["sweep"] if isinstance(tables.get("sweep"), list) else []:
        _own_files(inner, folder)
    return tables
