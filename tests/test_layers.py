"""The layers of the package: CONTRIBUTING's table says what each may import, and the imports keep to it."""

import ast
import re
from pathlib import Path

import fedbc

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedbc"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def table():
    """What CONTRIBUTING lets each package import."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\| (.*) ?\|$", CONTRIBUTING, re.MULTILINE)
    return {package: set(re.findall(r"`(\w+)`", allowed)) for package, allowed in rows}


def tools():
    """The modules that anyone may import."""
    (sentence,) = re.findall(r"\*Tools\* are [^:]*:([^.]*)\.", CONTRIBUTING)
    return set(re.findall(r"`(\w+)`", sentence))


def imported(tree):
    """The modules and names of fedbc that some code imports, wherever in it, as `part.module.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name.removeprefix("fedbc.") for a in node.names if a.name.startswith("fedbc."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            if node.module == "fedbc":
                yield from (a.name for a in node.names)
            elif node.module and node.module.startswith("fedbc."):
                yield from (f"{node.module.removeprefix('fedbc.')}.{a.name}" for a in node.names)


def part_of(path):
    """The package or the tool that a file belongs to; "" is fedbc itself."""
    inner = path.relative_to(SOURCE)
    return inner.parts[0] if len(inner.parts) > 1 else inner.stem.removeprefix("__init__")


def layer_of(name):
    """The package or tool that an imported name stands in; a name of fedbc's own is where it is defined."""
    first = name.split(".")[0]
    if (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").exists():
        return first
    return getattr(fedbc, first).__module__.split(".")[1] if first in fedbc.__all__ else ""


def test_the_table_lists_every_package_and_every_tool():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert set(table()) == packages
    assert tools() == {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}


def test_packages_import_only_what_the_table_lets_them():
    allowed, free = table(), tools()
    seen, wrong = set(), []
    for path in SOURCE.rglob("*.py"):
        part = part_of(path)
        if part in ("", "__main__"):  # fedbc itself offers everything
            continue
        for name in imported(ast.parse(path.read_text())):
            layer = layer_of(name)
            seen.add((part, layer))
            if layer and layer not in {part} | free | allowed.get(part, set()):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []
    unused = {(part, layer) for part, layers in allowed.items() for layer in layers} - seen
    assert unused == set(), "CONTRIBUTING allows more than is used"


def test_tools_import_tools_only():
    for name in tools():
        others = {layer_of(n) for n in imported(ast.parse((SOURCE / f"{name}.py").read_text()))}
        assert others <= tools(), name


def test_the_table_has_no_circles():
    """Packages can be put in an order in which each imports only those before it."""
    waiting, placed = table(), set()
    while waiting:
        ready = {package for package, needs in waiting.items() if needs <= placed}
        assert ready, waiting
        placed |= ready
        waiting = {package: needs for package, needs in waiting.items() if package not in ready}


def test_the_command_line_uses_public_names_only():
    """Whatever the command line imports from elsewhere stands in an `__all__`."""
    import importlib

    private = []
    for path in (SOURCE / "cli").glob("*.py"):
        for name in imported(ast.parse(path.read_text())):
            module, _, last = f"fedbc.{name}".rpartition(".")
            if layer_of(name) in {"cli"} | tools() or name == "__version__":
                continue
            if module == "fedbc" and (SOURCE / name).is_dir():  # a package as a whole
                continue
            if last not in getattr(importlib.import_module(module), "__all__", ()):
                private.append(f"{path.name}: {name}")
    assert private == []
