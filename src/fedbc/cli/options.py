"""Options of the command line made from the catalogue: every argument of every algorithm, data set and model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from fedbc import simulate
from fedbc.errors import InputError, unknown
from fedbc.metrics import METRICS
from fedbc.runs import CATALOG, OWN, RUN_OPTIONS, Option, argument_help, need_ray


def offered(kind: str) -> list[str]:
    """The names of a kind that stand for something of fedbc's."""
    return [name for name in CATALOG[kind] if name != OWN]


def named_data(text: str | None) -> dict[str, Any]:
    """The [data] table that --data begins: a data set's name, or a file or folder of one's own."""
    if text is None:
        return {}
    path = Path(text)
    if text in offered("data") or not (path.exists() or path.suffix):
        if text not in offered("data"):
            raise unknown("data", text, offered("data"))
        return {"name": text}
    if not path.exists():
        raise InputError(f"data={text!r} does not exist: give a file, a folder, or one of {', '.join(offered('data'))}")
    return {"name": OWN, "file": text}


def named_model(text: str | None) -> dict[str, Any]:
    """The [model] table that --model begins: a model's name, or a Python file and a function, model.py:make."""
    if text is None:
        return {}
    file, _, function = text.partition(".py:")
    if function:
        return {"name": OWN, "file": f"{file}.py", "function": function}
    if Path(text).suffix == ".py":
        return {"name": OWN, "file": text}
    if text not in offered("model"):
        raise unknown("model", text, offered("model"))
    return {"name": text}


