"""Options of the command line made from the catalogue: every argument of every algorithm, data set and model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fedbc.errors import InputError
from fedbc.experiments.catalog import CATALOG, Option, argument_help
from fedbc.experiments.spec import RUN_OPTIONS
from fedbc.simulation.simulate import simulate


def problem(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that trains: which data, which model, or a file that says both."""
    for option in (
        click.option(
            "--config", type=click.Path(path_type=Path), help="TOML file: [algorithm], [data], [model], [run]."
        ),
        click.option(
            "--model", "model_name", help=f"Model: {', '.join(CATALOG['model'])}. [default: the paper's for the data]"
        ),
        click.option("--data", "data_name", help=f"Data set: {', '.join(CATALOG['data'])}. [default synthetic]"),
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
        if list(self.owners) == [""]:
            return f"default {next(iter(defaults))}"
        return "; ".join(f"{', '.join(owners)}: {default}" for default, owners in defaults.items())

    def click_option(self) -> click.Option:
        """The option for click; values stay text, because only the chosen algorithm knows their type."""
        if self.is_flag:
            names = [self.key, f"{self.spelling}/{self.spelling.replace('--', '--no-', 1)}"]
            return click.Option(names, default=None, help=self.help())
        return click.Option([self.key, self.spelling], default=None, help=self.help(), metavar="VALUE")


def _flags() -> list[Flag]:
    flags = [
        Flag("run", name, _dashed(name), {"": Option(name, str(p.annotation), p.default, _run_help(name))})
        for name, p in RUN_OPTIONS.items()
    ]
    for part, prefix in (("algorithm", "--"), ("data", "--"), ("model", "--model-")):
        owners: dict[str, dict[str, Option]] = {}
        for entry in CATALOG[part].values():
            for option in entry.options.values():
                owners.setdefault(option.name, {})[entry.name] = option
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


class GroupedCommand(click.Command):
    """A command whose help lists the options by what they belong to."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section a part."""
        headings = {
            "run": "The run",
            "algorithm": "The algorithm (each with who has it, and its default)",
            "data": "The data",
            "model": "The model",
        }
        sections: dict[str, list[tuple[str, str]]] = {part: [] for part in ("", *headings)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                part = str(parameter.name).split("__")[0] if "__" in str(parameter.name) else ""
                sections[part].append(record)
        for part, records in sections.items():
            if records:
                with formatter.section(headings.get(part, "Options")):
                    formatter.write_dl(records, col_max=34)


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
