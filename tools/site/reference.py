"""The reference from the code: a page for each module with an `__all__`, all of its names on it, and every command.

A thing that several modules export (`fedbc.FedBC`, `fedbc.algorithms.FedBC`) is described once, on the page of the
module nearest to its definition, under all its public names; the other modules list it with a link.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import griffe

ROOT = Path(__file__).resolve().parents[2]
EQUATIONS = 6
"""Lines from which a module's docstring tells more than its class's own: a method's equations."""


@functools.cache
def package() -> griffe.Module:
    """The package, read and not imported: the reference needs none of the optional libraries."""
    return griffe.load("fedbc", search_paths=[ROOT / "src"])


def public_modules() -> dict[str, griffe.Module]:
    """Every module with an `__all__`, by its full name."""
    return {module.path: module for module in _modules(package()) if module.exports is not None}


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for child in module.modules.values():
        if not child.is_alias and not child.name.startswith("_"):
            yield from _modules(child)


def _meant(module: griffe.Module, name: str) -> Any:
    """The thing that a module exports by a name; an import wins over a submodule of the same name, as in Python."""
    path = module.imports.get(name, f"{module.path}.{name}")
    if path == f"{module.path}.{name}":
        return module[name]
    parent, _, last = path.rpartition(".")
    return _meant(package()[parent.removeprefix("fedbc.")] if parent != "fedbc" else package(), last)


def exported() -> dict[str, dict[str, str]]:
    """For each thing's path of definition, its public names: the module and the name in it, nearest module first."""
    found: dict[str, dict[str, str]] = {}
    for path, module in public_modules().items():
        for name in map(str, module.exports or []):
            found.setdefault(_meant(module, name).path, {})[path] = name
    return {
        defined: dict(sorted(names.items(), key=lambda item: (not defined.startswith(item[0] + "."), -len(item[0]))))
        for defined, names in found.items()
    }


def reference_pages() -> dict[str, str]:
    """Address and Markdown of each page."""
    modules, names = public_modules(), exported()
    pages = {f"reference/{path}.md": _page(module, names) for path, module in sorted(modules.items())}
    lines = [f"| [`{path}`]({path}.md) | {_first(module)} |" for path, module in sorted(modules.items())]
    table = "\n".join(["| module | holds |", "| --- | --- |", *lines])
    pages["reference/index.md"] = (
        "# Reference\n\nEvery public name: what `__all__` of a module names, and nothing else, is public. Made from "
        f"the code.\n\n{table}\n\n[Every command](commands.md) of the command line.\n"
    )
    return pages


def _page(module: griffe.Module, exports: dict[str, dict[str, str]]) -> str:
    lines, sections = [], []
    told: set[str] = set()
    for name in sorted(map(str, module.exports or []), key=str.lower):
        thing = _meant(module, name)
        names = exports[thing.path]
        home = next(iter(names))
        if thing.is_module:
            link = f"{thing.path}.md"
        elif home == module.path:
            link = f"#{home}.{name}"
            sections.append(_section(thing, [f"{where}.{its}" for where, its in names.items()], told))
        else:
            link = f"{home}.md#{home}.{names[home]}"
        lines.append(f"| [`{name}`]({link}) | {_first(thing)} |")
    head = [f"# {module.path}", module.docstring.value if module.docstring else ""]
    table = "\n".join(["| name | what it is |", "| --- | --- |", *lines])
    return "\n\n".join([*head, table, *sections]) + "\n"


def _section(thing: Any, names: list[str], told: set[str]) -> str:
    """A thing's documentation under all its public names; for a federated method also its file's equations."""
    options = {"heading": min(names, key=len), "toc_label": thing.name}
    method = thing.is_class and thing.path.startswith("fedbc.algorithms.")
    contract = package()["algorithms.base.Algorithm"]
    if method and thing is not contract and set(contract.members) & set(thing.members):
        # What every method shares is told once, with `Algorithm`; here its hyper-parameters.
        own = [name for name in thing.members if name not in contract.members and not name.startswith("_")]
        options["members"] = repr(own)
    anchors = "".join(f'<a id="{name}"></a>' for name in names if name != thing.path)
    lines = [anchors, "", f"::: {thing.path}", "    options:"]
    lines += [f"        {key}: {value}" for key, value in options.items()]
    source = thing.module.docstring
    if method and source is not None and len(source.lines) >= EQUATIONS and thing.module.path not in told:
        told.add(thing.module.path)
        text = [f"    {line}".rstrip() for line in source.value.splitlines()]
        title = f'??? note "{thing.name}: the equations, and the map from symbols to arguments"'
        lines += ["", title, "", "    ```text", *text, "    ```"]
    return "\n".join(lines)


def _first(thing: Any) -> str:
    """The first paragraph, fit for a table's cell."""
    if thing.docstring is None:
        return ""
    return thing.docstring.value.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def commands_page() -> str:
    """Every command with its help, as the terminal prints it."""
    from fedbc.cli.main import fedbc

    parts = ["# Commands", "Each command's `--help`, at its width on a terminal."]
    for name, command in _commands(fedbc, "fedbc"):
        with click.Context(command, info_name=name, max_content_width=110, terminal_width=110) as context:
            parts += [f"## {name}", f"```text\n{command.get_help(context)}\n```"]
            if name == "fedbc run":
                parts += _topics(command, context)
    return "\n\n".join(parts) + "\n"


def _topics(command: Any, context: click.Context) -> Iterator[str]:
    """What `--help NAME` tells of each method, data set and model."""
    for topic in command.topics():
        yield f"### {context.command_path} --help {topic}"
        yield f"```text\n{command.topic(context, topic)}\n```"


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in sorted(command.list_commands(context)):
            if (found := command.get_command(context, child)) is not None:
                yield from _commands(found, f"{name} {child}")
