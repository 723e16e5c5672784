"""Pages for files outside docs/: the site shows what the repository's links lead to.

The pages of docs/ link to ../examples, ../tests and the like, which works wherever the repository is read. The site
has a page under source/ for each of them: a Markdown file as it is, code as code, a folder as a list of its files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?(\))")
IN_NAVIGATION = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".md": "markdown", ".json": "json", ".cff": "yaml"}
LONGEST = 100_000


def _target(address: str, link: str) -> Path | None:
    """The file in the repository that a page's link means, if it lies outside docs/; None for every other link."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    if address.startswith("source/"):
        folder = posixpath.dirname(address.removeprefix("source/"))
    else:
        folder = posixpath.join("docs", posixpath.dirname(address))
    path = posixpath.normpath(posixpath.join(folder, link))
    return Path(path) if not path.startswith(("docs/", "..")) else None


def _address(path: Path) -> str:
    """Where the page of a file or folder is."""
    if (ROOT / path).is_dir():
        return f"source/{path.as_posix()}/index.md"
    return f"source/{path.as_posix()}" + ("" if path.suffix == ".md" else ".md")


def _shown(folder: Path) -> list[Path]:
    """The files of a folder that a reader wants to see, relative to the repository."""
    files = sorted((ROOT / folder).iterdir())
    return [f.relative_to(ROOT) for f in files if f.suffix in LANGUAGES and f.is_file()]


def linked_sources(texts: Mapping[str, str]) -> list[Path]:
    """Every file and folder outside docs/ that a page, or a page reached from it, links to."""
    found: dict[Path, None] = {}
    waiting = [Path(name) for name in IN_NAVIGATION]
    waiting += [path for address, text in texts.items() for path in _targets(address, text)]
    while waiting:
        path = waiting.pop()
        if path in found or not (ROOT / path).exists():  # a broken link stays one, and fails the strict build
            continue
        found[path] = None
        if (ROOT / path).is_dir():
            waiting += _shown(path)
        elif path.suffix == ".md":
            waiting += _targets(_address(path), (ROOT / path).read_text())
    return sorted(found)


def _targets(address: str, text: str) -> list[Path]:
    return [path for match in LINK.finditer(text) if (path := _target(address, match[2])) is not None]


def source_pages(paths: list[Path]) -> dict[str, str]:
    """Address and Markdown of the page of each file; search finds the documentation, not these copies."""
    head = "---\nsearch:\n  exclude: true\n---\n\n"
    return {_address(path): head + _page(path) for path in paths}


def _page(path: Path) -> str:
    if (ROOT / path).is_dir():
        items = [f"- [{f.name}]({posixpath.basename(_address(f))})" for f in _shown(path)]
        return f"# {path.as_posix()}\n\n" + "\n".join(items) + "\n"
    text = (ROOT / path).read_text()
    if path.suffix == ".md":
        return text
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {path.as_posix()}\n\n``````{language}\n{text[:LONGEST]}\n``````\n"


def rewrite_links(markdown: str, address: str) -> str:
    """The page's links out of docs/ made to lead to the pages under source/; from there, links into docs/ likewise."""

    def replaced(match: re.Match[str]) -> str:
        start, link, anchor, end = match.groups()
        path = _target(address, link)
        if path is not None and (ROOT / path).exists():
            link = posixpath.relpath(_address(path), posixpath.dirname(address) or ".")
        elif address.startswith("source/") and path is None and "://" not in link:
            folder = posixpath.dirname(address.removeprefix("source/"))
            there = posixpath.normpath(posixpath.join(folder, link)).removeprefix("docs/")
            link = posixpath.relpath(there, posixpath.dirname(address))
        return start + link + (anchor or "") + end

    return LINK.sub(replaced, markdown)
