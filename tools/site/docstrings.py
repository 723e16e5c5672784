"""What mkdocstrings should see in our docstrings: hyper-parameters' help, and lists of names."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

ITEM = re.compile(r"^([a-z_]\w*(?:, \w+)*): (?=\S)", re.MULTILINE)
"""A line such as `history: one row per round`, which our docstrings use for lists of names."""


class Docstrings(griffe.Extension):
    """Gives `lr: float = parameter(0.01, "rate ...")` its help as a docstring, and marks lists of names as lists."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: list[tuple[griffe.Attribute, str]] = []

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **kwargs: Any) -> None:
        """A hyper-parameter's help is its documentation, its default its value."""
        del kwargs
        call = getattr(node, "value", None)
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "parameter"):
            return
        default, text = call.args
        attr.value = ast.unparse(default)
        if isinstance(text, ast.Constant):
            attr.docstring = griffe.Docstring(text.value, parent=attr, lineno=node.lineno)
        else:  # several methods share a line of help, a constant of another module
            self.shared.append((attr, ast.unparse(text)))

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Look up the lines of help that methods share, now that all modules are known."""
        del kwargs
        for attr, name in self.shared:
            module, _, constant = name.rpartition(".")
            value = pkg.modules_collection[f"{attr.module.resolve(module)}.{constant}"].value
            attr.docstring = griffe.Docstring(ast.literal_eval(str(value)), parent=attr)
        self.shared.clear()

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Lines that begin with a name and a colon become items of a list, which keeps them apart on the page."""
        del kwargs
        if obj.docstring is None:
            return
        text = obj.docstring.value
        if first := ITEM.search(text):
            head, items = text[: first.start()], text[first.start() :]
            obj.docstring.value = head.rstrip("\n") + "\n\n" + ITEM.sub(r"- `\1`: ", items)
