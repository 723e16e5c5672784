"""The report from the committed results: everything builds, the page stands by itself and opens in a browser."""

from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape

from fedbc.paper import drawing
from fedbc.paper.claims import CLAIMS, SUPPOSITIONS, gains, judge_all
from fedbc.paper.claims.verdict import CONFIRMED, NOT, NOT_RUN, PARTLY, middle, reach
from fedbc.paper.evidence import Evidence
from fedbc.paper.gallery import FIGURES
from fedbc.paper.methods import Protocol
from fedbc.paper.report import Report, shown
from fedbc.paper.tables import PLANS, Cell, Compared, Row, Table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report():
    return Report.of(ROOT / "results")


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report.html())
    return path


class Page(HTMLParser):
    """Collects ids, links and what the page would load."""

    def __init__(self):
        super().__init__()
        self.ids, self.links, self.loads, self.tags = [], [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if tag == "a" and "href" in given else []
        if tag in ("script", "link", "img", "iframe", "image"):
            self.loads.append(given.get("src") or given.get("href") or given.get("xlink:href") or "")


def test_every_table_and_figure_is_there(page):
    read, text = Page(), page.read_text()
    read.feed(text)
    for name in PLANS:
        assert f"table-{name}" in read.ids
    for name, figure in FIGURES.items():
        assert f"figure-{name}" in read.ids
        missing = f"Not run: fedbc paper run {' '.join(figure.needs)}<"
        assert (f'aria-label="{figure.title}"' in text) != (missing in text)
    for name in ("toy", "theorem", "plateaus", "partitions"):
        assert f'aria-label="{FIGURES[name].title}"' in text


def test_the_page_needs_nothing_else(page):
    read = Page()
    read.feed(page.read_text())
    assert [link for link in read.loads if not link.startswith("data:")] == []
    assert len(read.ids) == len(set(read.ids))
    assert [link for link in read.links if link.startswith("#") and link[1:] not in read.ids] == []
    assert "prefers-color-scheme: dark" in page.read_text()
    assert drawing.INK not in page.read_text()  # figures take the page's colour


def test_every_claim_has_a_verdict(report):
    assert (len(report.claims), len(report.suppositions)) == (len(CLAIMS), len(SUPPOSITIONS))
    for verdict in (*report.claims, *report.suppositions):
        assert verdict.verdict in (CONFIRMED, PARTLY, NOT, NOT_RUN)
        assert verdict.evidence
        assert all(name in PLANS or name in FIGURES for name in verdict.see)


def test_it_begins_with_what_matters(report, page):
    text = page.read_text()
    counts = [sum(v.verdict == name for v in report.claims) for name in (CONFIRMED, PARTLY, NOT, NOT_RUN)]
    said = "{} confirmed, {} partly, {} not confirmed, {} not run".format(*counts)
    assert f"{len(CLAIMS)} claims of the paper: {said}." in text
    synthetic = gains.summary(report.found)[0]
    assert len(synthetic.margins) == synthetic.of == 5
    values = synthetic.column("over_fedavg")
    gained = middle(values, synthetic.error("over_fedavg"))
    assert f'<td>5 of 5</td><td>5</td><td class="cell">{gained}<small>{reach(values)}</small></td>' in text
    assert "±" in gained


def test_a_verdict_on_a_part_of_the_runs_says_so(report, tmp_path):
    nothing = Evidence(tmp_path)
    assert not nothing.complete("synthetic-gamma")
    judges = CLAIMS | SUPPOSITIONS
    assert {v.shown for v in judge_all(nothing, judges)} == {NOT_RUN}
    for verdict, experiments in zip((*report.claims, *report.suppositions), judges.values(), strict=True):
        if verdict.verdict != NOT_RUN:
            missing = [name for name in experiments if not report.found.complete(name)]
            assert verdict.shown == verdict.verdict + (" so far" if missing else "")
            if "settings were run." in verdict.evidence:  # of those that the paper has
                assert missing
    assert not report.found.complete("cifar10-e5")  # all that the budget covers, which is not all of the paper's
    assert report.found.complete("synthetic")


def test_the_committed_markdown_is_what_the_results_say(report, tmp_path):
    """After new results: fedbc paper report --markdown docs/paper.md."""
    report.write_markdown(tmp_path / "paper.md")
    assert (tmp_path / "paper.md").read_text() == (ROOT / "docs" / "paper.md").read_text()
    assert sorted(p.name for p in (tmp_path / "paper").iterdir()) == sorted(
        p.name for p in (ROOT / "docs" / "paper").iterdir()
    )


def test_cells():
    # Standard errors 0.5/√5 and 0.4/√4: twice both together is 0.6.
    near = Cell(50.0, 0.5, 50.5, 0.4, 4, 0)
    assert near.error == pytest.approx(0.3)
    assert near.within
    assert shown(near) == {
        "ours": "50.5 ± 0.4 (4)", "paper": "50.0 ± 0.5", "difference": "+0.5 ± 0.3", "mark": "✓", "kind": "agrees",
    }  # fmt: skip
    assert Cell(50.0, 0.5, 50.7, 0.4, 4, 0).within is False  # within two standard deviations, as of old
    alone = Cell(50.0, 0.5, 50.1, None, 1, 0)
    assert alone.within is None  # one seed has no error
    assert (shown(alone)["kind"], shown(alone)["difference"]) == ("unjudged", "+0.1")
    missing = shown(Cell(50.0, 0.5, None, None, 0, 0))
    assert (missing["ours"], missing["difference"], missing["mark"]) == ("not run", "", "")
    assert shown(Cell(None, None, None, None, 0, 2))["ours"] == "diverged"


def test_agreeing_by_noise_is_told_in_points():
    """A noisy mean agrees with much, and that is said."""
    noisy, exact = Cell(91.9, 0.5, 61.5, 40.0, 4, 0), Cell(50.0, 0.5, 50.1, 0.4, 4, 0)
    compared = Compared((noisy, exact, Cell(50.0, 0.5, 58.0, None, 1, 0)))
    assert (len(compared), compared.judged, compared.agree) == (3, 2, 2)
    assert compared.in_words() == (
        "3 cells; of the 2 with several seeds (4, the paper 5) 2 agree within two standard errors, 1 of these though "
        "more than 3 points off; all in all 1 lie within 1 point of the paper's number, 2 more than 3 points off; in "
        "the median it is 8.0 points"
    )


def test_no_cell_is_counted_twice(report):
    """Shakespeare's table of variances has the same cells as that of accuracies."""
    totals = report.totals
    assert totals["cells"] == 440
    counted = sum(
        len(t.compared(Protocol.PAPER)) for name, t in report.tables.items() if name != "shakespeare-variance"
    )
    assert len(totals[Protocol.PAPER]) == counted <= 440
    every = [c.difference for name, t in report.tables.items() if name != "shakespeare-variance" for r in t.rows
             if r.protocol is Protocol.PAPER for c in r.cells if c.difference is not None]  # fmt: skip
    assert sorted(totals[Protocol.PAPER].points) == sorted(map(abs, every))  # accuracies in points, and no variance


def test_the_first_screen_has_five_sentences_and_a_chart(report, page):
    assert len(report.in_short) == 5
    text = page.read_text()
    first = text.index('id="figure-gains"')
    assert text.index("<ol>") < first < text.index('id="claims"')
    assert all(str(escape(sentence)) in text for sentence in report.in_short)


def test_rows_that_say_nothing_are_left_out_and_named():
    def row(group, label, protocol, mean, paper):
        cell = Cell(paper, 0.5, mean, None, int(mean is not None), 0)
        return Row(group, label, Protocol(protocol), (cell,))

    rows = (
        row("C = 1", "FedAvg", "paper", 50.0, 51.0),
        row("C = 1", "FedAvg, uniform", "paper", None, None),
        row("C = 1", "FedAvg", "reference", None, 51.0),
        row("C = 2", "FedAvg", "paper", None, 52.0),  # the only place of the paper's number
        row("C = 2", "FedAvg, uniform", "paper", 53.0, None),
        row("C = 2", "FedAvg", "reference", None, 52.0),
    )
    table = Table("t", "T", ("E = 1",), rows)
    assert table.shown == (rows[0], rows[3], rows[4])
    assert table.left_out == (
        "Left out, as nothing of them was run: C = 1, paper protocol: FedAvg, uniform. "
        "C = 1, C = 2, reference protocol: all rows."
    )
    assert Table("t", "T", ("E = 1",), rows[:1]).left_out == ""


MEASURE = """return [...document.querySelectorAll("figure svg")].map(s => s.getBoundingClientRect())
  .map(b => [b.width, b.height]);"""


@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_in_a_browser(width, page, browser):
    """Without errors, every figure visible, and on a phone without scrolling sideways."""
    browser.open(page, width=width)
    figures = browser.run(MEASURE)
    assert len(figures) == page.read_text().count('<svg role="img"') >= 4
    assert all(w > 200 and h > 60 for w, h in figures)
    assert browser.run("return document.querySelectorAll('figure svg path').length") > 100
    assert browser.sideways() <= 0
