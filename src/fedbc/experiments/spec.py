"""A run as plain values: what a TOML file, the command line and a run folder's spec.json hold."""

from __future__ import annotations

import dataclasses
import inspect
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbc import checks
from fedbc.algorithms.finetune import FineTune
from fedbc.errors import InputError, unknown
from fedbc.experiments.catalog import entry
from fedbc.simulation.settings import Settings
from fedbc.simulation.simulate import simulate

USUAL_MODEL = {"synthetic": "logistic", "mnist": "mlp", "cifar10": "cnn", "shakespeare": "lstm"}
"""The model that the paper uses for each data set."""

RUN_OPTIONS = {
    name: p
    for name, p in inspect.signature(simulate).parameters.items()
    if name in {"rounds", *(f.name for f in dataclasses.fields(Settings))}
}
"""The arguments of `simulate` that a specification holds."""

PARTS = ("algorithm", "data", "model", "run")


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
        if "name" not in self.model:
            usual = USUAL_MODEL.get(str(self.data["name"]))
            if usual is None:
                raise InputError(f"model is missing: data {self.data['name']} has no usual one")
            object.__setattr__(self, "model", {"name": usual, **self.model})
        entry("model", self.model["name"])
        for name in self.run:
            if name not in RUN_OPTIONS:
                raise unknown("run: argument", name, RUN_OPTIONS)
        # TOML has no None: a word stands for it where None is accepted.
        run = {k: None if v == "none" and "None" in str(RUN_OPTIONS[k].annotation) else v for k, v in self.run.items()}
        object.__setattr__(self, "run", run)

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

    def build(self) -> tuple[Any, Any, Any]:
        """The algorithm, the model and the federation."""
        algorithm, model = self.build_part("algorithm"), self.build_part("model")
        return algorithm, model, self.build_part("data")

    def build_part(self, part: str) -> Any:
        """One of the three, from its table."""
        table = dict(getattr(self, part))
        return entry(part, table.pop("name")).make(table)

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

    def check(self, algorithm: Any, model: Any, federation: Any) -> None:
        """Raise an InputError if the run could not be carried out with what was built."""
        run = self.run_arguments()
        checks.integer("rounds", run.pop("rounds"), at_least=1)
        Settings(**run | {"evaluate": tuple(run["evaluate"])}).check(algorithm, model, federation)


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
    """A specification's tables from a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"config={str(path)!r} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"config={str(path)!r} is not valid TOML: {error}") from None
    except OSError as error:
        raise InputError(f"config={str(path)!r} cannot be read: {error.strerror}") from None
