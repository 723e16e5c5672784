"""Meaning is typed, not spelled: no name in `paper/` is taken apart to find out what it stands for."""

import ast
from pathlib import Path

import pytest

import fedbc.paper

TAKES_APART = {"startswith", "endswith", "removeprefix", "removesuffix", "split", "rsplit", "partition"}
MODULES = sorted(Path(fedbc.paper.__file__).parent.rglob("*.py"))


def taken_apart(source):
    """The calls of string methods that look into a name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKES_APART:
            of = ast.unparse(node.func.value)
            if of != "jax.random":
                yield f"{of}.{node.func.attr}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_name_is_taken_apart(module):
    assert list(taken_apart(module.read_text())) == []


def test_the_check_would_see_it():
    assert list(taken_apart('kind = name.split("-")[0]')) == ["name.split"]