def problem(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that trains: which data, which model, or a file that says both."""
    for option in (
        click.option(
            "--config", type=click.Path(path_type=Path), help="TOML file: [algorithm], [data], [model], [run]."
        ),
        click.option(
            "--model",
            "model_name",
            help=f"Model: {', '.join(offered('model'))}, or a function of your own, my_model.py:make. [default: the "
            "paper's for the data; logistic for your own]",
        ),
        click.option(
            "--data",
            "data_name",
            help=f"Data set: {', '.join(offered('data'))}, or your own: a table (.csv, .parquet; with --label and "
            "--device), a folder, .npz, .toml. [default synthetic]",
        ),
    ):
        command = option(command)
    return command


def selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that chooses: on which data, and whether the choice is tested."""
    for option in (
        click.option(
            "--test",
            is_flag=True,
            help="After the choice, train it on all the training data and score it on the test sets, once.",
        ),
        click.option(
            "--validation", default=0.2, show_default=True, help="Share of each device's training data to choose on."
        ),
    ):
        command = option(command)
    return command


metrics = click.option(
    "--metrics",
    metavar="LIST",
    help=f"Further metrics, with commas: {', '.join(name for name in METRICS if name != 'accuracy')}; of each device "
    "and of all.",
)


def listed(text: str | None) -> list[str]:
    """The words of a list with commas."""
    return [word.strip() for word in text.split(",")] if text is not None else []


quiet = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
workers = click.option("--workers", type=int, help="Worker processes; one per core if not given.")


def ray_option(said: str) -> Callable[..., Any]:
    """The option --ray; what is wrong with it is said before anything is written."""

    def check(context: click.Context, option: click.Parameter, address: str | None) -> str | None:
        if address is not None:
            need_ray(address)
        return address

    return click.option("--ray", metavar="ADDRESS", callback=check, help=f"{said}; `local` starts Ray on this machine.")


ray = ray_option("Run on a Ray cluster instead")


@dataclass(frozen=True)
class Flag:
    """One command-line option and the arguments that it sets."""

    part: str
    """algorithm, data, model or run"""
    name: str
    """the argument's name in the specification"""
    spelling: str
    """with its dashes"""
    owners: dict[str, Option]
    """the argument as each algorithm, data set or model has it; for `run`, under the empty name"""

    @property
    def is_flag(self) -> bool:
        """Whether it is yes or no for all who have it."""
        return all(o.is_flag for o in self.owners.values())

    @property
    def key(self) -> str:
        """The name of click's parameter."""
        return f"{self.part}__{self.name}"

    def help(self) -> str:
        """What it means, who has it, and its default there."""
        texts = list(dict.fromkeys(o.help for o in self.owners.values() if o.help))
        return f"{'; '.join(texts)} [{self._whose()}]"

    def _whose(self) -> str:
        defaults: dict[str, list[str]] = {}
        for owner, option in self.owners.items():
            defaults.setdefault(str(option.default), []).append(owner)
        if list(self.owners) in ([""], [OWN]):
            return f"default {next(iter(defaults))}"
        return "; ".join(f"{', '.join(owners)}: {default}" for default, owners in defaults.items())

    def click_option(self) -> click.Option:
        """The option for click; values stay text, because only the chosen algorithm knows their type."""
        if self.is_flag:
            names = [self.key, f"{self.spelling}/{self.spelling.replace('--', '--no-', 1)}"]
            return click.Option(names, default=None, help=self.help())
        kinds = dict.fromkeys(o.kind for o in self.owners.values())
        return click.Option([self.key, self.spelling], default=None, help=self.help(), metavar="|".join(kinds))


SAID_OTHERWISE = {
    *(("data", OWN, name) for name in ("file", "checksum")),
    *(("model", OWN, name) for name in ("file", "function", "checksum", "features", "classes")),
}
"""Arguments that --data and --model themselves say, or that the data say."""


def _flags() -> list[Flag]:
    flags = [
        Flag("run", name, _dashed(name), {"": Option(name, str(p.annotation), p.default, _run_help(name))})
        for name, p in RUN_OPTIONS.items()
    ]
    for part, prefix in (("algorithm", "--"), ("data", "--"), ("model", "--model-")):
        owners: dict[str, dict[str, Option]] = {}
        for one in CATALOG[part].values():
            for option in one.options.values():
                if (part, one.name, option.name) not in SAID_OTHERWISE:
                    owners.setdefault(option.name, {})[one.name] = option
        flags += [Flag(part, name, _spelling(part, name, prefix), have) for name, have in owners.items()]
    spellings = [f.spelling for f in flags]
    repeated = {s for s in spellings if spellings.count(s) > 1}
    if repeated:
        raise AssertionError(f"two arguments share an option: {sorted(repeated)}; rename one")
    return flags


def _spelling(part: str, name: str, prefix: str) -> str:
    # `--seed` is the run's; the draw of the data has its own.
    return "--data-seed" if (part, name) == ("data", "seed") else prefix + _dashed(name)[2:]


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


def _run_help(name: str) -> str:
    return argument_help(simulate, name)


FLAGS = _flags()


DEPLOYED = ("label", "device", "test_column", "test_share", "features", "drop", "categorical", "task", "seed")
"""What a deployment's devices know of their own tables."""


def of_own_tables(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for one's own tables, and for a model of them, where nothing else can be chosen."""
    for flag in reversed(FLAGS):
        if flag.part == "data" and flag.name in DEPLOYED:
            own = replace(flag, owners={OWN: flag.owners[OWN]}).click_option()
        elif flag.part == "model" and flag.name in ("arguments", "hidden", "dropout"):
            own = flag.click_option()
        else:
            continue
        command.__dict__.setdefault("__click_params__", []).append(own)
    return command


def given(values: dict[str, Any], part: str, name: str) -> dict[str, Any]:
    """The arguments of one algorithm, data set or model (or of the run, with name "") that were given, parsed."""
    arguments = {}
    for flag in FLAGS:
        value = values.get(flag.key)
        if flag.part == part and value is not None and name in flag.owners:
            option = flag.owners[name]
            if option.is_flag and not isinstance(value, bool):
                value = value.lower() in ("1", "true", "yes")
            arguments[flag.name] = option.parse(value) if isinstance(value, str) else value
    return arguments


def refuse_unused(values: dict[str, Any], part: str, names: list[str]) -> None:
    """An option that none of the chosen algorithms (or the data set, or the model) has is an error, not ignored."""
    for flag in FLAGS:
        if flag.part == part and values.get(flag.key) is not None and not set(names) & set(flag.owners):
            have = sorted(o.spelling for o in FLAGS if o.part == part and set(names) & set(o.owners))
            raise InputError(
                f"{flag.spelling}={values[flag.key]} does not apply to {part} {', '.join(names)}: "
                f"it belongs to {', '.join(flag.owners)}; {', '.join(names)} takes {', '.join(have) or 'no options'}"
            )
