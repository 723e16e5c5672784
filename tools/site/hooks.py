"""Hooks of the documentation site (mkdocs.yml): pages made from the code, and links to files outside docs/."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from reference import commands_page, reference_pages
from sources import linked_sources, rewrite_links, source_pages


def on_files(files: Files, config: Any) -> Files:
    """Add the reference, and a page for every file outside docs/ to which a page links."""
    reference = reference_pages()
    section = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    modules = [address for address in reference if address not in section]
    section[1:1] = [{address.removeprefix("reference/").removesuffix(".md"): address} for address in modules]

    add_unlisted(files, config.nav)
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    sources = source_pages(linked_sources(texts))
    for address, content in (reference | {"reference/commands.md": commands_page()} | sources).items():
        inclusion = InclusionLevel.NOT_IN_NAV if address in sources else InclusionLevel.INCLUDED
        files.append(File.generated(config, address, content=content, inclusion=inclusion))
    return files


def add_unlisted(files: Files, nav: list[Any]) -> None:
    """Pages of docs/ that mkdocs.yml does not name come at the end of the guide, under their own headings."""
    listed = set(_addresses(nav))
    guide = next(entry["Guide"] for entry in nav if "Guide" in entry)
    for file in files.documentation_pages():
        if file.src_uri not in listed and "/" not in file.src_uri:
            heading = next(line[2:] for line in file.content_string.splitlines() if line.startswith("# "))
            guide.append({heading: file.src_uri})


def _addresses(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _addresses(part)


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Links out of docs/ lead to the copies under source/."""
    del kwargs
    return rewrite_links(markdown, page.file.src_uri)
