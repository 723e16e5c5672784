"""The documentation site: built strictly, complete, offline, and looked at in a browser."""

import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import DESK, PHONE

import fedbc

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, built as `make docs` does: with --quiet the builder would not count its warnings."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class Elements(HTMLParser):
    """Ids, pictures, and what the browser would fetch for a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.pictures, self.fetched = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.add(found.get("id"))
        if tag == "img":
            self.pictures.append(found)
        if address := found.get(FETCHED.get(tag)):
            self.fetched.append(address)


@pytest.fixture(scope="module")
def pages(site):
    return {page.relative_to(site).as_posix(): Elements(page.read_text()) for page in site.rglob("*.html")}


def public_names():
    """Every public name: what the `__all__` of any module of the package holds, asked of the imported modules."""
    for info in pkgutil.walk_packages(fedbc.__path__, "fedbc."):
        if not info.name.endswith("__main__"):
            module = importlib.import_module(info.name)
            yield from ((module, name) for name in getattr(module, "__all__", ()))
    yield from ((fedbc, name) for name in fedbc.__all__)


def test_every_public_name_is_in_the_reference(pages):
    ids = {i for address, page in pages.items() if address.startswith("reference/") for i in page.ids}
    names = [(module, name) for module, name in public_names() if not inspect.ismodule(getattr(module, name))]
    assert len(names) > 100
    assert [f"{m.__name__}.{name}" for m, name in names if f"{m.__name__}.{name}" not in ids] == []
    modules = {module.__name__ for module, _ in public_names()}
    assert {"fedbc", "fedbc.algorithms", "fedbc.data", "fedbc.flower", "fedbc.reports"} <= modules
    assert [m for m in modules if f"reference/{m}.html" not in pages] == []


def test_every_public_name_is_documented(site):
    undocumented = []
    for module, name in public_names():
        thing = getattr(module, name)
        if not (inspect.ismodule(thing) or callable(thing)):  # a constant: its text stands in the page's table
            row = re.search(
                rf"<code>{name}</code></a></td>\s*<td>(.*?)</td>",
                (site / f"reference/{module.__name__}.html").read_text(),
            )
            if not row or not row[1].strip():
                undocumented.append(f"{module.__name__}.{name}")
            continue
        told = thing.__doc__ if not inspect.isclass(thing) else vars(thing).get("__doc__")
        automatic = inspect.isclass(thing) and (told or "").startswith(f"{thing.__name__}(")  # a dataclass's own
        if not told or automatic:
            undocumented.append(f"{module.__name__}.{name}")
        if inspect.isclass(thing) and thing.__module__.startswith("fedbc"):
            for member, value in vars(thing).items():
                plain = inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod))
                if plain and not member.startswith("_") and not inspect.getdoc(getattr(thing, member)):
                    undocumented.append(f"{module.__name__}.{name}.{member}")
    assert undocumented == []


def test_hyperparameters_come_with_their_help(site):
    text = (site / "reference/fedbc.algorithms.html").read_text()
    for method in fedbc.algorithms.ALGORITHMS.values():
        for field in dataclasses.fields(method):
            if field.name in vars(method).get("__annotations__", {}):
                assert escaped(field.metadata["help"]) in escaped(text), (method.name, field.name)
    assert "lambda_i = P[lambda_min, lambda_max]" in text


def escaped(text):
    """Text without what HTML and typography make of it."""
    text = re.sub(r"<[^>]+>", "", text)
    for character, entity in {"'": "&#39;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "&": "&amp;"}.items():
        text = text.replace(entity, character)
    return re.sub(r"[\s`]+", " ", text)


def test_every_command_is_in_the_reference(site):
    text = (site / "reference/commands.html").read_text()
    from fedbc.cli.main import COMMANDS
    from fedbc.cli.main import fedbc as group

    for name in COMMANDS:
        assert f"fedbc {name}" in text
        for child in getattr(group.get_command(None, name), "commands", {}):
            assert f"fedbc {name} {child}" in text


def test_every_page_of_docs_is_in_the_navigation(site):
    home = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html"' in home, page.name


def test_nothing_is_fetched_from_elsewhere(site, pages):
    outside = {
        (address, fetched)
        for address, page in pages.items()
        for fetched in page.fetched
        if urlsplit(fetched).scheme not in ("", "data") or fetched.startswith("//")
    }
    assert outside == set()
    missing = {
        (address, fetched)
        for address, page in pages.items()
        for fetched in page.fetched
        if not fetched.startswith("data:")
        and address != "404.html"
        and not (site / address).parent.joinpath(fetched.split("?")[0].split("#")[0]).exists()
    }
    assert missing == set()
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet


def test_every_picture_has_a_text_alternative(pages):
    pictures = [(address, picture) for address, page in pages.items() for picture in page.pictures]
    assert len(pictures) >= 12
    assert [(a, p["src"]) for a, p in pictures if len((p.get("alt") or "").strip()) < 5] == []


def test_links_out_of_docs_lead_to_copies(site):
    text = (site / "deploy.html").read_text()
    assert 'href="source/examples/deploy_mnist/index.html"' in text
    assert "load_data" in (site / "source/examples/deploy_mnist/deploy_mnist.py.html").read_text()
    assert 'href="../docs/' not in (site / "source/CONTRIBUTING.html").read_text()


UNSEEN = """return [...document.images].filter(i => !(i.complete && i.naturalWidth > 50 && i.offsetWidth > 50))
  .map(i => i.src)"""


@pytest.mark.parametrize(("width", "dark"), [(DESK, False), (PHONE, True)], ids=["desk", "phone"])
def test_pages_in_a_browser(site, browser, width, dark):
    for page in ("index", "concepts", "data", "paper", "reference/fedbc.algorithms"):
        browser.open(site / f"{page}.html", width=width, dark=dark)
        browser.wait("return document.readyState == 'complete'")
        assert browser.run(UNSEEN) == [], page
        assert browser.sideways() <= 0, page
        scheme = browser.run("return document.body.dataset.mdColorScheme")
        assert scheme == ("slate" if dark else "default")
        browser.screenshot(f"site-{page.replace('/', '-')}-{width}{'-dark' if dark else ''}")


def test_search_from_disk(site, browser):
    """Search needs a worker, which a page opened from disk does not get: assets/iframe-worker.js stands in."""
    browser.open(site / "index.html")
    box = "document.querySelector('.md-search__input')"
    browser.run(f"{box}.focus()")
    browser.wait(f"return !{box}.disabled")
    browser.run(f"{box}.value = 'knob'; {box}.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}}))")
    browser.run(f"{box}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    browser.wait("return document.querySelectorAll('.md-search-result__item').length > 0")
    titles = browser.run("return [...document.querySelectorAll('.md-search-result__item h1')].map(h => h.textContent)")
    assert any("Concepts" in title for title in titles), titles
    browser.screenshot("site-search")
