"""The code blocks of the pages, what each page needs to run them, and how they are run.

Every fenced block of a page is Python, which runs; commands, which run; TOML, which is read; or plain text. A block
that is not run says why in a comment before it: `<!-- not run: reason -->`, or `<!-- excerpt: file -->` for lines of a
file that is itself tested.
"""

import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from fedbc.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>not run|excerpt): (?P<note>[^>]*?) -->\n)?(?P<fence>`{3,})(?P<language>\S*)\n"
    r"(?P<code>.*?)^(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


class Block(NamedTuple):
    language: str
    code: str
    mark: str | None
    note: str
    section: str
    line: int


def blocks(page):
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text()
    found = []
    for match in BLOCK.finditer(text):
        headings = HEADING.findall(text[: match.start()])
        line = text[: match.start("fence")].count("\n") + 1
        parts = match.groupdict()
        found.append(
            Block(
                parts["language"],
                parts["code"],
                parts["mark"],
                parts["note"] or "",
                headings[-1] if headings else "",
                line,
            )
        )
    fences = len(re.findall(r"^\s*```", text, re.MULTILINE))
    assert fences == 2 * len(found), f"{page}: a fence is not closed, or indented"
    return found


def run_python(code, page, line, names):
    """Run a block, with the page's own line numbers in a traceback."""
    exec(compile("\n" * line + code, str(ROOT / page), "exec"), names)


def run_commands(code, smaller, covered=()):
    """Type the lines of a block; `fedbc` runs in this process, for its start would cost more than its work.

    Commands that begin like one of `covered` are left to the tests that these name.
    """
    for line in code.replace("\\\n", " ").splitlines():
        for command in line.split("&&"):
            words = shlex.split(smaller(command), comments=True)
            if not words or any(" ".join(words).startswith(start) for start in covered):
                continue
            if words[0] == "fedbc":
                _fedbc(words[1:])
            elif words[:2] == ["pip", "install"]:
                _installs(words[2:])
            elif words[0] == "python":
                runpy.run_path(str(ROOT / words[1]), run_name="__main__")
            else:
                raise AssertionError(f"no way to run {command!r}: mark the block, with the reason")


def _installs(requirements):
    """Nothing is installed here, but the extras that a page names must exist."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for requirement in requirements:
        name, extra = re.fullmatch(r"(\w+)\[(\w+)\]", requirement).groups()
        assert name == "fedbc", requirement
        assert extra in known, requirement


def _fedbc(arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code, f"fedbc {' '.join(arguments)} ended with {end.value.code}"


def read_toml(code):
    """A block of settings."""
    return tomllib.loads(code)


def fresh_arguments(monkeypatch):
    """Scripts see no arguments of pytest's."""
    monkeypatch.setattr(sys, "argv", sys.argv[:1])
