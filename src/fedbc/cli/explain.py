"""Help in two steps: `--help` fits two screens, `--help fedbc` tells a method's, a data set's or a model's options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from fedbc.cli.options import FLAGS, Flag
from fedbc.errors import unknown
from fedbc.runs import CATALOG, Entry

HEADINGS = {"run": "The run", "algorithm": "The algorithm", "data": "The data", "model": "The model"}
KINDS = {"algorithm": "Methods", "data": "Data sets", "model": "Models"}
RUN = "run"
"""The topic of the run's own options, in full."""
USUAL = (
    "rounds", "epochs", "batch_size", "sample", "seed", "evaluate", "evaluate_every", "validation", "optimizer"
)  # fmt: skip
"""The run's options that `--help` tells; it names the others."""

_GAP = 34


class GroupedCommand(click.Command):
    """A command with options of the catalogue, which it tells when it is asked about a name: `--help NAME`."""

    @property
    def parts(self) -> list[str]:
        """Of which parts of a specification it has options."""
        own = {parameter.name for parameter in self.params}
        return list(dict.fromkeys(f.part for f in FLAGS if f.key in own))

    def get_help_option(self, ctx: click.Context) -> click.Option:
        """`--help`, with or without a name."""
        del ctx
        return click.Option(
            ["-h", "--help"],
            is_flag=False,
            flag_value="",
            metavar="[NAME]",
            is_eager=True,
            expose_value=False,
            callback=self._tell,
            help=f"Show this message; with a name ({self._example()}), its options. {RUN!r}: all of the run's, in full."
            if RUN in self.parts
            else f"Show this message; with a name ({self._example()}), its options.",
        )

    def _example(self) -> str:
        return next(name for part in ("algorithm", "data") if part in self.parts for name in CATALOG[part])

    def _tell(self, ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
        del parameter
        if value is None or ctx.resilient_parsing:
            return
        click.echo(self.get_help(ctx) if value == "" else self.topic(ctx, value))
        ctx.exit()

    def topics(self) -> list[str]:
        """The names that it can be asked about."""
        names = [name for part in KINDS if part in self.parts for name in CATALOG[part]]
        return [*([RUN] if RUN in self.parts else []), *dict.fromkeys(names)]

    def topic(self, ctx: click.Context, name: str) -> str:
        """The options of a method, a data set or a model; of all that go by this name."""
        found = [e for part in KINDS if part in self.parts for e in CATALOG[part].values() if e.name == name]
        if not found and name != RUN:
            raise unknown("help", name, self.topics())
        formatter = ctx.make_formatter()
        if name == RUN:
            _section(formatter, HEADINGS[RUN], [_record(f, f.owners[""].help) for f in self._flags(RUN)])
        for entry in found:
            self._write_entry(formatter, entry)
        return formatter.getvalue().rstrip("\n")

    def _write_entry(self, formatter: click.HelpFormatter, entry: Entry) -> None:
        formatter.write_text(f"{entry.name}: {entry.summary}")
        records = [
            _record(f, f.owners[entry.name].help, entry.name) for f in self._flags(entry.kind) if entry.name in f.owners
        ]
        if records:
            _section(formatter, f"Options of {entry.name}", records)

    def _flags(self, part: str) -> list[Flag]:
        own = {parameter.name for parameter in self.params}
        return [f for f in FLAGS if f.part == part and f.key in own]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Its own options, the run's in short, and what can be asked about."""
        keys = {f.key for f in FLAGS}
        records = [p.get_help_record(ctx) for p in self.get_params(ctx) if p.name not in keys]
        _section(formatter, "Options", [r for r in records if r is not None])
        of_run = self._flags(RUN)
        usual = [f for f in of_run if f.name in USUAL]
        command = ctx.command_path
        _section(formatter, HEADINGS[RUN], [_record(f, _brief(f.owners[""].help)) for f in usual])
        if len(usual) < len(of_run):
            with formatter.section(f"Also of the run, told by {command} --help {RUN}"):
                formatter.write_text(", ".join(f.spelling for f in of_run if f.name not in USUAL))
        with formatter.section(f"More: {command} --help NAME tells the options of NAME"):
            formatter.write_dl([(KINDS[p], ", ".join(CATALOG[p])) for p in KINDS if p in self.parts])


def _section(formatter: click.HelpFormatter, heading: str, records: Sequence[tuple[str, str]]) -> None:
    if records:
        with formatter.section(heading):
            formatter.write_dl(records, col_max=_GAP)


def _record(flag: Flag, text: str, owner: str = "") -> tuple[str, str]:
    """An option and what it means for one owner, with its default there."""
    option = flag.owners[owner]
    spelled = flag.spelling if option.is_flag else f"{flag.spelling} {option.kind}"
    default = (
        "" if option.is_required or option.default is None or option.is_flag else f" [default {_plain(option.default)}]"
    )
    return spelled, f"{text}{default}".strip()


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


_LONG = 60


def _brief(text: str) -> str:
    """What it is, without the details, which `--help run` has."""
    first = re.split(r"; |\. ", text)[0]
    return first if len(first) <= _LONG else re.split(r": |, ", first)[0]
