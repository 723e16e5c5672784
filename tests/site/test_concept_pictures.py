"""The pictures of docs/concepts.md: the script that draws them runs, and those in the repository are for all eyes."""

import re
import runpy
from pathlib import Path

import pytest

from fedbc.drawing import COLOURS

ROOT = Path(__file__).resolve().parents[2]
GREY = re.compile(r"#(..)\1\1$")


def test_they_can_be_drawn_anew(tmp_path):
    script = runpy.run_path(str(ROOT / "tools" / "concept_pictures.py"))
    script["main"].__globals__["TOLERANCES"] = (0.3,)
    written = script["main"](tmp_path, rounds=2, seeds=1)
    assert [path.name for path in written] == ["gamma.svg", "lambda.svg", "weights.svg"]
    for path in written:
        drawn, kept = path.read_text(), (ROOT / "docs" / "pictures" / path.name).read_text()
        assert words(drawn) <= words(kept) | {"0.3"}, path.name  # the same labels and legends
        assert drawn.count("<path") > 10


def words(svg):
    """What a picture says, without the numbers on its axes."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)
    plain = (re.sub(r"<[^>]+>", "", text).strip() for text in texts)
    return {text for text in plain if re.search(r"[a-z]{3}", text) and "device " not in text}


@pytest.mark.parametrize("name", ["gamma", "lambda", "weights"])
def test_colours_are_those_that_the_colour_blind_can_tell_apart(name):
    used = {c.lower() for c in re.findall(r"#[0-9a-fA-F]{6}\b", (ROOT / f"docs/pictures/{name}.svg").read_text())}
    allowed = {c.lower() for c in COLOURS} | {"#223344"}
    assert len(used & allowed) >= 3
    assert {c for c in used - allowed if not GREY.match(c)} == set()
